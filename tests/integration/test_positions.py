"""Positions of the source order changes by their commits, and positions that go back are noticed."""

import json
from typing import Any

import pytest

from exactbatch import Debezium, Upsert
from exactbatch.audit.audit import audit
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, PositionsWentBack
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.new_epoch import begin_epoch
from exactbatch.planning.request import ReplayRequest, RequestedRange

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

    def made(*, history: bool, partitions: int = 1, version: str | None = "postgres") -> Any:
        topic = make_topic(partitions=partitions)
        sink = Upsert(
            f'public."{topic.name}"', key=("id",), version=VERSION if version else None, history=history
        )
        pipeline = make_pipeline(topic, value=Debezium("id int, name text", version=version), sink=sink)

        def run(*events: bytes, partition: int = 0) -> Any:
            for value in events:
                topic.produce(value, partition=partition)
            return world.run(pipeline)

        return pipeline, run

    return made


def rows(world, pipeline):
    world.connection.rollback()
    return world.rows(f"select id, name from {pipeline.sink.target} order by id")


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
    topic = pipeline.topics[0]
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
