"""Compacting: old changes go, the target stays, and what was dropped can no longer be replayed."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from typer.testing import CliRunner

from exactbatch import Append, Debezium, Pipeline, Tuning, Upsert, failpoints
from exactbatch.audit.audit_result import PartitionAudit
from exactbatch.audit.run_audit import audit
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, ReplayRefused
from exactbatch.errors.exit_status import TERMINAL, WRONG_USAGE
from exactbatch.ledger import Ledger
from exactbatch.operations.compact import Compaction, compact_changes, preview_compaction
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.commands import start_command
from support.topics import Topic
from support.upserts import change, changes, key_of, replayed, state, with_wrong_keys
from support.waiting import wait_for

HOUR = timedelta(hours=1)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
Compact = Callable[..., Compaction]


def at(hours: float) -> int:
    """A message timestamp, in ms."""
    return int((T0 + hours * HOUR).timestamp() * 1000)


@pytest.fixture
def compacted(world):
    """Compact a pipeline, and see that the preview told it and that the target is the same."""

    def run(pipeline: Pipeline, before: datetime | None = None) -> Compaction:
        target, left = state(world, pipeline), len(changes(world, pipeline))
        preview = preview_compaction(world.connection, world.log, pipeline, before=before)
        assert len(changes(world, pipeline)) == left
        done = compact_changes(world.connection, world.log, pipeline, before=before)
        assert done == preview
        assert len(changes(world, pipeline)) == left - done.dropped
        assert state(world, pipeline) == target
        return done

    return run


def places(world: BatchRunner, pipeline: Pipeline) -> list[tuple[int, int]]:
    """Partition and offset of the changes that are left."""
    return [(each[3], each[4]) for each in changes(world, pipeline)]


def horizons(world: BatchRunner) -> list[tuple[int, int]]:
    found = world.rows('select partition, "offset" from exactbatch.replay_horizon order by 1')
    return [(int(partition), int(offset)) for partition, offset in found]


def request(topic: Topic, *bounds: tuple[int, int], partition: int = 0, **more: Any) -> ReplayRequest:
    return ReplayRequest(
        ranges=tuple(RequestedRange(topic.name, partition, *each) for each in bounds), **more
    )


def plan(world: BatchRunner, pipeline: Pipeline, asked: ReplayRequest) -> int | None:
    return freeze_replay(world.connection, world.log, pipeline, asked, origin="cli").batch_id


def audited(world: BatchRunner, pipeline: Pipeline) -> PartitionAudit:
    """The exact audit of the only partition."""
    found = audit(pipeline, world.settings)
    assert found.is_exact, found
    [partition] = found.partitions
    return partition


def test_all_but_latest_change_of_each_key_goes_and_target_stays(world, make_topic, make_upsert, compacted):
    topic = make_topic()
    topic.produce(*[change(n % 3, f"a{n}") for n in range(20)])
    pipeline = make_upsert(topic)
    world.run(pipeline)
    done = compacted(pipeline)
    (partition,) = done.partitions
    assert (partition.previous_horizon, partition.horizon) == (0, 20)
    assert (partition.dropped, partition.kept) == (done.dropped, done.kept) == (17, 3)
    assert places(world, pipeline) == [(0, 17), (0, 18), (0, 19)]
    found = audited(world, pipeline)
    assert (found.records, found.rows, found.compacted) == (20, 3, 17)
    # The second time there is nothing to drop.
    again = compacted(pipeline)
    assert (again.dropped, again.kept, again.partitions[0].previous_horizon) == (0, 3, 20)
    # And it goes on.
    topic.produce(change(1, "b"), change(7, "c"))
    world.run(pipeline)
    assert state(world, pipeline) == {0: "a18", 1: "b", 2: "a17", 7: "c"}
    assert audited(world, pipeline).compacted == 17
    assert compacted(pipeline).dropped == 1
    assert audited(world, pipeline).compacted == 18
    assert horizons(world) == [(0, 22)]


def test_replay_below_horizon_is_refused_and_rest_may_be_replayed(world, make_topic, make_upsert, compacted):
    topic = make_topic(2)
    topic.produce(*[change(n % 3, f"a{n}") for n in range(10)])
    pipeline = make_upsert(topic)
    first = world.run(pipeline).batch.batch_id
    compacted(pipeline)
    topic.produce(*[change(n, f"b{n}") for n in (1, 5)])
    world.run(pipeline)
    for asked in (
        request(topic, (8, 11)),
        request(topic, (0, 2), (10, 12)),
        ReplayRequest(batch_ids=(first,)),
        ReplayRequest(window=(datetime.now(UTC) - HOUR, datetime.now(UTC) + HOUR)),
    ):
        with pytest.raises(
            ReplayRefused, match="these offsets are below 10, the replay horizon of"
        ) as caught:
            plan(world, pipeline, asked)
    with pytest.raises(ReplayRefused) as caught:
        plan(world, pipeline, request(topic, (8, 11)))
    assert f"{topic.name}[0] 8..10: these offsets are below 10" in str(caught.value)
    assert "To replay the 1 offsets above the horizon" in str(caught.value)
    assert "set available_only" in str(caught.value)
    assert plan(world, pipeline, ReplayRequest(batch_ids=(first,), available_only=True)) is None
    asked = request(topic, (8, 11), available_only=True)
    preview = preview_replay(world.connection, world.log, pipeline, asked)
    assert list(map(str, preview.plan.compacted)) == [f"{topic.name}[0] 8..10"]
    assert preview.rows == 1
    batch_id = plan(world, pipeline, asked)
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.records == 1
    assert state(world, pipeline) == {0: "a9", 1: "b1", 2: "a8", 5: "b5"}
    assert world.is_exact(pipeline)


def test_replay_that_takes_back_all_that_lies_above_brings_kept_change_to_light(
    world, make_topic, make_upsert, compacted
):
    topic = make_topic()
    topic.produce(change(1, "old"), change(1, "below"), change(2, "two"))
    right = make_upsert(topic)
    wrong = replace(right, value=with_wrong_keys(right.value.schema), message_key=with_wrong_keys("id int"))
    world.run(right)
    compacted(right)
    topic.produce(change(1, "above"))
    topic.produce(None, key=key_of(2))
    world.run(right)
    assert state(world, right) == {1: "above"}
    # Under the other program nothing above the horizon is of these keys any more.
    replayed(world, wrong, (3, 5))
    assert state(world, right) == {1: "below", 2: "two", 101: "above"}
    assert world.is_exact(wrong)
    replayed(world, right, (3, 5))
    assert state(world, right) == {1: "above"}
    assert audited(world, right).compacted == 1


def test_with_version_delete_stays_and_late_changes_do_not_revive_row(
    world, make_topic, make_pipeline, compacted
):
    def event(op: str, number: int, name: str, lsn: int) -> bytes:
        row = {"id": number, "name": name}
        before, after = (row, None) if op == "d" else (None, row)
        return json.dumps(
            {
                "before": before,
                "after": after,
                "op": op,
                "source": {"lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]'},
            }
        ).encode()

    topic = make_topic(2)
    topic.produce(event("c", 1, "one", 10), event("d", 1, "one", 30), event("c", 2, "two", 11))
    topic.produce(None, key=key_of(1))
    sink = Upsert(f'public."{topic.name}"', key=("id",), version=("commit_lsn", "lsn"))
    pipeline = make_pipeline(topic, value=Debezium("id int, name text", version="postgres"), sink=sink)
    world.run(pipeline)
    assert compacted(pipeline).dropped == 1
    assert places(world, pipeline) == [(0, 1), (0, 2)]
    topic.produce(event("u", 1, "late", 20), event("u", 2, "later", 12), partition=1)
    topic.produce(event("u", 1, "later than late", 25), partition=1)
    world.run(pipeline)
    assert state(world, pipeline) == {2: "later"}
    found = audit(pipeline, world.settings)
    assert found.is_exact, found
    assert [(each.compacted, each.tombstones) for each in found.partitions] == [(1, 1), (0, 0)]


def test_without_version_delete_goes_with_all_that_it_deleted(world, make_topic, make_upsert, compacted):
    topic = make_topic(2)
    pipeline = make_upsert(topic)
    topic.produce(change(1, "a"), change(2, "b"))
    topic.produce(None, None, key=key_of(1))
    topic.produce(None, key=key_of(3))
    topic.produce(change(4, "other partition"), partition=1)
    world.run(pipeline)
    assert compacted(pipeline).dropped == 4
    assert places(world, pipeline) == [(0, 1), (1, 0)]
    topic.produce(change(1, "again"), change(3, "first"))
    world.run(pipeline)
    assert state(world, pipeline) == {1: "again", 2: "b", 3: "first", 4: "other partition"}
    # Deleted again and compacted again, with a change above that is taken back and written again.
    topic.produce(None, key=key_of(1))
    world.run(pipeline)
    topic.produce(change(1, "third life"))
    compacted(pipeline)
    world.run(pipeline)
    replayed(world, pipeline, (8, 9))
    assert state(world, pipeline)[1] == "third life"
    assert world.is_exact(pipeline)
    topic.produce(change(2, "on another partition"), partition=1)
    with pytest.raises(KeyOnTwoPartitions):
        world.run(pipeline)


def test_without_version_delete_stays_while_its_key_has_changes_elsewhere(
    world, make_topic, make_upsert, compacted
):
    """As they may be there from when the pipeline had a version."""
    topic = make_topic(2, retention_ms="-1")

    def event(op: str, number: int, name: str | None, position: int) -> bytes:
        before, after = ({"id": number}, None) if op == "d" else (None, {"id": number, "name": name})
        source = {"position": position}
        return json.dumps({"op": op, "before": before, "after": after, "source": source}).encode()

    topic.produce(*[event("u", 9, f"n{n}", n) for n in range(5)], timestamp=at(0))
    topic.produce(event("u", 1, "elsewhere", 1), timestamp=at(5))
    topic.produce(event("u", 1, "a", 2), event("d", 1, None, 3), timestamp=at(0), partition=1)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version="position")
    value = Debezium("id int, name text", version="position")
    versioned = make_upsert(topic, sink=sink, value=value, message_key=None)
    world.run(versioned)
    pipeline = replace(versioned, value=replace(value, version=None), sink=replace(sink, version=None))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(pipeline, accept_identity=True)
    assert compacted(pipeline, T0 + HOUR).dropped == 5
    assert places(world, pipeline) == [(0, 4), (0, 5), (1, 1)]
    assert audit(pipeline, world.settings).findings["unordered"] == 1


def test_times_become_offsets_below_which_nothing_is_from_then_or_later(
    world, make_topic, make_upsert, compacted, admin
):
    topic = make_topic(3, retention_ms="-1")
    pipeline = make_upsert(topic, max_rejects=9)
    for hours in (0, 1, 2, 5, 3):  # the last is late
        topic.produce(change(1, f"h{hours}"), timestamp=at(hours))
    # In the second partition nothing but a reject is new; in the third nothing at all.
    topic.produce(change(2, "a"), change(2, "b"), timestamp=at(0), partition=1)
    topic.produce(b"bad", timestamp=at(5), partition=1)
    topic.produce(change(2, "c") + b"bad", timestamp=at(0), partition=1)
    topic.produce(change(3, "a"), change(3, "b"), timestamp=at(0), partition=2)
    world.run(pipeline)
    topic.produce(change(3, "not processed yet"), timestamp=at(0), partition=2)
    done = compacted(pipeline, T0 + 4 * HOUR)
    assert [(each.horizon, each.dropped, each.kept) for each in done.partitions] == [
        (3, 2, 1),
        (2, 1, 1),
        (2, 1, 1),
    ]
    assert horizons(world) == [(0, 3), (1, 2), (2, 2)]
    assert places(world, pipeline) == [(0, 2), (0, 3), (0, 4), (1, 1), (2, 1)]
    # The reject from that time can still be processed again.
    assert plan(world, pipeline, request(topic, (2, 3), partition=1)) is not None
    # An earlier time moves nothing back.
    moved = world.rows("select * from exactbatch.replay_horizon order by partition")
    assert compacted(pipeline, T0 + HOUR).dropped == 0
    assert world.rows("select * from exactbatch.replay_horizon order by partition") == moved
    # Changes whose records retention has removed tell their own time.
    (removed,) = admin.delete_records([TopicPartition(topic.name, 0, 5)]).values()
    removed.result(30)
    assert compacted(pipeline, T0 + 5 * HOUR).partitions[0].horizon == 3
    assert compacted(pipeline, T0 + 6 * HOUR).partitions[0].horizon == 5
    assert audit(pipeline, world.settings).is_exact


def test_a_replay_that_was_planned_before_does_not_publish(world, make_topic, make_upsert, compacted):
    topic = make_topic()
    topic.produce(*[change(n % 2, f"a{n}") for n in range(10)])
    pipeline = make_upsert(topic)
    world.run(pipeline)
    early = plan(world, pipeline, request(topic, (5, 10)))
    under_way = plan(world, pipeline, request(topic, (0, 10)))
    assert early is not None
    assert under_way is not None
    # One has staged its rows already when the horizon passes it, the other starts after that.
    failpoints.actions["job.after_stage"] = "hold:" + (hold := f"/tmp/{topic.name}.go")
    raised: list[BaseException] = []

    def process() -> None:
        try:
            world.process(pipeline, under_way)
        except ReplayRefused as error:
            raised.append(error)

    try:
        thread = threading.Thread(target=process)
        thread.start()
        wait_for(Path(f"{hold}.held").exists)
        compacted(pipeline)
        before = changes(world, pipeline)
        Path(hold).touch()
        thread.join(60)
    finally:
        del failpoints.actions["job.after_stage"]
        Path(hold).unlink(missing_ok=True)
        Path(f"{hold}.held").unlink(missing_ok=True)
    (error,) = raised
    assert str(error).startswith(f"batch {under_way}: {topic.name}[0] 0..10: these offsets are below 10")
    assert "plan the replay again" in str(error)
    with pytest.raises(ReplayRefused) as caught:
        world.process(pipeline, early)
    assert str(caught.value).startswith(f"batch {early}: {topic.name}[0] 5..10: these offsets are below 10")
    assert changes(world, pipeline) == before
    assert world.is_exact(pipeline)


@pytest.fixture
def command(world, tmp_path):
    """Start `exactbatch compact` for a pipeline, as a process of its own."""

    return partial(start_command, world.settings, tmp_path, "compact")


def test_compaction_that_ends_before_its_commit_has_changed_nothing(
    world, make_topic, make_upsert, command, monkeypatch
):
    topic = make_topic()
    topic.produce(*[change(n % 2, f"a{n}") for n in range(10)])
    pipeline = make_upsert(topic)
    world.run(pipeline)
    before = changes(world, pipeline), state(world, pipeline)
    killed = command(pipeline, "--all", "--yes", failpoints="compact.before_commit=kill")
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    assert (changes(world, pipeline), state(world, pipeline), horizons(world)) == (*before, [])
    monkeypatch.setitem(failpoints.actions, "compact.before_commit", "error")
    with pytest.raises(RuntimeError, match=r"failpoint compact\.before_commit"):
        compact_changes(world.connection, world.log, pipeline, before=None)
    assert (changes(world, pipeline), state(world, pipeline), horizons(world)) == (*before, [])
    replayed(world, pipeline, (0, 10))
    assert world.is_exact(pipeline)


def test_a_publish_waits_for_a_compaction_and_then_goes_on(world, make_topic, make_upsert, command, tmp_path):
    topic = make_topic()
    topic.produce(*[change(n % 2, f"a{n}") for n in range(10)])
    pipeline = make_upsert(topic, tuning=Tuning(lock_timeout="60 seconds"))
    world.run(pipeline)
    topic.produce(change(0, "new"), change(1, "new"))
    batch_id = world.plan(pipeline)
    go = tmp_path / "go"
    compacting = command(pipeline, "--all", "--yes", "--json", failpoints=f"compact.before_commit=hold:{go}")
    wait_for(Path(f"{go}.held").exists)
    thread = threading.Thread(target=world.process, args=(pipeline, batch_id))
    thread.start()
    waiting = (
        "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() "
        "and query like '%exactbatch.pipeline%for no key update%'"
    )
    wait_for(lambda: world.rows(waiting))
    assert len(changes(world, pipeline)) == 10
    go.touch()
    told, _ = compacting.communicate(timeout=60)
    thread.join(60)
    assert json.loads(told)["dropped"] == 8
    assert state(world, pipeline) == {0: "new", 1: "new"}
    assert places(world, pipeline) == [(0, 8), (0, 9), (0, 10), (0, 11)]
    assert audited(world, pipeline).compacted == 8


def test_the_auditor_still_finds_what_is_wrong(world, make_topic, make_upsert, compacted):
    topic = make_topic()
    topic.produce(*[change(n % 2, f"a{n}") for n in range(10)])
    pipeline = make_upsert(topic)
    batch_id = world.run(pipeline).batch.batch_id
    compacted(pipeline)
    topic.produce(change(5, "x"), change(6, "y"))
    world.run(pipeline)
    table = find_writer(pipeline.traits).lineage_table.identifier.as_string(world.connection)
    target = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)

    def found(statement: str) -> dict[str, list[int]]:
        """What an audit finds after a statement that is undone then."""
        world.execute(f"create table saved as table {table}; create table saved_target as table {target}")
        world.execute(statement)
        result = audit(pipeline, world.settings)
        world.execute(
            f"truncate {table}, {target}; insert into {table} table saved; "
            f"insert into {target} table saved_target; drop table saved, saved_target"
        )
        [partition] = result.partitions
        return {
            kind: partition.findings[kind].first if kind in partition.findings else []
            for kind, count in result.findings.items()
            if count
        }

    assert found("select") == {}
    assert found(f"delete from {table} where kafka_offset = 11") == {
        "missing": [11],
        "miscounted": [],
        "stale": [],
    }
    assert found(f"insert into {table} select * from {table} where kafka_offset = 9") == {"duplicated": [9]}
    assert found(f"update {table} set batch_id = {batch_id + 1} where kafka_offset = 9") == {
        "unexpected": [9],
        "miscounted": [],
    }
    assert found(f"delete from {table} where kafka_offset = 9") == {"stale": []}
    assert found(f"update {target} set name = 'z' where id = 1") == {"stale": []}
    # What no batch stands for is missing, below the horizon as well.
    world.execute(
        "update exactbatch.coverage set offsets = '[0,3)' where upper(offsets) = 10; "
        "insert into exactbatch.coverage select pipeline, topic, topic_id, partition, '[5,10)', kind, batch_id "
        "from exactbatch.coverage where upper(offsets) = 3"
    )
    [partition] = audit(pipeline, world.settings).partitions
    assert (partition.gaps.first, partition.missing.first, partition.compacted) == ([3, 4], [3, 4], 6)


def test_the_command_shows_asks_and_drops(
    world, make_topic, make_upsert, make_pipeline, tmp_path, monkeypatch
):
    topic = make_topic(retention_ms="-1")
    topic.produce(change(1, "a"), b"bad", change(1, "b"), timestamp=at(0))
    pipeline = make_upsert(topic, max_rejects=1)
    world.run(pipeline)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in world.settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(command: str, *arguments: str, pipeline: Pipeline = pipeline, status: int = 0) -> str:
        module = f"compact_{abs(hash(pipeline.name))}"
        (tmp_path / f"{module}.py").write_text(
            f"from exactbatch import Append, Json, Limits, Pipeline, Upsert, Tuning\np = {pipeline!r}\n"
        )
        result = CliRunner().invoke(app, [command, f"{module}:p", *arguments])
        assert result.exit_code == status, result.output
        return " ".join(result.output.split())  # a line ends where the terminal does

    assert json.loads(run("status", "--json"))["partitions"][0]["horizon"] is None
    assert "horizon" not in run("status")
    assert "found none of them" in run("compact", status=WRONG_USAGE)
    both = run("compact", "--before", "2026-01-01", "--all", status=WRONG_USAGE)
    assert "found --before and --all" in both
    assert "--keep: expected a length of time such as" in run(
        "compact", "--keep", "a month", status=WRONG_USAGE
    )
    young = json.loads(run("compact", "--keep", "99999 days", "--json"))
    assert (young["dropped"], young["partitions"]) == (0, [])
    shown = json.loads(run("compact", "--before", "2026-01-01T01:00Z", "--dry-run", "--json"))
    assert shown["dropped"] == 1
    assert len(places(world, pipeline)) == 2
    assert "1 to drop, 1 to keep" in run("compact", "--keep", "1 minute", "--dry-run")
    assert horizons(world) == []
    assert "Dropped 1 changes." in run("compact", "--all", "--yes")
    assert (places(world, pipeline), horizons(world)) == ([(0, 2)], [(0, 3)])
    assert "Dropped" not in run("compact", "--all")
    topic.produce(b'{"id": 77, "name": "only once"}', key=None)
    world.run(pipeline)
    (unchanged,) = json.loads(run("compact", "--all", "--json"))["partitions"]
    assert (unchanged["previous_horizon"], unchanged["horizon"], horizons(world)) == (3, 3, [(0, 3)])
    assert json.loads(run("status", "--json"))["partitions"][0]["horizon"] == 3
    assert "horizon" in run("status")
    assert "compacted" in run("audit")
    assert "the replay horizon of" in run("rejects", "--replay", status=TERMINAL)
    run("rejects", "--replay", "--available-only", "--yes")
    append = make_pipeline(
        topic, name=f"{topic.name}.a", sink=Append(f'public."{topic.name}_a"'), message_key=None
    )
    assert "only an Upsert has" in run("compact", "--all", pipeline=append, status=TERMINAL)
    with pytest.raises(ConfigurationError, match="a sink of type Append"):
        compact_changes(world.connection, world.log, append, before=None)


def test_the_auditor_finds_rejects_that_are_gone_below_the_horizon(world, make_topic, make_upsert, compacted):
    topic = make_topic()
    topic.produce(change(0, "a"), b"no JSON", change(0, "b"))
    pipeline = make_upsert(topic, max_rejects=1)
    batch_id = world.run(pipeline).batch.batch_id
    compacted(pipeline)
    assert audited(world, pipeline).compacted == 1
    world.execute("delete from exactbatch.rejected_record")
    found = audit(pipeline, world.settings)
    assert found.target.notes == [f"batch {batch_id}: the ledger has 1 rejects, its table 0"]


def test_the_auditor_counts_rows_of_an_append_next_to_an_upsert_below_the_horizon(
    world, make_topic, make_upsert
):
    """A transform gives any number of rows, so that they are counted by batch."""
    topic = make_topic()
    topic.produce(*[change(n % 2, f"a{n}", n) for n in range(6)])
    raw = f'public."{topic.name}_raw"'
    sinks = [Append(raw), Upsert(f'public."{topic.name}"', key=("id",), version="version")]
    pipeline = make_upsert(topic, sink=sinks, transform=identity, message_key=None)
    world.run(pipeline)
    assert audit(pipeline, world.settings).is_exact
    done = compact_changes(world.connection, world.log, pipeline, before=None)
    assert done.dropped == 4
    assert audit(pipeline, world.settings).is_exact
    world.execute(f"delete from {raw} where kafka_offset = 1")
    assert audit(pipeline, world.settings).findings["missing"] == 1


def identity(records: Any) -> Any:
    return records
