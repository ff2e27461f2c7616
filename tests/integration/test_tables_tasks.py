"""The tasks of the DAG of many tables, with a real broker, ledger and Spark, and without Airflow."""

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from exactbatch import Pipeline, Tables, TableTopic, TopicPattern
from exactbatch.airflow import Connections, pipeline_dag
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.airflow.tasks import plan_batch, report_batch
from exactbatch.airflow.versions import AirflowException, AirflowFailException, AirflowSkipException, BaseHook
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.process_batches import process_batches
from exactbatch.errors import KafkaUnavailable, TablesUnfinished
from exactbatch.errors.exit_status import TERMINAL
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.planning import plan_tables
from exactbatch.planning.run import plan_run
from exactbatch.postgres.connection import transaction
from support.airflow_runs import Events, Run
from support.airflow_versions import start_metrics
from support.shop import Shop
from support.statsd_listener import listening

NAMES = ("customers", "event", "orders")
MODULE = "pipelines.shop_of_tasks"  # of a package that the search path has


class Tasks:
    """The tasks of the DAG; what spark-submit would start runs in this process."""

    def __init__(self, world, tables: Tables) -> None:
        self.world, self.tables = world, tables
        self.tasks = pipeline_dag(tables).task_dict
        self.submitted: list[list[str]] = []

    def plan(self, run: Run) -> str:
        run.dag_id = self.tables.name
        return str(self.tasks["plan_batch"].python_callable(dag_run=run, params={}, ti=run))

    def process(self, run: Run) -> None:
        operator = ProcessBatchOperator(
            task_id="process_batch",
            connections=Connections(),
            pipeline=f"{MODULE}:shop",
            batches=run.xcoms.get("batches", ""),
            is_tables=True,
        )
        hook = SimpleNamespace(_connection={"deploy_mode": None})
        operator._get_hook = lambda: hook  # type: ignore[method-assign]

        def submit(*_: object) -> None:
            batches = list(map(PlannedBatch.parse, operator.application_args[3:]))
            self.submitted.append([each.pipeline.rpartition(".")[2] for each in batches])
            engine = DriverEngine(self.world.spark)
            outcomes = process_batches(engine, self.tables, batches, self.world.settings)
            if any(each.error for each in outcomes):
                operator._hook = SimpleNamespace(_submit_sp=SimpleNamespace(returncode=TERMINAL))
                raise AirflowException("spark-submit failed")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SparkSubmitOperator, "execute", submit)
            patched.setattr(BaseHook, "get_connection", lambda _: None)
            operator.execute({"ti": run})

    def report(self, run: Run):
        events, report = Events(), self.tasks["report_batch"]
        report.python_callable(
            run.xcoms.get("batches", ""), run.xcoms.get("missed", ""), ti=run, outlet_events=events
        )
        for callback in report.on_success_callback:  # Airflow calls them once it has the event
            callback({"ti": run})
        return events.extra

    def check(self, run: Run) -> None:
        given = run.xcoms.get("batches", ""), run.xcoms.get("failed", "")
        self.tasks["check_tables"].python_callable(*given)

    def announced(self, run: Run) -> list[str]:
        """Return the tables whose batches the report announces."""
        return [each["pipeline"].removeprefix(self.tables.prefix) for each in self.report(run)["batches"]]


@pytest.fixture
def sessions(monkeypatch):
    """The names of the sessions with the ledger that tasks have opened."""
    names = []

    def session(postgres: str, name: str, *arguments: Any) -> Any:
        names.append(name)
        return ledger_session(postgres, name, *arguments)

    for module in (plan_batch, report_batch):
        monkeypatch.setattr(module, "ledger_session", session)
    return names


@pytest.fixture
def shop(stack, admin):
    shop = Shop(stack.kafka_properties, admin)
    shop.create(*NAMES)
    for name in NAMES:
        shop.produce(name, 1, 2)
    return shop


@pytest.fixture
def make_tasks(world, settings, monkeypatch):
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(Connections, "settings", lambda _: settings)

    def make(tables: Tables) -> Tasks:
        module.shop = tables  # type: ignore[attr-defined]
        with transaction(world.connection):
            for member in tables.members(f"{tables.name}.public.{name}" for name in NAMES):
                Ledger(world.connection).registry.register(member)
        return Tasks(world, tables)

    return make


def test_a_run_plans_processes_and_announces_all_tables(world, shop, make_tasks):
    tasks = make_tasks(shop.tables())
    run = Run("first")
    assert tasks.plan(run) == "process_batch"
    tasks.process(run)
    assert tasks.announced(run) == ["customers", "event", "orders"]
    tasks.check(run)
    assert world.rows("select count(*) from exactbatch.batch where announced_at is null") == [(0,)]
    with pytest.raises(AirflowSkipException, match="nothing new"):
        tasks.plan(Run("second"))
    tasks.process(run)
    assert len(tasks.submitted) == 1, "a task that is repeated submits nothing"


def test_all_tables_are_noted_as_announced_in_one_session_before_what_the_user_calls(
    world, shop, make_tasks, sessions
):
    """Airflow ends a task some seconds after its success, and a session for each of many tables takes longer."""
    seen = []

    def called(_: Any) -> None:
        seen.append(world.rows("select announced_at is not null from exactbatch.batch"))

    tasks = make_tasks(shop.tables())
    tasks.tasks = pipeline_dag(tasks.tables, default_args={"on_success_callback": called}).task_dict
    run = Run("first")
    tasks.plan(run)
    tasks.process(run)
    events, report = Events(), tasks.tasks["report_batch"]
    report.python_callable(run.xcoms["batches"], run.xcoms["missed"], ti=run, outlet_events=events)
    assert len(events.extra["batches"]) == 3
    sessions.clear()
    for callback in report.on_success_callback:
        callback({"ti": run})
    assert (sessions, seen) == (["exactbatch report"], [[(True,)] * 3])


def test_a_report_of_all_tables_waits_once_for_kafka(shop, make_tasks, monkeypatch, sessions):
    calls = []

    def unreachable(_: Any, group: str, __: Any) -> None:
        calls.append(group)
        raise KafkaUnavailable("no answer")

    tasks = make_tasks(shop.tables())
    run = Run("first")
    tasks.plan(run)
    tasks.process(run)
    monkeypatch.setattr(KafkaBroker, "commit_group", unreachable)
    monkeypatch.setattr(KafkaBroker, "partitions", lambda *_: pytest.fail("the report needs no offsets"))
    sessions.clear()
    events = Events()
    tasks.tasks["report_batch"].python_callable(
        run.xcoms["batches"], run.xcoms["missed"], ti=run, outlet_events=events
    )
    assert [each["pipeline"] for each in events.extra["batches"]] == [
        f"{shop.prefix}.{name}" for name in NAMES
    ]
    assert calls == [f"exactbatch.{shop.prefix}.customers"]
    assert sessions == ["exactbatch report"]


def test_a_bad_table_fails_the_task_and_its_next_try_submits_only_this_one(world, shop, make_tasks):
    shop.produce_bytes("orders", b"bad")
    tasks = make_tasks(shop.tables())
    run = Run("first")
    tasks.plan(run)
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="tables failed"):
            tasks.process(run)
    assert tasks.submitted == [["customers", "event", "orders"], ["orders"]]


def test_what_is_committed_is_announced_once_although_a_table_fails(world, shop, make_tasks):
    shop.produce_bytes("orders", b"bad")
    tasks = make_tasks(shop.tables())
    run = Run("first")
    tasks.plan(run)
    with pytest.raises(AirflowFailException):
        tasks.process(run)
    assert tasks.announced(run) == ["customers", "event"]
    with pytest.raises(AirflowSkipException, match="every committed batch has been announced"):
        tasks.report(run)
    # Somebody marks process_batch as success.
    with pytest.raises(AirflowFailException, match="is planned, not committed"):
        tasks.check(run)
    # Somebody allows rejects, and clears process_batch with its downstream tasks.
    tasks.tables = sys.modules[MODULE].shop = shop.tables(max_rejects=1)  # type: ignore[attr-defined]
    tasks.process(run)
    assert tasks.announced(run) == ["orders"]
    tasks.check(run)
    assert world.rows("select count(*) from exactbatch.batch where announced_at is null") == [(0,)]


@pytest.mark.parametrize("xcoms", [{}, {"missed": "", "failed": ""}], ids=["skipped", "failed late"])
def test_nothing_is_announced_without_a_plan(shop, make_tasks, xcoms):
    tasks = make_tasks(shop.tables())
    with pytest.raises(AirflowSkipException, match="plan_batch has left no batches"):
        tasks.report(Run("first", xcoms=xcoms))
    with pytest.raises(AirflowFailException, match="plan_batch has left no batches"):
        tasks.check(Run("first", xcoms=xcoms))


@pytest.mark.usefixtures("settles_soon")
def test_every_plan_sends_the_gauges_of_all_tables(shop, make_tasks, monkeypatch, admin):
    with listening() as listener:
        for name, value in listener.environment().items():
            monkeypatch.setenv(name, value)
        start_metrics()

        def lags(run: Run, callback: str) -> list[str]:
            for each in getattr(tasks.tasks["plan_batch"], callback):
                each({"ti": run})
            sent = [name for name, _ in listener.take() if name.endswith(".lag") and shop.prefix in name]
            return sorted(name.split("__")[1].removesuffix(".lag") for name in sent)

        tasks = make_tasks(shop.tables([*NAMES]))
        run = Run("first")
        tasks.plan(run)
        assert lags(run, "on_success_callback") == ["customers", "event", "orders"]
        tasks.process(run)
        tasks.report(run)
        with pytest.raises(AirflowSkipException):
            tasks.plan(second := Run("second"))
        listener.take()
        assert lags(second, "on_skipped_callback") == ["customers", "event", "orders"]
        gone = shop.topic("customers")
        admin.delete_topics([gone])[gone].result(30)
        with pytest.raises(AirflowFailException):
            tasks.plan(third := Run("third"))
        assert lags(third, "on_failure_callback") == ["event", "orders"]
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
    start_metrics()


@pytest.mark.usefixtures("settles_soon")
def test_a_table_that_is_gone_fails_the_run_after_the_others(world, shop, make_tasks, admin, monkeypatch):
    tasks = make_tasks(shop.tables([*NAMES]))
    run = Run("first")
    tasks.plan(run)
    tasks.process(run)
    tasks.report(run)
    gone = shop.topic("customers")
    admin.delete_topics([gone])[gone].result(30)
    shop.produce("event", 3)
    run = Run("second")
    assert tasks.plan(run) == "process_batch"
    tasks.process(run)
    with pytest.raises(AirflowFailException, match=rf"{shop.prefix}.customers: TopicMissing"):
        tasks.check(run)
    (member,) = tasks.tables.members([shop.topic("event")])
    assert audit(member, world.settings).rows == 3
    run = Run("third")
    with pytest.raises(AirflowFailException, match=r"TablesFailed: 1 of 3 tables .*TopicMissing"):
        tasks.plan(run)
    # The report of the second run was killed.
    monkeypatch.setattr(plan_batch, "UNANNOUNCED_AFTER", 0.0)
    run = Run("fourth")
    assert tasks.plan(run) == "process_batch"  # which has no batch to process
    assert json.loads(run.xcoms["batches"]) == []
    assert tasks.announced(run) == ["event"]
    with pytest.raises(AirflowFailException, match=rf"{shop.prefix}.customers: TopicMissing"):
        tasks.check(run)


@pytest.mark.parametrize("way", ["left out", "raises", "no name"])
def test_a_table_that_cannot_be_made_any_more_stops_no_other(world, shop, make_tasks, way):
    tasks = make_tasks(tables := shop.tables())
    run = Run("first")
    tasks.plan(run)

    def pipeline(topic: TableTopic) -> Pipeline | None:
        if topic.table == "orders":
            assert way == "left out", "no orders"
            return None
        return tables.pipeline(topic)

    topics = (
        TopicPattern(rf"{shop.prefix}\.public\.(?P<table>customers|event)")
        if way == "no name"
        else tables.topic_names
    )
    changed = replace(tables, pipeline=pipeline, topics=topics)
    tasks.tables = sys.modules[MODULE].shop = changed  # type: ignore[attr-defined]
    with pytest.raises(AirflowFailException, match="tables failed"):
        tasks.process(run)
    assert tasks.announced(run) == ["customers", "event"]
    with pytest.raises(AirflowFailException, match="is planned, not committed"):
        tasks.check(run)
    tasks.tables = sys.modules[MODULE].shop = tables  # type: ignore[attr-defined]
    tasks.process(run)
    assert tasks.submitted[-1] == ["orders"]
    assert tasks.announced(run) == ["orders"]


def test_a_replay_that_one_table_misses_is_tried_again_and_then_says_how_to_repeat_it(
    world, shop, make_tasks, monkeypatch
):
    tasks = make_tasks(shop.tables())
    tasks.plan(run := Run("first"))
    tasks.process(run)

    def unavailable(connection: Any, broker: Any, member: Pipeline, *given: Any, **more: Any) -> Any:
        if member.name.endswith(".event"):
            raise KafkaUnavailable("no leader")
        return plan_run(connection, broker, member, *given, **more)

    monkeypatch.setattr(plan_tables, "plan_run", unavailable)
    window = {"start": "2020-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z"}
    by_hand = Run("by hand", run_type="manual", conf=window, max_tries=1)
    with pytest.raises(
        TablesUnfinished, match=r"event: KafkaUnavailable: no leader\. The next try plans them"
    ):
        tasks.plan(by_hand)
    by_hand.try_number = 2
    assert tasks.plan(by_hand) == "process_replay"
    tasks.process(by_hand)
    assert tasks.submitted[-1] == ["customers", "orders"]
    with pytest.raises(AirflowFailException, match="No later run repeats this replay: clear plan_batch with"):
        tasks.check(by_hand)


def test_a_form_and_a_clear_replay_what_they_name(world, shop, make_tasks):
    tasks = make_tasks(shop.tables())
    run = Run("first")
    tasks.plan(run)
    tasks.process(run)
    asked = {"topic": shop.topic("orders"), "partition": 0, "from_offset": 0, "until_offset": 1}
    by_hand = Run("by hand", run_type="manual", conf={"ranges": [asked]})
    assert tasks.plan(by_hand) == "process_replay"
    tasks.process(by_hand)
    assert tasks.submitted[-1] == ["orders"]
    shop.produce("event", 5)
    shop.produce("orders", 5)
    only = Run("one", run_type="manual", conf={"tables": ["event"]})
    assert tasks.plan(only) == "process_batch"
    tasks.process(only)
    assert tasks.submitted[-1] == ["event"]
    only.clear_number, only.xcoms = 1, {}
    assert tasks.plan(only) == "process_replay"
    tasks.process(only)
    event = tasks.report(only)
    assert [each["kind"] for each in event["batches"]] == ["replay"]
    for member in tasks.tables.members(map(shop.topic, NAMES)):
        assert audit(member, world.settings).is_exact
