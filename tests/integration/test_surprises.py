"""What a log can do to a batch: the target is what a plain program makes of the records, or an error says why.

Retention, compaction, transactions, new partitions, topics that come again, and records that are odd. Each is
a scene over the sinks of test_every_sink; the short form plays it with those whose results could differ.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)
from kafka import KafkaProducer

from exactbatch import Aggregate, Count, Debezium, Limits, Pipeline, Window, failpoints
from exactbatch.audit.audit_result import AuditReport
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.errors import (
    ExactbatchError,
    OffsetsLost,
    ReplayRefused,
    StoredOffsetBeyondLog,
    TargetMismatch,
    TopicRecreated,
)
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, list_staging_tables
from exactbatch.ledger.overview_rows import OverviewRows
from exactbatch.model import LogPartition
from exactbatch.operations.replay_preview import preview_registered
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import Preview, freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.environment import LONG
from support.reference import LogRecord, read_log
from support.scenarios import KINDS, NOON, VALUE, SinkKind
from support.topics import Topic, producer_properties

MB: Final = 1024 * 1024


@dataclass
class Scene:
    """A topic, a pipeline over it, and all the records that the topic ever held when it was looked at."""

    world: BatchRunner
    admin: AdminClient
    topic: Topic
    pipeline: Pipeline
    kind: SinkKind
    partitions: int = 2
    number: int = 0

    def __post_init__(self) -> None:
        self.seen: dict[tuple[int, int], LogRecord] = {}

    def event(self, **given: Any) -> tuple[bytes, bytes]:
        """Key and value of one more event; the changes of an id are all in one partition."""
        self.number += 1
        event = {
            "id": self.number % 6,
            "carrier": ("AA", "UA", None)[self.number % 3],
            "at": (NOON + timedelta(minutes=13 * self.number)).isoformat(),
            "delay": None if self.number % 5 == 0 else self.number * 7 % 100 - 30,
            "version": self.number,
            **given,
        }
        return json.dumps({"id": event["id"]}).encode(), json.dumps(event).encode()

    def produce(self, count: int = 20, **given: Any) -> None:
        """Events over the first two partitions."""
        events = [self.event(**given) for _ in range(count)]
        self.send((json.loads(key)["id"] % 2, key, value) for key, value in events)

    def send(self, messages: Iterable[tuple[int, bytes | None, bytes | None]], **more: Any) -> None:
        """Messages as (partition, key, value)."""
        producer = self.topic._producer
        for partition, key, value in messages:
            producer.produce(self.topic.name, value, key, partition, **more)
            producer.poll(0)
        assert producer.flush(30) == 0

    def transaction(self, end: str, *values: bytes, partition: int = 0) -> Producer:
        return self.topic.transaction(*values, partition=partition, end=end)

    def look(self) -> None:
        """Remember what the topic holds."""
        # The log may begin later than at 0 by now.
        properties = {**self.topic.properties, "auto.offset.reset": "earliest"}
        for each in read_log(properties, self.topic.name, self.partitions):
            self.seen[each.partition, each.offset] = each

    def remove_below(self, offset: int, partition: int = 0) -> None:
        """What retention does, in one partition."""
        self.look()
        (done,) = self.admin.delete_records([TopicPartition(self.topic.name, partition, offset)]).values()
        done.result(30)

    def plan(self) -> int:
        return self.world.plan(self.pipeline)

    def advance(self) -> None:
        self.world.run(self.pipeline)

    def plan_replay(self, *, available_only: bool = False, whole: bool = False) -> int:
        """The middle of each partition once more, or all of it."""
        with transaction(self.world.connection):
            stored = Ledger(self.world.connection).plans.read_stored_offsets(self.pipeline)
        asked = tuple(
            RequestedRange(each.topic, each.partition, 0, each.next_offset)
            if whole
            else RequestedRange(
                each.topic, each.partition, each.next_offset // 3, each.next_offset * 2 // 3 + 1
            )
            for each in stored
            if each.next_offset > 1
        )
        request = ReplayRequest(ranges=asked, available_only=available_only)
        batch_id = freeze_replay(
            self.world.connection, self.world.log, self.pipeline, request, origin="cli"
        ).batch_id
        assert batch_id is not None
        return batch_id

    def plan_ranges(self, *ranges: tuple[int, int]) -> int:
        """These offsets of the first partition once more."""
        request = ReplayRequest(ranges=tuple(RequestedRange(self.topic.name, 0, *each) for each in ranges))
        batch_id = freeze_replay(
            self.world.connection, self.world.log, self.pipeline, request, origin="cli"
        ).batch_id
        assert batch_id is not None
        return batch_id

    def preview_ranges(self, *ranges: tuple[int, int]) -> Preview:
        """What the Pipelines page shows of plan_ranges(); it is what `exactbatch replay --dry-run` shows."""
        request = ReplayRequest(ranges=tuple(RequestedRange(self.topic.name, 0, *each) for each in ranges))
        connection, name = self.world.connection, self.pipeline.name
        with transaction(connection):
            definition = OverviewRows(connection).definitions([name])[name]
        shown = preview_registered(
            connection,
            self.world.log,
            definition,
            request,
            replays_compacted=self.pipeline.replays_compacted,
        )
        assert shown == preview_replay(connection, self.world.log, self.pipeline, request)
        return shown

    def target(self) -> list[tuple[Any, ...]]:
        """The rows of the target, in their order."""
        table = find_writer(self.pipeline.traits).tables[-1].identifier.as_string(self.world.connection)
        return self.world.rows(f"select * from {table} order by 1")

    def replay(self, *, whole: bool = False) -> None:
        self.world.process(self.pipeline, self.plan_replay(whole=whole))

    def state(self) -> tuple[Any, ...]:
        """Everything that a batch may change, beside its own row."""
        tables = [
            find_writer(self.pipeline.traits).tables[-1].identifier,
            find_writer(self.pipeline.traits).lineage_table.identifier,
        ]
        rows: list[str] = []
        for table in tables:
            name = table.as_string(self.world.connection)
            if self.world.rows("select to_regclass(%s) is not null", name) == [(True,)]:
                rows += sorted(map(repr, self.world.rows(f"select * from {name}")))
        with transaction(self.world.connection):
            ledger = Ledger(self.world.connection)
            return (
                rows,
                ledger.coverage.read_all(self.pipeline),
                ledger.plans.read_stored_offsets(self.pipeline),
                ledger.rejects.read(self.pipeline),
                list_staging_tables(self.world.connection),
            )

    def refused(self, expected: type[ExactbatchError], do: Callable[[], Any]) -> str:
        """The message of an error that leaves everything as it was, beside a new topic's partitions."""
        before = self.state()
        with pytest.raises(expected) as caught:
            do()
        assert self.state() == before
        return str(caught.value)

    def check(self, lost: Iterable[tuple[int, int]] = ()) -> AuditReport:
        """The target is what the records make that were ever there, without the lost ones; the auditor agrees."""
        self.look()
        log = [self.seen[place] for place in sorted(set(self.seen) - set(lost))]
        table = find_writer(self.pipeline.traits).tables[-1].identifier.as_string(self.world.connection)
        rows = self.world.rows(f"select {self.kind.query} from {table}")
        found = {row[: self.kind.key]: row[self.kind.key :] for row in rows}
        assert len(found) == len(rows)
        assert found == self.kind.expected(log)
        audits = audit(self.pipeline, self.world.settings)
        assert audits.is_exact, audits
        return audits


MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> MakeScene:
    def make(kind: str, partitions: int = 2, topic: Topic | None = None, **changes: Any) -> Scene:
        config = {name: changes.pop(name) for name in ("max_message_bytes",) if name in changes}
        topic = topic or make_topic(partitions, **config)
        sink = KINDS[kind].sink(f'public."{topic.name}"')
        changes = {"value": VALUE, "sink": sink, **KINDS[kind].changes, **changes}
        pipeline = make_pipeline(topic, **changes)
        return Scene(world, admin, topic, pipeline, KINDS[kind], partitions)

    return make


def of(*kinds: str) -> Any:
    """These sinks in the short form, all of them in the long form."""
    return pytest.mark.parametrize("kind", KINDS if LONG else kinds)


# Retention


@of("upsert")
def test_retention_between_plan_and_read_is_told_and_recorded_loss_goes_on_behind_it(
    scene: MakeScene, kind: str
) -> None:
    played = scene(kind)
    played.produce()
    played.advance()
    # Only where retention removes records: with commit="partition", the other range would be committed.
    played.send((0, *played.event(id=2 * number % 6)) for number in range(10))
    batch_id = played.plan()
    played.remove_below(14)
    message = played.refused(OffsetsLost, lambda: played.world.process(played.pipeline, batch_id))
    assert f"{played.topic.name}[0] 10..20: retention removed 4 of these offsets" in message
    assert "since the batch was planned (log starts at 14). Plan again" in message
    # By default the next plan stops, too: somebody has to decide.
    assert "Set on_loss='skip'" in played.refused(OffsetsLost, played.plan)
    played.pipeline = replace(played.pipeline, on_loss="skip")
    played.advance()
    audits = played.check(lost=[(0, offset) for offset in range(10, 14)])
    assert [each.lost for each in audits.partitions] == [4, 0]


@pytest.mark.slow
@of("append", "partition")
def test_retention_that_overtakes_reader_fails_batch_and_leaves_nothing(
    scene: MakeScene, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has had the first records of its range when those behind them are removed."""
    played = scene(kind, 1)
    played.pipeline = replace(played.pipeline, on_loss="skip")
    small = {"queued.max.messages.kbytes": 100, "queued.min.messages": 1, "fetch.message.max.bytes": 50_000}
    world = played.world
    world.settings = replace(world.settings, kafka={**world.settings.kafka, **small})
    pad = "x" * 20_000
    played.send((0, *played.event(id=0, pad=pad)) for _ in range(100))
    batch_id = played.plan()
    gate = tmp_path / "gate"
    monkeypatch.setitem(
        world.spark.sparkContext.environment, "EXACTBATCH_FAILPOINTS", f"read.after_records=hold:{gate}"
    )

    def remove_when_held() -> None:
        while not Path(f"{gate}.held").exists():
            time.sleep(0.02)
        played.remove_below(90)
        gate.touch()

    with_thread = _Thread(remove_when_held)
    message = played.refused(OffsetsLost, lambda: world.process(played.pipeline, batch_id))
    with_thread.join()
    assert f"{played.topic.name}[0] 0..100: retention removed 90 of these offsets" in message
    assert "(log starts at 90)" in message
    played.advance()
    found = played.check(lost=[(0, offset) for offset in range(90)])
    assert found.partitions[0].lost == 90


# Compaction

COMPACTED: Final = {
    "cleanup_policy": "compact",
    "segment_ms": "100",
    "min_cleanable_dirty_ratio": "0.001",
    "max_compaction_lag_ms": "100",
    "delete_retention_ms": "0",
}


def compact(played: Scene, records: int) -> None:
    """Wait until no more than so many records are left in the first partition below where it ended."""
    [end, *_] = played.world.log.partitions(played.pipeline.topics)
    deadline = time.monotonic() + 60
    while True:
        log = read_log(played.topic.properties, played.topic.name, played.partitions)
        if sum(each.offset < end.high_watermark for each in log if each.partition == 0) <= records:
            return
        assert time.monotonic() < deadline, "the broker did not compact"
        time.sleep(0.3)
        # The segment that is written to is never compacted.
        played.send([(0, b'{"id": 900}', played.event(id=900)[1])])


def set_policy(played: Scene, policy: str) -> None:
    """Let the broker compact the topic, or not."""
    config = ConfigResource(
        ConfigResource.Type.TOPIC,
        played.topic.name,
        incremental_configs=[
            ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        ],
    )
    (done,) = played.admin.incremental_alter_configs([config]).values()
    done.result(30)


@pytest.mark.slow
@of("append", "upsert by offset")
def test_compaction_between_two_reads_and_before_a_replay(
    scene: MakeScene, make_topic: MakeTopic, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try reads fewer records than the first one; a replay takes back only what it can make again."""
    played = scene(kind, 1, make_topic(1, **COMPACTED))
    if kind == "upsert":
        played.kind = replace(
            played.kind, expected=KINDS["upsert by offset"].expected
        )  # of versions that rise
    played.send((0, *played.event(id=id_)) for id_ in (1, 2, 3, 1, 2, 3, 1, 2, 3) * 4)
    if KINDS[kind].changes.get("key"):
        played.send([(0, b'{"id": 2}', None)])
    batch_id = played.plan()
    monkeypatch.setitem(failpoints.actions, "job.after_stage", "error")
    monkeypatch.setitem(failpoints.actions, "partition.before_batch_commit", "error")
    with pytest.raises(RuntimeError):
        played.world.process(played.pipeline, batch_id)
    monkeypatch.delitem(failpoints.actions, "job.after_stage")
    monkeypatch.delitem(failpoints.actions, "partition.before_batch_commit")
    if kind == "partition":
        played.look()  # its ranges were committed before the batch
    compact(played, 4)
    set_policy(played, "delete")  # and no further until the next records were processed
    played.look()
    if kind != "partition":
        assert len(played.seen) < 20
    assert played.world.process(played.pipeline, batch_id).wrote
    played.send((0, *played.event(id=id_)) for id_ in (1, 3, 4) * 3)
    played.advance()
    played.look()
    if kind == "partition":
        set_policy(played, "compact")  # its rows are of records that are gone: the auditor has to know why
    played.check()
    set_policy(played, "compact")
    compact(played, 6)
    played.advance()
    message = played.refused(ReplayRefused, played.plan_replay)
    if kind == "upsert by offset":
        assert f"'{played.topic.name}' is compacted (cleanup.policy), and the results of " in message
        played.replay(whole=True)
        played.check()
        return
    assert f"topic '{played.topic.name}' is compacted (cleanup.policy)" in message
    assert "lose the results of the others, set available_only" in message
    played.world.process(played.pipeline, played.plan_replay(available_only=True))
    assert audit(played.pipeline, played.world.settings).is_exact


def test_replay_that_would_bring_back_what_delete_has_removed_is_refused(
    scene: MakeScene, make_topic: MakeTopic
) -> None:
    """Kafka has removed the delete: a replay of its offset alone takes it back, and does not find it again."""
    played = scene("upsert by offset", 1, make_topic(1, **COMPACTED))
    played.send((0, *played.event(id=id_)) for id_ in (1, 2))
    played.advance()
    played.send([(0, b'{"id": 1}', None), (0, *played.event(id=3))])
    played.advance()
    compact(played, 2)
    before = played.target()
    assert {row[0] for row in before} == {2, 3}
    topic = played.topic.name
    message = played.refused(ReplayRefused, lambda: played.plan_ranges((2, 4)))
    assert (
        f"{topic}[0] 2..4: topic {topic!r} is compacted (cleanup.policy), and the results of {topic}[0] 0..2"
        in message
    )
    assert f"Replay from the beginning, {topic}:0:0-4; or" in message
    assert played.refused(ReplayRefused, lambda: played.preview_ranges((2, 4))) == message
    played.refused(ReplayRefused, lambda: played.plan_ranges((0, 1), (2, 4)))
    assert played.preview_ranges((0, 1), (1, 4)).rows == 4
    played.world.process(played.pipeline, played.plan_ranges((0, 1), (1, 4)))
    assert played.target() == before
    # Where nothing says that the message key is that of the row, other rows can be gone.
    keyed = played.pipeline
    for other in (
        replace(keyed, message_key=None),
        replace(keyed, transform="select *, false as deleted from records"),
        replace(
            keyed,
            message_key=None,
            value=Debezium("id int, carrier text, at timestamptz, delay int, version int"),
        ),
    ):
        played.pipeline = other
        message = played.refused(ReplayRefused, lambda: played.plan_ranges((0, 4)))
        assert f"topic {topic!r} is compacted (cleanup.policy)" in message
        assert played.refused(ReplayRefused, lambda: played.preview_ranges((0, 4))) == message


# Transactions


@pytest.mark.slow
@of("append", "upsert")
def test_ranges_that_begin_and_end_at_markers_and_hold_nothing_else(scene: MakeScene, kind: str) -> None:
    """Each batch takes one offset of each partition: a record, an aborted one, or a marker."""
    played = scene(kind, limits=Limits(max_offsets_per_partition=1))
    values = [played.event(id=2)[1] for _ in range(6)]
    played.topic.produce(values[0])
    played.transaction("abort", values[1])
    played.transaction("commit", values[2])
    played.transaction("abort", values[3], partition=1)
    played.topic.produce(played.event(id=1)[1], partition=1)
    ranges = []
    for _ in range(9):
        batch_id = played.world.plan(played.pipeline) if _more(played) else None
        if batch_id is None:
            break
        batch = played.world.process(played.pipeline, batch_id).batch
        ranges.append(batch.records)
    assert ranges == [1, 0, 1, 1, 0]
    audits = played.check()
    assert [(each.from_offset, each.until_offset, each.records) for each in audits.partitions] == [
        (0, 5, 2),
        (0, 3, 1),
    ]
    played.replay()
    played.check()


def _more(played: Scene) -> bool:
    log = played.world.log.partitions(played.pipeline.topics)
    with transaction(played.world.connection):
        stored = Ledger(played.world.connection).plans.read_stored_offsets(played.pipeline)
    return not stored or any(a.next_offset < b.last_stable for a, b in zip(stored, log, strict=True))


@of("upsert")
def test_open_transaction_holds_log_back_and_nothing_is_skipped(scene: MakeScene, kind: str) -> None:
    played = scene(kind, 1)
    played.topic.produce(played.event()[1])
    aborted = played.transaction("open", played.event()[1])
    committed = played.transaction("open", played.event()[1])
    played.topic.produce(played.event()[1])
    played.advance()
    played.look()
    assert len(played.seen) == 1
    played.check()
    [trouble] = load_status(played.world.connection, played.world.log, played.pipeline).troubles
    assert "an open transaction (producer " in trouble
    assert "holds back 3 offsets from 1" in trouble
    played.topic.end_transaction(committed, "commit")
    assert not _more(played)
    played.topic.end_transaction(aborted, "abort")
    played.world.settle(played.pipeline)
    played.advance()
    assert len(played.seen) == 1
    [found] = played.check().partitions
    assert (found.until_offset, found.records) == (6, 3)


# Partitions and topics


@of("aggregate")
def test_a_partition_that_is_added_begins_with_its_first_record(scene: MakeScene, kind: str) -> None:
    """It is not in the plan that was made before, and in the next one it begins at its earliest offset."""
    played = scene(kind)
    played.pipeline = replace(played.pipeline, start="latest")
    assert not any(each.high_watermark for each in played.world.log.partitions(played.pipeline.topics))
    played.produce()
    played.pipeline = replace(played.pipeline, start="earliest")
    batch_id = played.plan()
    played.admin.create_partitions([NewPartitions(played.topic.name, 3)])[played.topic.name].result(30)
    while len(played.world.log.partitions(played.pipeline.topics)) < 3:
        time.sleep(0.05)
    played.topic = Topic(played.topic.name, played.topic.properties)  # its producer knows of two partitions
    played.send((2, *played.event(id=50 + number)) for number in range(5))
    assert played.world.process(played.pipeline, batch_id).batch.records == 20
    played.partitions = 3
    played.pipeline = replace(played.pipeline, start="latest")
    played.produce()
    played.advance()
    audits = played.check()
    assert audits.partitions[2].records == 5
    played.replay()
    played.check()


@of("upsert", "partition")
def test_topic_created_again_with_more_records_is_never_taken_for_old_one(
    scene: MakeScene, make_topic: MakeTopic, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the plan, between plan and read, and while it is read; also for a replay."""
    played = scene(kind)
    played.produce()
    played.advance()
    played.produce(4)
    replay_id, batch_id = played.plan_replay(), played.plan()

    def recreate() -> None:
        played.admin.delete_topics([played.topic.name])[played.topic.name].result(30)
        while played.topic.name in played.admin.list_topics(timeout=10).topics:
            time.sleep(0.02)
        make_topic(2, name=played.topic.name)
        played.produce(60)

    moment = "job.before_ranges" if kind == "partition" else "job.before_stage"
    monkeypatch.setattr(batch_job, "failpoint", lambda name: recreate() if name == moment else None)
    during = played.refused(TopicRecreated, lambda: played.world.process(played.pipeline, batch_id))
    assert "the topic was deleted and created again since the batch was planned: " in during
    monkeypatch.undo()
    for each in (batch_id, replay_id):
        between = played.refused(TopicRecreated, lambda: played.world.process(played.pipeline, each))  # noqa: B023
        assert "Register a pipeline under a new name to load the new topic" in between
    before = played.refused(TopicRecreated, played.plan)
    assert "The stored offset 10 does not apply to the new topic" in before
    played.refused(TopicRecreated, played.plan_replay)
    assert any(
        "was deleted and created again" in trouble
        for trouble in load_status(played.world.connection, played.world.log, played.pipeline).troubles
    )


class Stale(KafkaBroker):
    """A broker whose answer is that of a leader which does not know yet how far its log goes."""

    def __init__(self, log: KafkaBroker, last_stable: int, high_watermark: int) -> None:
        super().__init__({}, settle=0)
        self._log, self._ends = log, (last_stable, high_watermark)

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        stable, high = self._ends
        return tuple(
            replace(each, last_stable=stable, high_watermark=high) for each in self._log.partitions(topics)
        )


@of("upsert")
def test_end_of_log_that_is_stale_never_takes_pipeline_backwards(scene: MakeScene, kind: str) -> None:
    played = scene(kind, 1)
    played.send((0, *played.event()) for _ in range(20))
    played.advance()
    played.send((0, *played.event()) for _ in range(10))
    connection = played.world.connection

    def plan_with(last_stable: int, high_watermark: int) -> int | None:
        stale = Stale(played.world.log, last_stable, high_watermark)
        return freeze_advance(connection, stale, played.pipeline, origin="cli")

    message = played.refused(StoredOffsetBeyondLog, lambda: plan_with(15, 15))
    assert "the log ends at 15, below the stored offset 20" in message
    assert plan_with(15, 20) is None
    assert plan_with(20, 20) is None
    some = plan_with(25, 25)
    assert some is not None
    assert played.world.process(played.pipeline, some).batch.records == 5
    played.advance()
    [found] = played.check().partitions
    assert found.until_offset == 30


# Records that are odd


# What an aggregate has for a key is no longer than an index takes: see the next test.
@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"aggregate"}) if LONG else ["append", "partition"])
def test_records_up_to_the_broker_s_limit(scene: MakeScene, kind: str) -> None:
    """1 MB and 10 MB, between small ones; one of them is no event."""
    played = scene(kind, max_message_bytes="10485760", max_rejects=1)
    names = {"carrier": "x" * MB}, {}, {"carrier": "y" * (4 * MB)}, {"carrier": "z" * (10 * MB - 1000)}
    played.send((0, *played.event(**each)) for each in names)
    played.send([(1, None, b"y" * (10 * MB - 1000)), (1, *played.event())])
    played.advance()
    audits = played.check()
    assert [(each.records, each.rejected) for each in audits.partitions] == [(4, 0), (2, 1)]
    assert played.world.rows("select octet_length(value) from exactbatch.rejected_record") == [
        (10 * MB - 1000,)
    ]
    played.replay()
    played.check()


@pytest.mark.parametrize("kind", ["append", "aggregate", "partition"])
def test_value_that_index_cannot_hold_is_refused_and_nothing_is_written(scene: MakeScene, kind: str) -> None:
    """The key of an aggregate, or a column of a target with an index; it is no trouble of the server."""
    played = scene(kind, 1)
    played.send([(0, *played.event())])
    played.advance()
    if kind != "aggregate":
        played.world.execute(f'create index on public."{played.topic.name}" (carrier)')
    played.send([(0, *played.event(carrier="x" * MB))])
    batch_id = played.plan()
    message = played.refused(TargetMismatch, lambda: played.world.process(played.pipeline, batch_id))
    assert "index row requires" in message
    assert "was written. Correct the target, or what the pipeline writes." in message


@pytest.mark.slow
@of("append", "upsert", "aggregate")
def test_records_without_key_or_value_and_partitions_without_records(scene: MakeScene, kind: str) -> None:
    played = scene(kind, 4, max_rejects=20)
    played.produce(6)
    odd = [(None, None), (b"", None), (None, b""), (b"", b""), (b"{}", None), (None, played.event()[1])]
    played.send((1, *each) for each in [*odd, (b'{"id": 3}', None), (b"\xff", None)])
    played.advance()
    keyed = kind.startswith("upsert")
    rejected = played.world.rows('select "offset" - 3, reason from exactbatch.rejected_record order by 1')
    # Without its key nobody knows which row a null value deletes; to other sinks it is a tombstone.
    of_keyed = [0, 1, 2, 3, 4, 6, 7] if KINDS[kind].versioned else [0, 1, 2, 3, 4, 7]
    assert [offset for offset, _ in rejected] == (of_keyed if keyed else [2, 3])
    # The reference takes a null value with such a key for nothing, too.
    played.look()
    played.seen = {
        place: each for place, each in played.seen.items() if each.key not in (b"", b"{}", b"\xff")
    }
    remembered = dict(played.seen)
    played.look = lambda: None  # type: ignore[method-assign]
    assert len(remembered) == 10
    audits = played.check()
    assert [each.records for each in audits.partitions] == [3, 11, 0, 0]
    assert audits.rejected == len(rejected)
    played.replay()
    played.check()


TIMES: Final = tuple(
    int(NOON.timestamp() * 1000) + offset
    for offset in (0, 3_600_000, -86_400_000, -7_200_000, 1_800_000, 90_000_000, 5_000)
)
NONE: Final = -1
# Years 9999 and later, which a producer makes of microseconds or nanoseconds, and the ends of what fits.
FAR: Final = (
    253_402_300_800_000,
    TIMES[0] * 1000,
    (2**63 - 1) // 1000,
    (2**63 - 1) // 1000 + 1,
    TIMES[0] * 1_000_000,
)


def stamped(played: Scene, timestamps: Iterable[int]) -> list[int]:
    """Produce an event for each timestamp, by a client that lets them be none; return what they were."""
    producer = KafkaProducer(**producer_properties(played.topic.properties))
    sent = list(timestamps)
    for each in sent:
        key, value = played.event(id=3)
        producer.send(played.topic.name, value, key, partition=0, timestamp_ms=each).get(30)
    producer.close()
    return sent


@pytest.mark.slow
@of("append", "aggregate")
def test_timestamps_that_go_backwards_or_are_none_or_beyond_all_calendars(
    scene: MakeScene, make_topic: MakeTopic, kind: str
) -> None:
    """Windows of time are offset ranges all the same, which tile; a record without a time is in one as it lies.

    A window that ends at a record of a far later time, with one of its own behind it, is refused.
    """
    topic = make_topic(1, message_timestamp_after_max_ms=str(2**63 - 1), retention_ms="-1")
    played = scene(kind, 1, topic)
    times = stamped(played, (NONE, *TIMES[:3], NONE, *TIMES[3:], 0, NONE, *FAR, NONE))
    played.advance()
    played.check()
    if kind == "append":
        table = find_writer(played.pipeline.traits).tables[-1].identifier.as_string(played.world.connection)
        kept = played.world.rows(
            f"select (extract(epoch from kafka_timestamp) * 1000)::int8 from {table} order by kafka_offset"
        )
        assert [row[0] for row in kept] == [None if each == NONE or each > FAR[2] else each for each in times]

    def first_at(at: datetime) -> int:
        return next(n for n, each in enumerate(times) if each >= at.timestamp() * 1000)

    cuts = [NOON - timedelta(days=2), NOON - timedelta(hours=3), NOON, NOON + timedelta(hours=1, days=1)]
    for start, end in pairwise(cuts):
        request = ReplayRequest(window=(start, end))
        at_end, latest = times[first_at(end)], end.timestamp() * 1000
        behind = times[first_at(end) + 1 :]
        if at_end > latest + 3_600_000 and any(0 <= each < latest for each in behind):
            with pytest.raises(ReplayRefused, match="would end there and leave out the latter"):
                freeze_replay(
                    played.world.connection, played.world.log, played.pipeline, request, origin="cli"
                )
            continue
        batch_id = freeze_replay(
            played.world.connection, played.world.log, played.pipeline, request, origin="cli"
        ).batch_id
        # A boundary that was resolved before stands; here the first offsets at or after them never fall.
        if first_at(start) == first_at(end):
            assert batch_id is None
            continue
        assert batch_id is not None
        with transaction(played.world.connection):
            [found] = Ledger(played.world.connection).batches.read_ranges(batch_id)
        # An aggregate takes whole batches.
        expected = (first_at(start), first_at(end)) if kind != "aggregate" else (0, len(times))
        assert (found.from_offset, found.until_offset) == expected
        played.world.process(played.pipeline, batch_id)
        played.check()


def test_a_window_of_kafka_s_time_rejects_a_record_that_has_none(
    scene: MakeScene, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, message_timestamp_after_max_ms=str(2**63 - 1), retention_ms="-1")
    sink = Aggregate(f'public."{topic.name}"', (Window("kafka_timestamp", "1 hour", "hour"),), {"n": Count()})
    played = scene("aggregate", 1, topic, sink=sink, max_rejects=10)
    stamped(played, (TIMES[0], NONE, TIMES[2], FAR[4]))
    played.advance()
    table = find_writer(played.pipeline.traits).tables[-1].identifier.as_string(played.world.connection)
    assert played.world.rows(f"select extract(epoch from hour)::int8, n from {table} order by 1") == [
        (TIMES[2] // 1000, 1),
        (TIMES[0] // 1000, 1),
    ]
    rejected = played.world.rows('select "offset", reason from exactbatch.rejected_record order by 1')
    assert [offset for offset, _ in rejected] == [1, 3]
    assert audit(played.pipeline, played.world.settings).is_exact


class _Thread:
    """Something that is done meanwhile; join() raises what it has raised."""

    def __init__(self, do: Callable[[], None]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(do)

    def join(self) -> None:
        self._done.result(60)
        self._pool.shutdown()
