"""A pipeline as a task group of somebody's own DAG: its shape, and what it refuses."""

import json
import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Param, TaskGroup, task
from airflow.serialization import serialized_objects

from exactbatch import Append, Json, Pipeline, Tables, ToTopic
from exactbatch.airflow import Connections, pipeline_dag, pipeline_task_group
from exactbatch.airflow.page.dags import stored_in
from exactbatch.airflow.parameters import find_replay
from exactbatch.errors import ConfigurationError

# Airflow 3.0 and 3.1 have it under the older name.
Serialization: Any = getattr(serialized_objects, "DagSerialization", serialized_objects.SerializedDAG)
MODULE = ModuleType("pipelines.grouped")
FLIGHTS = Pipeline(name="flights", topics="t", value=Json("id int"), sink=Append("public.flight"))
LATE = Pipeline(
    name="late", topics="t", value=Json("id int"), sink=Append("public.late"), forward=ToTopic("late")
)
SHOP = Tables(name="shop", topics=("s.a",), pipeline=lambda _: None)


@pytest.fixture(autouse=True)
def references(monkeypatch):
    MODULE.flights, MODULE.late, MODULE.shop = FLIGHTS, LATE, SHOP  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE.__name__, MODULE)


def edges(dag: DAG) -> dict[str, list[str]]:
    return {each: sorted(dag.task_dict[each].downstream_task_ids) for each in dag.task_dict}


def own_dag(**options: Any) -> DAG:
    return DAG("warehouse", schedule=None, **{"max_active_runs": 1, **options})


def test_a_group_stands_between_the_tasks_of_its_dag():
    with own_dag() as dag:

        @task
        def extract() -> None: ...

        @task
        def check(rows: Any) -> None: ...

        group = pipeline_task_group(FLIGHTS, pool="heavy")
        extract() >> group
        check(group.output["rows"])
    assert edges(dag) == {
        "extract": ["flights.plan_batch"],
        "flights.plan_batch": [
            "flights.process_batch",
            "flights.process_replay",
            "flights.report_batch",
        ],
        "flights.process_batch": ["flights.report_batch"],
        "flights.process_replay": ["flights.report_batch"],
        "flights.report_batch": ["check"],
        "check": [],
    }
    process = dag.task_dict["flights.process_batch"]
    assert "xcom_pull('flights.plan_batch', key='plan_id')" in process.batches
    assert (process.pool, dag.task_dict["flights.process_replay"].pool) == ("heavy", "default_pool")
    assert process.operator_extra_links == ()
    assert dag.task_dict["flights.report_batch"].do_xcom_push
    assert "exactbatch" in dag.tags


def test_only_a_group_keeps_the_event_as_a_result():
    assert not pipeline_dag(FLIGHTS).task_dict["report_batch"].do_xcom_push


def test_its_own_retries_and_rules_go_before_those_of_the_dag():
    def called(_: Any) -> None: ...

    of_dag = {"retries": 0, "trigger_rule": "all_done", "on_success_callback": called, "owner": "shop"}
    with own_dag(default_args=of_dag) as dag, TaskGroup("outer"):
        pipeline_task_group(LATE, retries=7, retry_delay=timedelta(seconds=5))
    assert [each.trigger_rule for each in dag.tasks] == [
        "all_success",
        "all_success",
        "all_success",
        "none_failed_min_one_success",
        "none_failed",
    ]
    for each in dag.tasks:
        assert each.task_id.startswith("outer.late.")
        assert (each.owner, each.retries, each.retry_delay) == ("shop", 7, timedelta(seconds=5))
        assert called in each.on_success_callback
    assert "xcom_pull('outer.late.plan_batch'" in dag.task_dict["outer.late.process_batch"].batches


def test_the_page_finds_each_pipeline_of_a_dag():
    with own_dag() as dag:
        pipeline_task_group(FLIGHTS, connections=Connections(kafka="k", postgres="p"))
        pipeline_task_group(SHOP)
    assert stored_in(json.loads(json.dumps(Serialization.to_dict(dag)))) == [
        ("k", "p", False, None, False, "flights"),
        ("kafka_default", "postgres_default", False, None, True, "shop"),
    ]
    assert edges(dag)["shop.report_batch"] == ["shop.check_tables"]


@pytest.mark.parametrize("runs", [None, 2, 16])
def test_a_dag_with_several_runs_at_a_time_is_refused(runs):
    options = {} if runs is None else {"max_active_runs": runs}
    with (
        DAG("warehouse", schedule=None, **options),
        pytest.raises(
            ConfigurationError, match=r"'warehouse' has max_active_runs=\d+, but .* max_active_runs=1"
        ),
    ):
        pipeline_task_group(FLIGHTS)


def test_a_group_needs_a_dag():
    with pytest.raises(
        ConfigurationError, match=r"'flights': pipeline_task_group was called outside of a DAG"
    ):
        pipeline_task_group(FLIGHTS)


def test_many_tables_need_spark_submit():
    with own_dag(), pytest.raises(ConfigurationError, match="'shop': one Spark driver .* Remove engine"):
        pipeline_task_group(SHOP, engine="connect")


def run(run_type: str, **conf: Any) -> Any:
    return SimpleNamespace(run_type=run_type, conf=conf, data_interval_start=None, data_interval_end=None)


def test_parameters_are_those_of_the_dag_and_request_no_replay():
    params = {"start": Param("2026-01-01"), "colour": "red"}
    assert find_replay(run("manual", note="x"), params, params.keys(), in_group=True) is None
    for asked in ({"batch_ids": [7]}, {"ranges": []}, {"tables": ["a"]}):
        with pytest.raises(
            ConfigurationError, match=f"triggered with {next(iter(asked))}, .*`exactbatch replay`"
        ):
            find_replay(run("manual", **asked), params, params.keys(), in_group=True)
