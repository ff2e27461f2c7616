"""What a user may give to a pipeline's DAG: merged, or refused with the reason, when the file is parsed."""

import re
import sys
import time
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import Param

from exactbatch import Append, Json, Pipeline, ToTopic
from exactbatch.airflow import pipeline_dag
from exactbatch.discovery import find_reference
from exactbatch.errors import ConfigurationError

PIPELINE = Pipeline(name="shop", topics=("t",), value=Json("id int"), sink=Append("public.shop"))
QUERIED = replace(PIPELINE, name="queried", transform="select * from records")
FORWARDING = replace(PIPELINE, name="forwarding", forward=ToTopic("late"))
HOSTILE = Pipeline(
    name="hostile", topics=("t",), value=Json('"a|b <img src=x>" int'), sink=Append("public.shop")
)


def test_default_args_tags_params_and_texts_are_merged():
    def called(_: Any) -> None: ...

    dag = pipeline_dag(
        PIPELINE,
        default_args={
            "owner": "shop",
            "retries": 7,
            "execution_timeout": timedelta(hours=2),
            "on_failure_callback": called,
            "on_success_callback": called,
            "on_skipped_callback": [called],
        },
        tags=["team"],
        params={"colour": Param("red", type="string")},
        doc_md="Mine.",
        dagrun_timeout=timedelta(hours=3),
        on_failure_callback=called,
        render_template_as_native_obj=True,
    )
    for each in dag.tasks:
        assert (each.owner, each.retries, each.retry_delay) == ("shop", 7, timedelta(seconds=30))
        assert each.execution_timeout == timedelta(hours=2)
        assert list(each.on_failure_callback) == [called]
        first = 1 if each.task_id == "report_batch" else 0  # which first notes that Airflow has the event
        assert list(each.on_success_callback)[first] == next(iter(each.on_skipped_callback)) == called
    assert set(dag.tags) == {"exactbatch", "team"}
    assert {"colour", "ranges", "start", "end", "batch_ids", "available_only"} == set(dag.params)
    assert dag.dagrun_timeout == timedelta(hours=3)
    assert dag.doc_md is not None
    assert dag.doc_md.startswith("Mine.\n\n### shop")
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert [each.trigger_rule for each in dag.tasks][-1] == "none_failed_min_one_success"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"catchup": True}, "takes no catchup: a run processes everything that is new"),
        (
            {"max_active_runs": 3},
            "takes no max_active_runs: only one run at a time moves the pipeline forward",
        ),
        ({"dag_id": "x"}, "takes no dag_id: it is the pipeline's name"),
        ({"default_args": {"trigger_rule": "all_done"}}, "default_args of its DAG take no trigger_rule"),
        ({"default_args": {"pool": "x"}}, "take no pool: pass pool and replay_pool to pipeline_dag"),
        ({"params": {"ranges": 1}}, "already has parameters of the names ranges"),
        ({"default_args": {"params": {"start": 1}}}, "already has parameters of the names start"),
        ({"no_such_argument": 1}, "Airflow refuses its DAG: .*no_such_argument"),
        ({"schedule": 5}, "Airflow refuses its DAG: .*schedule"),
        *(
            ({"schedule": text}, f"the schedule {re.escape(repr(text))} is not a cron expression")
            for text in ("", "None", "@never", "0 25 * * *", "* * *", "every day")
        ),
    ],
)
def test_what_cannot_be_given_is_refused_with_the_pipelines_name(given, said):
    with pytest.raises(ConfigurationError, match=f"pipeline 'shop': .*{said}"):
        pipeline_dag(PIPELINE, **given)


@pytest.mark.parametrize(
    ("schedule", "timetable"),
    [
        (None, "NullTimetable"),
        ("@once", "OnceTimetable"),
        ("@continuous", "ContinuousTimetable"),
        ("@hourly", "CronDataIntervalTimetable"),
        ("@quarterly", "CronDataIntervalTimetable"),
        ("*/5 * * * *", "CronDataIntervalTimetable"),
        (timedelta(hours=1), "DeltaTriggerTimetable"),
    ],
)
def test_schedules(schedule, timetable):
    assert type(pipeline_dag(PIPELINE, schedule=schedule).timetable).__name__ == timetable


def test_pools_that_are_asked_for():
    dag = pipeline_dag(PIPELINE, pool="one", replay_pool="some")
    assert [dag.task_dict[each].pool for each in ("process_batch", "process_replay")] == ["one", "some"]


@pytest.mark.parametrize(("pipeline", "is_transformed"), [(PIPELINE, False), (QUERIED, True)])
def test_operators_know_whether_records_pass_through_the_jvm(pipeline, is_transformed):
    dag = pipeline_dag(pipeline)
    for task in ("process_batch", "process_replay"):
        assert dag.task_dict[task].is_transformed == is_transformed


def test_names_of_columns_are_text_in_the_documentation():
    assert r"| a\|b &lt;img src=x&gt; | integer |" in (pipeline_dag(HOSTILE).doc_md or "")


def test_many_pipelines_are_found_soon_although_many_modules_are_loaded(monkeypatch):
    """A DAG file with all of them is parsed again for each task."""
    for number in range(2000):
        monkeypatch.setitem(sys.modules, f"module_of_this_test_{number}", ModuleType("x"))
    began = time.process_time()
    for _ in range(50):
        assert find_reference(PIPELINE).endswith(":PIPELINE")
    assert time.process_time() - began < 5


def test_a_module_whose_import_is_blocked_is_passed_over(monkeypatch):
    blocked = {"blocked_by_this_test": None}
    monkeypatch.setattr(sys, "modules", {**blocked, **sys.modules})
    assert find_reference(PIPELINE).endswith(":PIPELINE")


def test_the_trigger_form_has_what_is_used_most_first_and_describes_each():
    params = pipeline_dag(PIPELINE).params
    assert list(params) == ["start", "end", "batch_ids", "ranges", "available_only"]
    for name in params:
        schema = params.get_param(name).schema
        assert schema["title"], name
        assert schema["description_md"], name


def test_the_documentation_of_a_dag_leads_to_its_pipeline_on_the_page():
    doc = pipeline_dag(PIPELINE).doc_md
    assert f"[Open {PIPELINE.name} in exactbatch](exactbatch/?dag={PIPELINE.name})" in doc
    assert "*Replay…*" in doc


def test_results_are_forwarded_beside_the_report():
    """Also in a run without a batch, which skips the tasks that process one."""
    assert "forward_results" not in pipeline_dag(PIPELINE).task_dict
    task = pipeline_dag(FORWARDING).task_dict["forward_results"]
    assert task.upstream_task_ids == {"process_batch", "process_replay"}
    assert task.trigger_rule == "none_failed"
    assert not task.downstream_task_ids
