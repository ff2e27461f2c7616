"""Positions of the source order changes by their commits, and positions that go back are noticed."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from typer.testing import CliRunner

from exactbatch import Append, Debezium, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, PositionsWentBack
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.compact import compact_changes
from exactbatch.operations.new_epoch import begin_epoch
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.sinks.writers import find_writer
from support.topics import await_leaders

VERSION = ("commit_lsn", "lsn")
HISTORIES = pytest.mark.parametrize("history", [True, False])


def event(op: str, key: int, name: str | None, commit: int | None, lsn: int, **source: Any) -> bytes:
    """An event of Postgres's connector."""
    row = {"id": key, "name": name}
    sequence = json.dumps([None if commit is None else str(commit), str(lsn)], separators=(",", ":"))
    placed = {} if source.get("snapshot") == "incremental" else {"lsn": lsn}
    value = {
        "before": {"id": key, "name": None} if op == "d" else None,
        "after": None if op == "d" else row,
        "source": {**placed, "sequence": sequence, "snapshot": "false", **source},
        "op": op,
    }
    return json.dumps(value).encode()


@pytest.fixture
def load(world, make_topic, make_pipeline):
    """Make a pipeline over a new topic, and return it with a function that produces events and runs a batch."""

    def made(*, history: bool, partitions: int = 1, version: str | None = "postgres", **options: Any) -> Any:
        topic = make_topic(partitions=partitions)
        sink = Upsert(
            f'public."{topic.name}"', key=("id",), version=VERSION if version else None, history=history
        )
        value = Debezium("id int, name text", version=version, **options)
        pipeline = make_pipeline(topic, value=value, sink=sink)

        def run(*events: bytes, partition: int = 0) -> Any:
            for value in events:
                topic.produce(value, partition=partition)
            return world.run(pipeline)

        return pipeline, run

    return made


def rows(world, pipeline):
    world.connection.rollback()
    return world.rows(f"select id, name from {pipeline.traits.target} order by id")


def is_exact(world, pipeline):
    world.connection.rollback()
    return audit(pipeline, world.settings, values=True).is_exact


@HISTORIES
@pytest.mark.parametrize("version", ["postgres", None])
def test_an_insert_that_was_logged_before_the_delete_that_it_waited_for_is_newer(
    world, load, history, version
):
    """The insert's position is smaller: it is written before its key is checked, which waits for the other session."""
    pipeline, run = load(history=history, version=version)
    run(event("c", 1, "old", None, 22178000))
    run(
        event("u", 1, "closing", 22178100, 22178672),
        event("d", 1, None, 22178100, 22178832),
        event("c", 1, "new", 22178900, 22178768),
    )
    assert rows(world, pipeline) == [(1, "new")]
    assert is_exact(world, pipeline)


@HISTORIES
def test_changes_that_a_connector_repeats_do_no_harm(world, load, history):
    pipeline, run = load(history=history)
    events = [event("c" if lsn == 10 else "u", 1, f"at {lsn}", lsn - 1, lsn) for lsn in range(10, 90, 10)]
    run(*events)
    run(*events[4:6])  # a batch ends within the run
    assert rows(world, pipeline) == [(1, "at 80")]
    run(*events[6:], event("u", 1, "at 90", 89, 90))
    assert rows(world, pipeline) == [(1, "at 90")]
    run(*events[7:], *events[7:])
    assert rows(world, pipeline) == [(1, "at 90")]
    assert is_exact(world, pipeline)


@HISTORIES
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_the_first_transaction_that_a_connector_repeats_has_another_commit_before_it(
    world, load, history, in_one_batch
):
    """None at first; then the position of the last change that it had processed."""
    pipeline, run = load(history=history)
    first = [event("r", 1, "a", None, 100, snapshot="last"), event("d", 1, None, None, 110)]
    second = event("c", 1, "b", 120, 130)
    if not in_one_batch:
        run(*first, second)
        first = []
    run(*first, second, event("d", 1, None, 100, 110))
    assert rows(world, pipeline) == [(1, "b")]
    run(event("d", 1, None, 100, 110), second)
    assert rows(world, pipeline) == [(1, "b")]
    assert is_exact(world, pipeline)


@HISTORIES
@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("op", ["u", "d", "r"])
def test_positions_that_went_back_are_an_error_until_an_epoch_begins(
    world, load, replays, history, in_one_batch, op
):
    pipeline, run = load(history=history)
    before = [event("c", 1, "a", 900, 1000), event("u", 1, "b", 1900, 2000), event("c", 2, "c", 2100, 2200)]
    after = event(op, 1, "of the restored server", None if op == "r" else 1000, 1100, snapshot="first")
    if in_one_batch:
        offset, events = 3, [*before, after]
    else:
        run(*before)
        offset, events = 3, [after]
    with pytest.raises(PositionsWentBack, match=r"the position of the change \(id = 1") as caught:
        run(*events)
    topic = pipeline.topic_names[0]
    assert (caught.value.topic, caught.value.from_offset) == (topic, offset)
    assert f"exactbatch new-epoch {pipeline.name} --from {topic}:0:{offset}" in str(caught.value)
    assert rows(world, pipeline) == ([] if in_one_batch else [(1, "b"), (2, "c")])
    broker = KafkaBroker(world.settings.kafka)
    with pytest.raises(ConfigurationError, match="are not processed yet"):
        begin_epoch(world.connection, broker, pipeline, starts={})
    with pytest.raises(ConfigurationError, match="has no partition"):
        begin_epoch(world.connection, broker, pipeline, starts={(topic, 0): offset, (topic, 7): 0})
    assert begin_epoch(world.connection, broker, pipeline, starts={(topic, 0): offset}) == {
        (topic, 0): offset
    }
    world.run(pipeline)
    expected = [(2, "c")] if op == "d" else [(1, "of the restored server"), (2, "c")]
    assert rows(world, pipeline) == expected
    assert is_exact(world, pipeline)
    run(event("u", 2, "d", 1200, 1300))
    assert rows(world, pipeline) == [*expected[:-1], (2, "d")]
    assert is_exact(world, pipeline)
    if history:
        replays.run(pipeline, ReplayRequest(ranges=(RequestedRange(topic, 0, 0, 5),)))
        assert rows(world, pipeline) == [*expected[:-1], (2, "d")]
        assert is_exact(world, pipeline)


@HISTORIES
def test_rows_of_an_incremental_snapshot_are_as_new_as_the_stream_is(world, load, history):
    pipeline, run = load(history=history)
    run(event("c", 1, "a", 900, 1000), event("c", 2, "b", 1100, 1200))
    run(event("r", 1, "healed", 1300, 1400, snapshot="incremental"))
    run(event("u", 2, "c", 1300, 1500))
    assert rows(world, pipeline) == [(1, "healed"), (2, "c")]


@HISTORIES
def test_equal_positions_in_two_partitions_are_an_error_unless_the_changes_are_equal(world, load, history):
    pipeline, run = load(history=history, partitions=2)
    snapshot = {"snapshot": "true"}
    run(event("r", 1, "Monday", None, 100, **snapshot), partition=1)
    with pytest.raises(KeyOnTwoPartitions, match=r"the latest have the same version"):
        run(event("r", 1, "Tuesday", None, 200, **snapshot), partition=0)
    assert rows(world, pipeline) == [(1, "Monday")]
    # A later change decides.
    run(event("u", 1, "Wednesday", 300, 310), partition=0)
    assert rows(world, pipeline) == [(1, "Wednesday")]
    # The connector repeats it after the partitions were added.
    run(event("u", 1, "Wednesday", 300, 310), partition=1)
    assert rows(world, pipeline) == [(1, "Wednesday")]


@HISTORIES
def test_a_key_whose_positions_went_back_is_noticed_when_its_latest_change_is_of_another_partition(
    world, load, history
):
    pipeline, run = load(history=history, partitions=2)
    run(event("c", 1, "a", 900, 1000))
    run(event("u", 1, "b", 1900, 2000), partition=1)
    with pytest.raises(PositionsWentBack):
        run(event("u", 1, "c", 1000, 1500), event("u", 1, "d", 1000, 1200), partition=1)
    assert rows(world, pipeline) == [(1, "b")]


@HISTORIES
def test_a_deleted_key_whose_positions_went_back_is_noticed(world, load, history):
    pipeline, run = load(history=history)
    run(event("c", 1, "a", 900, 1000), event("d", 1, None, 1900, 2000))
    with pytest.raises(PositionsWentBack):
        run(event("c", 1, "b", 1000, 1100))
    assert rows(world, pipeline) == []


@HISTORIES
def test_a_repeat_with_another_value_or_of_a_later_record_is_none(world, load, history):
    pipeline, run = load(history=history)
    run(event("c", 1, "a", 900, 1000), event("u", 1, "b", 1900, 2000))
    with pytest.raises(PositionsWentBack, match="offset 2: "):
        run(event("c", 1, "other", 900, 1000))
    # Nor does it repeat one that went back itself.
    with pytest.raises(PositionsWentBack, match="offset 3: "):
        run(event("c", 1, "other", 900, 1000))
    assert rows(world, pipeline) == [(1, "b")]


@HISTORIES
def test_a_replay_of_changes_that_a_connector_repeated(world, load, replays, history):
    pipeline, run = load(history=history)
    events = [event("u", 1, f"at {lsn}", lsn - 1, lsn) for lsn in range(10, 60, 10)]
    run(*events, *events[2:4])
    run(*events[4:], event("u", 2, "b", 99, 100))
    topic = pipeline.topic_names[0]
    for first, until in ((0, 9), (5, 7), (2, 4), (0, 3)):
        replays.run(pipeline, ReplayRequest(ranges=(RequestedRange(topic, 0, first, until),)))
        expected = "at 30" if not history and until == 3 else "at 50"
        assert rows(world, pipeline)[0] in ((1, expected), (1, "at 50"))
        assert is_exact(world, pipeline)


def test_changes_of_a_batch_that_are_behind_and_no_repeats_leave_nothing_in_any_target(
    world, make_topic, make_pipeline
):
    topic = make_topic()
    target = f'public."{topic.name}"'
    sink = [Append(f'public."{topic.name}_raw"'), Upsert(target, key=("id",), version=VERSION)]
    pipeline = make_pipeline(topic, value=Debezium("id int, name text", version="postgres"), sink=sink)
    topic.produce(event("c", 1, "a", 900, 1000))
    world.run(pipeline)
    topic.produce(event("u", 1, "b", 100, 110))
    with pytest.raises(PositionsWentBack):
        world.run(pipeline)
    read = f'select name from public."{topic.name}_raw" order by kafka_offset'
    assert world.rows(read) == [("a",)]
    broker = KafkaBroker(world.settings.kafka)
    begin_epoch(world.connection, broker, pipeline, starts={(topic.name, 0): 1})
    world.run(pipeline)
    assert world.rows(read) == [("a",), ("b",)]
    assert world.rows(f"select name from {target}") == [("b",)]
    assert is_exact(world, pipeline)


@HISTORIES
def test_an_epoch_begins_in_all_pipelines_that_share_a_target(world, make_topic, make_pipeline, history):
    topics = make_topic(), make_topic()
    sink = Upsert(f'public."{topics[0].name}"', key=("id",), version=VERSION, history=history)
    value = Debezium("id int, name text", version="postgres")
    one, two = (make_pipeline(topic, value=value, sink=sink) for topic in topics)
    topics[0].produce(event("c", 1, "a", 900, 1000), event("c", 2, "b", 900, 1001))
    topics[1].produce(event("c", 3, "c", 900, 1002))
    world.run(one)
    world.run(two)
    broker = KafkaBroker(world.settings.kafka)
    begun = begin_epoch(world.connection, broker, one)
    assert begun == {(topics[0].name, 0): 2, (topics[1].name, 0): 1}
    topics[1].produce(event("u", 1, "moved", 10, 20), event("u", 3, "d", 10, 30))
    topics[0].produce(event("u", 2, "e", 10, 40))
    world.run(two)
    world.run(one)
    assert rows(world, one) == [(1, "moved"), (2, "e"), (3, "d")]
    assert is_exact(world, one)
    assert is_exact(world, two)


@HISTORIES
def test_changes_of_a_partition_that_was_added_after_an_epoch_began_belong_to_it(world, load, admin, history):
    pipeline, run = load(history=history)
    topic = pipeline.topic_names[0]
    run(event("c", 1, "a", 900, 1000))
    broker = KafkaBroker(world.settings.kafka)
    begin_epoch(world.connection, broker, pipeline)
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(30)
    await_leaders(admin, topic, 2)
    # A new producer: another one does not know the partition yet.
    producer = Producer(dict(world.settings.kafka))
    producer.produce(topic, event("u", 1, "b", 10, 20), partition=1)
    assert producer.flush(30) == 0
    run()
    assert rows(world, pipeline) == [(1, "b")]
    assert is_exact(world, pipeline)


def test_compaction_keeps_the_latest_change_of_the_latest_epoch(world, load):
    pipeline, run = load(history=True)
    run(event("c", 1, "a", 900, 1000), event("u", 1, "b", 1900, 2000), event("c", 2, "c", 1900, 2001))
    broker = KafkaBroker(world.settings.kafka)
    begin_epoch(world.connection, broker, pipeline)
    run(event("u", 1, "d", 10, 20), event("d", 2, None, 10, 30))
    assert compact_changes(world.connection, broker, pipeline, before=None).dropped == 3
    left = world.rows(
        f"select kafka_offset from {find_writer(pipeline.traits).lineage_table.table.spec} order by 1"
    )
    assert left == [(3,), (4,)]
    assert rows(world, pipeline) == [(1, "d")]
    run(event("u", 1, "e", 30, 40))
    assert rows(world, pipeline) == [(1, "e")]
    assert is_exact(world, pipeline)


def test_a_truncate_deletes_what_is_of_an_earlier_epoch(world, load):
    pipeline, run = load(history=True, partitions=2, truncate="apply")
    run(event("c", 1, "a", 900, 1000), event("t", 0, None, 900, 990))
    assert rows(world, pipeline) == [(1, "a")]
    broker = KafkaBroker(world.settings.kafka)
    assert not compact_changes(world.connection, broker, pipeline, before=None).dropped
    begin_epoch(world.connection, broker, pipeline)
    run(event("c", 2, "b", 40, 50), event("c", 3, "c", 200, 210))
    assert not compact_changes(world.connection, broker, pipeline, before=None).dropped
    run(event("t", 0, None, 90, 100), partition=1)
    assert rows(world, pipeline) == [(3, "c")]
    assert is_exact(world, pipeline)
    assert compact_changes(world.connection, broker, pipeline, before=None).dropped
    run(event("c", 4, "late", 60, 70), partition=1)
    assert rows(world, pipeline) == [(3, "c")]
    assert is_exact(world, pipeline)


@HISTORIES
def test_a_repeat_of_a_record_that_the_log_no_longer_has_is_not_known_to_be_one(world, load, admin, history):
    pipeline, run = load(history=history)
    first = event("c", 1, "a", 900, 1000)
    run(first, event("u", 1, "b", 1900, 2000), event("u", 1, "c", 2900, 3000))
    for future in admin.delete_records([TopicPartition(pipeline.topic_names[0], 0, 1)]).values():
        future.result(30)
    with pytest.raises(PositionsWentBack, match="as far as the log goes back, to offset 1"):
        run(first)


def test_an_epoch_begins_at_no_processed_record_and_only_where_positions_order_changes(world, load):
    pipeline, run = load(history=True)
    run(event("c", 1, "a", 900, 1000), event("u", 1, "b", 1900, 2000))
    broker = KafkaBroker(world.settings.kafka)
    at = pipeline.topic_names[0], 0
    for wrong in (0, 1, 3):
        with pytest.raises(ConfigurationError, match=rf"from 2, which is stored, to 2.*found {wrong}"):
            begin_epoch(world.connection, broker, pipeline, starts={at: wrong})
    assert world.rows("select count(*) from exactbatch.position_epoch") == [(0,)]
    long_ago, soon = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=1)
    assert begin_epoch(world.connection, broker, pipeline, at=long_ago) == {at: 2}
    assert begin_epoch(world.connection, broker, pipeline, at=soon) == {at: 2}
    without = replace(pipeline, value=Debezium("id int, name text, commit_lsn bigint, lsn bigint"))
    with pytest.raises(ConfigurationError, match="There is no epoch to begin"):
        begin_epoch(world.connection, broker, without)


def test_the_command_begins_an_epoch(world, load, settings, monkeypatch):
    pipeline, run = load(history=True)
    module = ModuleType("pipelines_of_positions")
    module.p = pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def command(*options: str) -> Any:
        return CliRunner().invoke(app, ["new-epoch", f"{module.__name__}:p", *options])

    run(event("c", 1, "a", 900, 1000))
    with pytest.raises(PositionsWentBack):
        run(event("u", 1, "b", 10, 20))
    topic = pipeline.topic_names[0]
    shown = CliRunner().invoke(app, ["status", f"{module.__name__}:p"])
    said_by_status = " ".join(shown.output.split())
    assert "PositionsWentBack" in said_by_status
    assert f"exactbatch new-epoch {pipeline.name} --from {topic}:0:1" in said_by_status
    for wrong, said in (
        ([], "expected either --from or --start, found neither"),
        (
            ["--from", f"{topic}:0:1", "--start", "2026-01-01"],
            "expected either --from or --start, found both",
        ),
        (["--from", f"{topic}:0"], "expected a record as TOPIC:PARTITION:OFFSET"),
        (["--from", f"{topic}:0:0"], "an epoch can begin at an offset from 1"),
        (["--from", "nothing:0:1", "--from", f"{topic}:0:1"], "has no partition nothing[0]"),
    ):
        done = command(*wrong, "--yes")
        assert done.exit_code != 0
        assert said in " ".join(done.output.split())
    assert world.rows("select count(*) from exactbatch.position_epoch") == [(0,)]
    done = command("--from", f"{topic}:0:1", "--yes", "--json")
    assert done.exit_code == 0, done.output
    begins = [{"topic": topic, "partition": 0, "from_offset": 1}]
    assert json.loads(done.stdout) == {"pipeline": pipeline.name, "begins": begins}
    world.run(pipeline)
    assert rows(world, pipeline) == [(1, "b")]
    done = command("--start", "2026-01-01T00:00:00Z", "--yes")
    assert f"{topic}[0]: the new epoch begins at offset 2" in " ".join(done.output.split())
    run(event("u", 1, "c", 1, 2))
    assert rows(world, pipeline) == [(1, "c")]
