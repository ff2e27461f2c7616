"""The DAG of many tables: its shape, and what its operator hands to spark-submit."""

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from exactbatch import Append, Json, Pipeline, Tables, TableTopic
from exactbatch.airflow import Connections, pipeline_dag
from exactbatch.airflow import operator as module
from exactbatch.airflow import operator as operator_module
from exactbatch.airflow.check_batches import read_missed_plans, read_named_batches
from exactbatch.airflow.parameters import find_tables
from exactbatch.airflow.tasks import uncommitted_batches as launch
from exactbatch.airflow.versions import AirflowException, AirflowFailException
from exactbatch.errors import ConfigurationError
from exactbatch.errors.exit_status import TERMINAL
from exactbatch.model import PlannedBatch
from exactbatch.settings import Settings

PLANS = [UUID(int=17), UUID(int=18)]
BATCHES = json.dumps([f"shop.a:1:{PLANS[0]}", f"shop.b:2:{PLANS[1]}"])
TI = SimpleNamespace(dag_id="shop", run_id="r", task_id="process_batch")


def of(topic: TableTopic) -> Pipeline:
    return Pipeline(
        name=topic.name, topics=(topic.topic,), value=Json("id int"), sink=Append(f"s.{topic.table}")
    )


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    tables = Tables(name="shop", topics=("s.a", "s.b"), pipeline=of)
    # A name that the search path has, so that the reference can be imported again.
    found = ModuleType("pipelines.shop_of_test")
    found.shop = tables  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, found.__name__, found)
    return tables


def test_one_dag_plans_processes_and_reports_all_tables(tables):
    dag = pipeline_dag(tables, schedule="*/5 * * * *")
    assert dag.dag_id == "shop"
    assert {each: sorted(dag.task_dict[each].downstream_task_ids) for each in dag.task_dict} == {
        "plan_batch": ["check_tables", "process_batch", "process_replay"],
        "process_batch": ["check_tables", "report_batch"],
        "process_replay": ["check_tables", "report_batch"],
        "report_batch": ["check_tables"],
        "check_tables": [],
    }
    assert next(iter(dag.params)) == "tables"
    assert "topics" not in dag.task_dict["process_batch"].template_fields
    assert "Exactly-once batches from **s.a, s.b**" in (dag.doc_md or "")
    with pytest.raises(ConfigurationError, match="takes no catchup"):
        pipeline_dag(tables, catchup=True)


class Launches:
    """An operator whose launches are played; the ledger answers by batch ID."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, done: dict[int, str], returncode: int = 0) -> None:
        self.asked: list[str] = []
        self.launched: list[list[str]] = []

        def ask(_: Settings, batches: list[PlannedBatch], ti: Any) -> dict[PlannedBatch, str]:
            assert ([each.plan_id for each in batches], ti) == (PLANS, TI)
            self.asked += [each.pipeline for each in batches]
            return {each: done[each.batch_id] for each in batches if each.batch_id in done}

        def submit(operator: Any, _: Any) -> None:
            self.launched.append(operator.application_args)
            operator._hook = self.hook
            if returncode:
                raise AirflowException("spark-submit failed")

        monkeypatch.setattr(launch, "done_already", ask)
        monkeypatch.setattr(launch, "planned_offsets", lambda *_: 1_000)
        monkeypatch.setattr(operator_module.BaseHook, "get_connection", lambda _: None)
        monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
        monkeypatch.setattr(Connections, "settings", lambda _: Settings(kafka={}, postgres="dbname=x"))
        self.hook = SimpleNamespace(
            _connection={"deploy_mode": None}, _submit_sp=SimpleNamespace(returncode=returncode)
        )

    def execute(self, batches: str = BATCHES) -> None:
        operator = module.ProcessBatchOperator(
            task_id="process_batch",
            connections=Connections(),
            pipeline="pipelines.shop_of_test:shop",
            batches=batches,
            is_tables=True,
        )
        operator._get_hook = lambda: self.hook  # type: ignore[method-assign]
        operator.execute({"ti": TI})


def test_only_batches_that_are_left_are_submitted(monkeypatch):
    launches = Launches(monkeypatch, {1: "committed"})
    launches.execute()
    assert launches.asked == ["shop.a", "shop.b"]
    assert launches.launched == [
        ["--pipeline", "pipelines.shop_of_test:shop", "--batches", f"shop.b:2:{PLANS[1]}"]
    ]


def test_thousands_of_tables_start(monkeypatch):
    launches = Launches(monkeypatch, {})
    planned = [f"shop.public.{n:0237}:{n}:{UUID(int=n)}" for n in range(5000)]  # Kafka's longest names

    def start(operator: Any, _: Any) -> None:
        script = (
            "import json, process_batch as job; print(json.dumps([*map(str, job.parse_arguments().batches)]))"
        )
        command = [sys.executable, "-c", script, *operator.application_args]
        started = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        launches.launched.append(started)

    monkeypatch.setattr(launch, "done_already", lambda *_: {})
    monkeypatch.setattr(SparkSubmitOperator, "execute", start)
    launches.execute(json.dumps(planned))
    assert launches.launched == [planned]


def test_nothing_is_submitted_if_nothing_is_left(monkeypatch):
    launches = Launches(monkeypatch, {1: "committed", 2: "committed"})
    launches.execute()
    assert launches.launched == []


@pytest.mark.parametrize(
    ("status", "error"),
    [(TERMINAL, AirflowFailException), (1, AirflowException)],
    ids=["terminal", "retryable"],
)
def test_the_exit_status_of_the_driver_decides_on_retries(monkeypatch, status, error):
    launches = Launches(monkeypatch, {}, status)
    with pytest.raises(error) as caught:
        launches.execute()
    assert type(caught.value) is error


@pytest.mark.parametrize("overtaken", [(1,), (1, 2)], ids=["one", "all"])
def test_batches_that_later_replays_overtake_meanwhile_do_not_fail_the_task(monkeypatch, overtaken):
    done: dict[int, str] = {}
    launches = Launches(monkeypatch, done, TERMINAL)
    submit = SparkSubmitOperator.execute

    def overtake(operator: Any, context: Any) -> None:
        done.update(dict.fromkeys(overtaken, "a later batch has processed all ranges"))
        submit(operator, context)

    monkeypatch.setattr(SparkSubmitOperator, "execute", overtake)
    if len(overtaken) == 2:
        launches.execute()
    else:
        with pytest.raises(AirflowFailException):
            launches.execute()
    assert len(launches.launched) == 1


def test_a_form_names_tables_as_a_list():
    run = SimpleNamespace(conf={"tables": ["a"]})
    assert find_tables(run, {"tables": []}) == ["a"]
    assert find_tables(SimpleNamespace(conf=None), {}) == []
    with pytest.raises(ConfigurationError, match="expected tables as a list of names, .* found 'orders'"):
        find_tables(SimpleNamespace(conf={"tables": "orders"}), {})


@pytest.mark.parametrize("nothing", ["", None, "[[1]]"])
def test_without_batches_the_task_says_that_plan_batch_has_left_none(nothing):
    with pytest.raises(AirflowFailException, match="plan_batch has left no batches"):
        read_named_batches(nothing)


@pytest.mark.parametrize(
    ("missed", "found"),
    [
        ("", []),
        (None, []),
        ("[]", []),
        (str(PLANS[0]), PLANS[:1]),
        (f"{PLANS[0]},{PLANS[1]}", PLANS),
        ([["t", [str(PLANS[0])]]], PLANS[:1]),  # of many tables, with render_template_as_native_obj
        (f'[["t", 7, ["{PLANS[0]}"]]]', PLANS[:1]),  # of an older version
    ],
)
def test_batches_that_no_report_has_announced_are_read_however_jinja_renders_them(missed, found):
    assert read_missed_plans(missed) == found
