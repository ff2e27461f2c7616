"""What a user can do to a DAG run in Airflow, played on the tasks of pipeline_dag with a real broker and ledger.

Spark is played: a launch commits its batch with plain SQL. tests/e2e does the same with all parts.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from jinja2 import Environment

from exactbatch import Append, Pipeline
from exactbatch.airflow import Connections, pipeline_dag
from exactbatch.airflow import operator as operators
from exactbatch.airflow.tasks import plan_batch, report_batch
from exactbatch.airflow.versions import AirflowException, AirflowFailException, AirflowSkipException, BaseHook
from exactbatch.batch.publishing.fences import check_publishable
from exactbatch.errors import KafkaUnavailable
from exactbatch.errors.exit_status import TERMINAL
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.model import PlannedBatch
from exactbatch.operations.status import load_status
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support import staged_batches as staged
from support.airflow_runs import HOUR, T0, Events, Run
from support.airflow_versions import AirflowTaskTimeout, start_metrics
from support.statsd_listener import listening
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]


def cleared(run: Run) -> Run:
    """The run after a user has cleared all of it."""
    return replace(run, clear_number=run.clear_number + 1, start_date=run.start_date + HOUR, xcoms={})


class Buttons:
    """The DAG of a pipeline, and hands for its tasks."""

    def __init__(self, connection: Any, settings: Settings, pipeline: Pipeline) -> None:
        self.connection, self.settings, self.pipeline = connection, settings, pipeline
        self.tasks = pipeline_dag(pipeline).task_dict
        self.launched: list[int] = []

    def plan(self, run: Run) -> str:
        """The task that follows plan_batch."""
        run.dag_id = self.pipeline.name
        plan = self.tasks["plan_batch"]
        try:
            next_task = str(plan.python_callable(dag_run=run, params={}, ti=run))
        except AirflowSkipException:
            for callback in plan.on_skipped_callback:
                callback({"ti": run})
            raise
        for callback in plan.on_success_callback:
            callback({"ti": run})
        return next_task

    def batches(self, run: Run) -> str:
        """What the template of the batches becomes."""
        template = self.tasks["process_batch"].batches
        return str(Environment().from_string(template).render(ti=run))

    def process(self, run: Run) -> None:
        """What process_batch or process_replay does."""
        operator = operators.ProcessBatchOperator(
            task_id="process_batch",
            connections=Connections(),
            pipeline="x:x",
            batches=self.batches(run),
        )
        hook = SimpleNamespace(_connection={"deploy_mode": None})
        operator._get_hook = lambda: hook  # type: ignore[method-assign]

        def submit(*_: Any) -> None:
            batch_id = PlannedBatch.parse(operator.application_args[-1]).batch_id
            self.launched.append(batch_id)
            try:
                self.commit(batch_id)
            except Exception as error:
                operator._hook = SimpleNamespace(_submit_sp=SimpleNamespace(returncode=TERMINAL))
                raise AirflowException("spark-submit failed") from error

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SparkSubmitOperator, "execute", submit)
            patched.setattr(BaseHook, "get_connection", lambda _: None)
            operator.execute({"ti": run})

    def commit(self, batch_id: int) -> None:
        """What publish does to the ledger."""
        with transaction(self.connection):
            ledger = Ledger(self.connection)
            batch = ledger.batches.read(batch_id)
            check_publishable(ledger, self.pipeline, batch)
            if batch.status == "committed":
                return
            if batch.kind == "advance":
                ledger.plans.advance_stored_offsets(batch)
            else:
                ledger.coverage.cut(batch)
            ledger.coverage.add(batch)
            records = [(range_, len(range_)) for range_ in ledger.batches.read_ranges(batch_id)]
            rows = sum(count for _, count in records)
            ledger.batches.mark_committed(batch, rows=rows, rejected=0, tombstones=0, records=records)

    def report(self, run: Run) -> Any:
        """The asset event of report_batch. Raises when it sends none."""
        events, report = Events(), self.tasks["report_batch"]
        report.python_callable(self.batches(run), run.xcoms.get("missed", ""), ti=run, outlet_events=events)
        for callback in report.on_success_callback:  # Airflow calls them once it has the event
            callback({"ti": run})
        return events.extra

    def run(self, run: Run) -> Any:
        """All tasks of a run; its asset event."""
        if self.plan(run) != "report_batch":
            self.process(run)
        return self.report(run)

    def ranges(self, run: Run) -> list[tuple[int, int]]:
        with transaction(self.connection):
            found = Ledger(self.connection).batches.read_ranges(run.xcoms["batch_id"])
        return [(each.from_offset, each.until_offset) for each in found]

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with transaction(self.connection) as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]

    def states(self) -> list[tuple[int, str]]:
        return self.rows("select batch_id, status from exactbatch.batch order by 1")  # type: ignore[return-value]

    def troubles(self, log: KafkaBroker) -> str:
        return "\n".join(load_status(self.connection, log, self.pipeline).troubles)

    def age(self, what: str) -> None:
        """Let a column of all batches lie two hours back, which the ledger lets nobody do otherwise."""
        with transaction(self.connection) as cursor:
            cursor.execute("set local session_replication_role = replica")
            cursor.execute(f"update exactbatch.batch set {what} = {what} - interval '2 hours'")


@pytest.fixture
def topic(make_topic):
    """One partition with a record at the beginning of each of six hours."""
    topic = make_topic(retention_ms="-1")
    for hour in range(6):
        topic.produce(record(hour), timestamp=int((T0 + hour * HOUR).timestamp() * 1000))
    return topic


@pytest.fixture
def make_buttons(connection, settings, topic, make_pipeline, monkeypatch):
    monkeypatch.setattr(Connections, "settings", lambda _: settings)

    def make(**changes: Any) -> Buttons:
        pipeline = make_pipeline(topic, **changes)
        # Where the tasks, which know it by its name, find it.
        monkeypatch.setattr(staged, "pipeline_of_buttons", pipeline, raising=False)
        return Buttons(connection, settings, pipeline)

    return make


@pytest.fixture
def buttons(make_buttons):
    return make_buttons()


def test_run_announces_its_batch_and_next_has_nothing_to_do(buttons, topic):
    event = buttons.run(Run("one"))
    assert (event["batch_id"], event["missed"], event["beyond_stored"]) == (1, [], [])
    assert buttons.rows("select announced_at is not null from exactbatch.batch") == [(True,)]
    with pytest.raises(
        AirflowSkipException, match=f"nothing new in {topic.name}: every offset up to the last"
    ):
        buttons.plan(Run("two"))


def test_what_was_marked_as_success_and_never_committed_is_not_announced(buttons):
    """An advance, and a replay, which nobody else would do."""
    run = Run("one")
    assert buttons.plan(run) == "process_batch"
    with pytest.raises(AirflowFailException, match="batch 1 is planned, not committed: .*marked as success"):
        buttons.report(run)
    buttons.process(run)
    asked = {"topic": buttons.pipeline.name, "partition": 0, "from_offset": 1, "until_offset": 3}
    replay = Run("two", "manual", {"ranges": [asked]})
    assert buttons.plan(replay) == "process_replay"
    with pytest.raises(AirflowFailException, match="batch 2 is planned, not committed"):
        buttons.report(replay)


def test_a_replay_that_nobody_processes_is_shown(buttons, kafka_log, caplog):
    """Its process_replay was marked as success, or plan_batch was cleared alone."""
    run = Run("one")
    buttons.run(run)
    with caplog.at_level(logging.INFO):
        assert buttons.plan(cleared(run)) == "process_replay"
    assert "If you cleared plan_batch alone, clear process_replay, too" in caplog.text
    assert "it processes the ranges of batch 1 again" in caplog.text
    assert "batch 2" not in buttons.troubles(kafka_log)
    buttons.age("planned_at")
    assert "batch 2 (replay) was planned at" in buttons.troubles(kafka_log)
    assert "for run 'one' and has not committed" in buttons.troubles(kafka_log)
    later = cleared(cleared(run))
    buttons.run(later)
    buttons.age("planned_at")
    assert "has not committed" not in buttons.troubles(kafka_log)


def test_tasks_take_no_batch_of_another_run(buttons):
    first, second = Run("one"), Run("two", dag_id=buttons.pipeline.name)
    buttons.run(first)
    second.xcoms = dict(first.xcoms)
    for act in (buttons.process, buttons.report):
        with pytest.raises(
            AirflowFailException, match="planned for the run 'one' of .*this is the run 'two'"
        ):
            act(second)
        with pytest.raises(AirflowFailException, match="plan_batch has left no batch"):
            act(Run("three"))


def test_committed_batch_that_was_never_announced_is_announced_by_next_run(
    buttons, topic, kafka_log, monkeypatch
):
    lost, other = Run("one"), Run("two")
    buttons.plan(lost)
    buttons.process(lost)  # and report_batch never runs
    with pytest.raises(AirflowSkipException):
        buttons.plan(Run("at once"))  # its own report may still be under way
    monkeypatch.setattr(plan_batch, "UNANNOUNCED_AFTER", 0.0)
    buttons.age("committed_at")
    assert "batch 1: no asset event has announced its results. The next run" in buttons.troubles(kafka_log)
    assert buttons.plan(other) == "report_batch"
    event = buttons.report(other)
    assert (event["batch_id"], event["missed"]) == (1, [])
    assert event["ranges"][0]["until_offset"] == 6
    # A retry of the report tells the same; another run does not.
    assert buttons.report(other) == event
    with pytest.raises(AirflowSkipException):
        buttons.plan(Run("three"))
    topic.produce(record(6))
    fourth = Run("four")
    buttons.plan(fourth)
    buttons.process(fourth)
    topic.produce(record(7))
    event = buttons.run(Run("five"))
    assert (event["batch_id"], [each["batch_id"] for each in event["missed"]]) == (3, [2])
    assert event["missed"][0]["ranges"][0]["from_offset"] == 6
    assert buttons.rows("select from exactbatch.batch where announced_at is null") == []


def test_ranges_that_superseded_batch_has_committed_are_announced(make_buttons, topic, monkeypatch):
    monkeypatch.setattr(plan_batch, "UNANNOUNCED_AFTER", 0.0)
    buttons = make_buttons(commit="partition")
    for name in ("nothing of it", "some of it"):
        buttons.plan(Run(name))
    with transaction(buttons.connection) as cursor:  # what an executor commits of batch 2
        cursor.execute(
            "update exactbatch.batch_range set records = 6, rows = 6, rejected = 0, tombstones = 0 where batch_id = 2"
        )
        cursor.execute("update exactbatch.stored_offset set next_offset = 6")
        Ledger(buttons.connection).coverage.add(Ledger(buttons.connection).batches.read(2))
    topic.produce(record(6))
    following = Run("next")
    buttons.plan(following)
    buttons.process(following)

    def hangs(*_: Any) -> None:
        raise AirflowTaskTimeout

    with monkeypatch.context() as patched:  # Airflow has no event of this try
        patched.setattr(KafkaBroker, "commit_group", hangs)
        with pytest.raises(AirflowTaskTimeout):
            buttons.report(following)
    event = buttons.report(following)
    assert buttons.states() == [(1, "superseded"), (2, "superseded"), (3, "committed")]
    assert event["partial"] is False
    (missed,) = event["missed"]
    assert (missed["batch_id"], missed["ranges"][0]["until_offset"]) == (2, 6)
    counts = ("partial", "records", "rows", "rejected", "tombstones", "dropped")
    assert [missed[name] for name in counts] == [True, 6, 6, 0, 0, 0]
    with pytest.raises(AirflowSkipException):  # it is announced once
        buttons.plan(Run("after"))


def test_a_run_without_a_batch_announces_ranges_of_a_superseded_one(make_buttons, monkeypatch, capsys):
    monkeypatch.setattr(plan_batch, "UNANNOUNCED_AFTER", 0.0)
    buttons = make_buttons(commit="partition")
    lost = Run("lost")
    buttons.plan(lost)
    with transaction(buttons.connection) as cursor:
        cursor.execute("insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, "
                       "topic_id) select 1, topic, 1, 0, 9, topic_id from exactbatch.batch_range")  # fmt: skip
        cursor.execute(
            "update exactbatch.batch_range set records = 6, rows = 4, rejected = 1, tombstones = 1 where partition = 0"
        )
        cursor.execute("update exactbatch.stored_offset set next_offset = 6")
        cursor.execute("update exactbatch.batch set status = 'superseded'")
    following = Run("next")
    assert buttons.plan(following) == "report_batch"
    event = buttons.report(following)
    assert [event[name] for name in ("batch_id", "partial", "records", "rows", "rejected")] == [
        1,
        True,
        6,
        4,
        1,
    ]
    assert [(each["partition"], each["until_offset"]) for each in event["ranges"]] == [(0, 6)]
    text = " ".join(capsys.readouterr().out.split())
    assert "(advance, superseded, 1 of 2 ranges committed)" in text
    assert "4 rows · 1 rejected · 1 tombstones · 0 dropped" in text
    with pytest.raises(AirflowSkipException):
        buttons.plan(Run("after"))


def test_lag_tools_and_a_broker_that_is_gone_fail_no_report(buttons, monkeypatch, caplog):
    run = Run("one")
    buttons.plan(run)
    buttons.process(run)

    def refuse(*_: Any) -> Any:
        raise RuntimeError("GroupAuthorizationFailed")

    def unavailable(*_: Any) -> Any:
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(KafkaBroker, "commit_group", refuse)
    monkeypatch.setattr(KafkaBroker, "known_partitions", unavailable)
    with caplog.at_level(logging.WARNING):
        assert buttons.report(run)["batch_id"] == 1
    assert "lag tools do not see this batch yet" in caplog.text
    assert "cannot determine the pipeline's lag: KafkaUnavailable" in caplog.text


def test_report_that_dies_after_all_its_work_leaves_batch_to_next_run(buttons, monkeypatch):
    """Airflow has no event then: only what it has may count as announced."""
    monkeypatch.setattr(plan_batch, "UNANNOUNCED_AFTER", 0.0)
    run = Run("one")
    buttons.plan(run)
    buttons.process(run)

    def hangs(*_: Any) -> None:
        raise AirflowTaskTimeout

    with monkeypatch.context() as patched:
        patched.setattr(KafkaBroker, "commit_group", hangs)
        with pytest.raises(AirflowTaskTimeout):
            buttons.report(run)
    assert buttons.plan(Run("two")) == "report_batch"
    assert buttons.report(run)["batch_id"] == 1
    with pytest.raises(AirflowSkipException):
        buttons.plan(Run("three"))


def test_what_user_calls_on_success_is_called_beside_announcement(buttons):
    called = []
    buttons.tasks = pipeline_dag(
        buttons.pipeline, default_args={"on_success_callback": lambda _: called.append(1)}
    ).task_dict
    buttons.run(Run("one"))
    assert called == [1, 1]  # of plan_batch and of report_batch
    assert buttons.rows("select announced_at is not null from exactbatch.batch") == [(True,)]


def test_a_batch_is_noted_as_announced_before_what_the_user_calls(buttons):
    """Airflow ends a task some seconds after its success: callbacks that come late may never run."""
    noted = []
    buttons.tasks = pipeline_dag(
        buttons.pipeline,
        default_args={
            "on_success_callback": lambda _: noted.append(
                buttons.rows("select announced_at is not null from exactbatch.batch")
            )
        },
    ).task_dict
    buttons.run(Run("one"))
    assert noted == [[(False,)], [(True,)]]  # after plan_batch, and after report_batch


def test_run_tested_before_says_that_it_processes_nothing(buttons, topic, caplog):
    """`airflow dags test` with the same date has the same run id, start and clear number each time."""
    buttons.run(Run("manual__2026-01-05", "manual"))
    topic.produce(record(6))
    again = Run("manual__2026-01-05", "manual")
    buttons.plan(again)
    assert "batch 1 of this run has committed before" in caplog.text
    assert buttons.ranges(again) == [(0, 6)]


def test_keys_that_airflow_has_in_runs_configuration_are_no_mistakes(buttons):
    assert buttons.plan(Run("one", "manual", {"airflow/task_span_detail_level": 2})) == "process_batch"


def test_a_replay_that_a_later_one_has_done_is_no_failure(buttons):
    buttons.run(Run("one"))
    asked = {"topic": buttons.pipeline.name, "partition": 0, "from_offset": 1, "until_offset": 3}
    wider = {**asked, "until_offset": 5}
    older, newer = (Run(each["until_offset"], "manual", {"ranges": [each]}) for each in (asked, wider))
    for run in (older, newer):
        run.run_id = str(run.run_id)
        assert buttons.plan(run) == "process_replay"
    buttons.process(newer)
    buttons.launched.clear()
    buttons.process(older)
    assert buttons.launched == []
    assert buttons.states() == [(1, "committed"), (2, "superseded"), (3, "committed")]
    with pytest.raises(AirflowSkipException, match="batch 2, a replay, was overtaken: batch 3"):
        buttons.report(older)


def test_a_replay_of_which_a_later_one_has_done_a_part_fails(buttons):
    buttons.run(Run("one"))
    asked = {"topic": buttons.pipeline.name, "partition": 0, "from_offset": 1, "until_offset": 3}
    older = Run("older", "manual", {"ranges": [{**asked, "until_offset": 5}]})
    newer = Run("newer", "manual", {"ranges": [asked]})
    for run in (older, newer):
        buttons.plan(run)
    buttons.process(newer)
    with pytest.raises(AirflowFailException, match="cannot succeed by trying again"):
        buttons.process(older)


def test_run_deleted_and_created_again_moves_forward_when_it_is_cleared(buttons, topic, monkeypatch):
    """Also where there was nothing new in its second life, or Kafka did not answer in its third."""
    buttons.run(Run("again"))
    second = Run("again", start_date=T0 + 5 * HOUR)
    for _ in range(2):  # an automatic retry is no other life
        with pytest.raises(AirflowSkipException, match="nothing new"):
            buttons.plan(second)
    topic.produce(record(6))
    with pytest.raises(AirflowSkipException, match="nothing to process again"):
        buttons.plan(replace(cleared(second), clear_number=2))

    def unavailable(*_: Any) -> Any:
        raise KafkaUnavailable("no broker answers")

    third = Run("again", start_date=T0 + 9 * HOUR)
    with monkeypatch.context() as patched:
        patched.setattr(KafkaBroker, "processed_partitions", unavailable)
        with pytest.raises(Exception, match="no broker answers"):
            buttons.plan(third)
    third = replace(cleared(third), clear_number=2)
    assert buttons.plan(third) == "process_batch"
    assert buttons.ranges(third) == [(6, 7)]
    buttons.process(third)
    fourth = replace(cleared(third), clear_number=4)
    assert buttons.plan(fourth) == "process_replay"
    assert buttons.ranges(fourth) == [(6, 7)]


def test_a_run_that_found_nothing_processes_nothing_when_it_is_cleared(buttons, topic):
    """What has arrived since is not the run's: it would be announced under an old run."""
    buttons.run(Run("one"))
    empty = Run("two", hour=6)
    for _ in range(2):  # an automatic retry plans like the first try
        with pytest.raises(AirflowSkipException, match=f"nothing new in {topic.name}"):
            buttons.plan(empty)
    topic.produce(record(6))
    for again in (cleared(empty), cleared(cleared(empty))):
        with pytest.raises(AirflowSkipException, match="nothing to process again: when this run was planned"):
            buttons.plan(again)
    assert buttons.states() == [(1, "committed")]
    # A run that is created again under its ID moves forward, and so does every other run.
    anew = replace(empty, start_date=T0 + 9 * HOUR)
    assert buttons.plan(anew) == "process_batch"
    assert buttons.plan(replace(cleared(anew), clear_number=3)) == "process_batch"
    assert buttons.run(Run("three"))["ranges"][0]["from_offset"] == 6


def test_a_run_that_found_nothing_processes_its_interval_when_a_backfill_takes_it_over(buttons):
    buttons.run(Run("one"))
    empty = Run("two", hour=3)
    with pytest.raises(AirflowSkipException):
        buttons.plan(empty)
    backfill = replace(cleared(empty), run_type="backfill")
    assert buttons.run(backfill)["ranges"][0]["from_offset"] == 3


def test_a_retry_of_a_run_that_found_nothing_takes_what_has_arrived(buttons, topic):
    """The try was killed before Airflow knew that there was nothing. Its batch is the run's then."""
    buttons.run(Run("one"))
    run = Run("two")
    with pytest.raises(AirflowSkipException):
        buttons.plan(run)
    topic.produce(record(6))
    assert buttons.plan(run) == "process_batch"
    assert buttons.plan(cleared(run)) == "process_batch"  # it had a batch, which never committed


def test_backfill_over_what_was_never_processed_fails_and_says_so(buttons, topic):
    """The scheduled run of this hour has failed; a user repairs it with a backfill."""
    run = Run("scheduled__2", hour=2)
    buttons.plan(run)
    backfill = replace(cleared(run), run_type="backfill")
    for _ in range(2):
        with pytest.raises(AirflowFailException) as caught:
            buttons.plan(backfill)
        assert f"1 offsets of the window are above the stored offsets: {topic.name}[0] 2..3" in str(
            caught.value
        )
        assert "Let the next advance process them" in str(caught.value)
        backfill = cleared(backfill)
    buttons.run(Run("next"))
    assert buttons.run(backfill)["ranges"][0]["from_offset"] == 2


def test_what_a_window_leaves_to_the_next_advance_is_named(make_buttons, topic, caplog):
    from exactbatch import Limits

    buttons = make_buttons(limits=Limits(max_offsets=4))
    buttons.run(Run("one"))
    run = Run("two", "manual", {"start": T0.isoformat(), "end": (T0 + 6 * HOUR).isoformat()})
    with caplog.at_level(logging.WARNING):
        event = buttons.run(run)
    assert f"2 offsets of the window are above the stored offsets: {topic.name}[0] 4..6" in caplog.text
    assert event["beyond_stored"] == [f"{topic.name}[0] 4..6"]
    assert event["ranges"][0]["until_offset"] == 4


def test_backfill_of_whole_batches_is_refused_before_it_processes_them_for_each_interval(make_buttons, topic):
    buttons = make_buttons(sink=Append(f'public."{topic.name}"', lineage="batch"))
    buttons.run(Run("one"))
    with pytest.raises(
        AirflowFailException, match="holds parts of batches .*as a whole .*: 1. .*Trigger one run"
    ):
        buttons.plan(Run("hour", "backfill", hour=2))
    whole = Run("whole", "manual", {"start": T0.isoformat(), "end": (T0 + 6 * HOUR).isoformat()})
    assert buttons.run(whole)["ranges"][0]["until_offset"] == 6


def test_interval_asked_for_too_early_is_processed_later(buttons, topic):
    """Records that are sent late, into hours for which Kafka had none at the time."""
    buttons.run(Run("one"))
    early = Run("early", "backfill", hour=8)
    with pytest.raises(
        AirflowSkipException, match="no processed offset of .* is in the window 2026-01-05 08"
    ):
        buttons.plan(early)
    assert buttons.rows("select from exactbatch.time_boundary") == []
    for hour in (8, 9):
        topic.produce(record(hour), timestamp=int((T0 + hour * HOUR).timestamp() * 1000))
    buttons.run(Run("two"))
    late = replace(cleared(early), clear_number=1)
    assert buttons.run(late)["ranges"][0]["from_offset"] == 6


def test_record_with_wrong_time_does_not_hide_what_follows_it(
    make_buttons, make_topic, connection, kafka_log
):
    """Not one from the future, which is seen without looking behind it."""
    buttons = make_buttons()
    for hour in (300, 6, 7):
        at = int((T0 + hour * HOUR).timestamp() * 1000)
        Topic(buttons.pipeline.name, dict(buttons.settings.kafka)).produce(record(hour), timestamp=at)
    buttons.run(Run("one"))
    with pytest.raises(AirflowFailException) as caught:
        buttons.plan(Run("six", "backfill", hour=6))
    assert "[0] offset 6: the record has the timestamp 2026-01-17 12:00:00 UTC" in str(caught.value)
    assert "and the later offset 7 has 2026-01-05 06:00:00 UTC" in str(caught.value)
    assert buttons.run(Run("four", "backfill", hour=4))["ranges"][0]["from_offset"] == 4


def test_airflow_tasks_test_plans_nothing(buttons):
    with pytest.raises(AirflowFailException, match="would plan a real batch.*`exactbatch plan`"):
        buttons.plan(Run("__airflow_temporary_run_2026-01-05T00:00:00__"))
    assert buttons.states() == []


def test_unannounced_batches_and_waiting_replays_are_found_by_their_indexes(buttons):
    """However many batches there are."""
    with transaction(buttons.connection) as cursor:
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin, dag_id, run_id, status, committed_at, records, "
            "rows, rejected, tombstones, dropped, announced_at) select name, 'replay', 'manual', name, n::text, "
            "'committed', now(), 0, 0, 0, 0, 0, now() from exactbatch.pipeline, generate_series(1, 20000) n"
        )
        cursor.execute("analyze exactbatch.batch")
        for index, condition in (
            ("batch_unannounced", "announced_at is null and status <> 'planned' and dag_id is not null"),
            ("batch_planned_replay", "kind = 'replay' and status = 'planned'"),
        ):
            cursor.execute(f"explain select from exactbatch.batch where pipeline = 'x' and {condition}")
            assert index in "".join(row[0] for row in cursor.fetchall())
        began = time.monotonic()
        for _ in range(100):
            assert Ledger(buttons.connection).batches.find_unannounced(buttons.pipeline, age=0, limit=9) == []
            assert (
                Ledger(buttons.connection).batches.find_unfinished_replays(buttons.pipeline, age=0, limit=9)
                == []
            )
        assert time.monotonic() - began < 10


@pytest.fixture
def statsd(monkeypatch):
    """Airflow's StatsD client sends to this listener."""
    with listening() as listener:
        for name, value in listener.environment().items():
            monkeypatch.setenv(name, value)
        start_metrics()
        yield listener
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
        start_metrics()


def untagged(statsd: Any, buttons: Buttons) -> dict[str, str]:
    """What was sent since the last call under names that have the pipeline in them; each name once."""
    prefix = f"airflow.exactbatch.{buttons.pipeline.name}."
    found = [(name.removeprefix(prefix), value) for name, value in statsd.take() if name.startswith(prefix)]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_each_batch_counts_once_in_metrics_and_gauges_follow_the_pipeline(buttons, topic, statsd):
    run = Run("one")
    buttons.plan(run)
    assert untagged(statsd, buttons) == {"lag": "6|g"}  # no advance has committed, and retention is unlimited
    buttons.process(run)
    assert untagged(statsd, buttons) == {}
    buttons.report(run)
    sent = untagged(statsd, buttons)
    assert (sent["lag"], sent["advance.rows"], sent["advance.rejects"]) == ("0|g", "6|c", "0|c")
    assert set(sent) - {"lag", "advance.rows", "advance.rejects"} == {
        "advance.batch.duration",
        "last_commit_age",
    }
    buttons.report(run)  # a new try, or cleared
    assert set(untagged(statsd, buttons)) == {"lag", "last_commit_age"}
    with pytest.raises(AirflowSkipException):
        buttons.plan(Run("nothing new"))
    assert set(untagged(statsd, buttons)) == {"lag", "last_commit_age"}
    topic.produce(record(6), record(7))
    buttons.plan(Run("two"))
    assert untagged(statsd, buttons)["lag"] == "2|g"


def test_a_batch_that_is_announced_late_counts_then(buttons, topic, statsd, monkeypatch):
    monkeypatch.setattr(plan_batch, "UNANNOUNCED_AFTER", 0.0)
    lost = Run("one")
    buttons.plan(lost)
    buttons.process(lost)  # and report_batch never runs
    topic.produce(record(6))
    statsd.take()
    buttons.run(Run("two"))
    counted = [value for name, value in statsd.take() if name == "airflow.exactbatch.rows"]
    assert sorted(counted) == ["1|c", "6|c"]


def test_the_gauges_of_the_ledger_are_sent_if_kafka_does_not_answer(buttons, statsd, monkeypatch):
    run = Run("one")
    buttons.run(run)
    statsd.take()

    def unavailable(*_: Any) -> Any:
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(KafkaBroker, "partitions", unavailable)
    with pytest.raises(KafkaUnavailable):  # Airflow logs an error of a callback
        report_batch.send_gauges([buttons.pipeline.name], Connections())
    assert set(untagged(statsd, buttons)) == {"last_commit_age"}
