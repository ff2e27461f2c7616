"""What the broker says of the log is true, and a log that is not the one that was processed is noticed."""

import shutil
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch import Append, Limits, Pipeline
from exactbatch.audit.audit_result import AuditReport
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines import driver_engine
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import loaded
from exactbatch.errors import (
    ConfigurationError,
    KafkaUnavailable,
    LogTruncated,
    StoredOffsetBeyondLog,
    TopicMissing,
)
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.reader import read_range
from exactbatch.local import LocalStack
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.settings import Settings
from support.audited_target import AuditedTarget, findings
from support.batch_runner import BatchRunner
from support.readers import READERS, read_with
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_partitions_say_where_the_log_starts_ends_and_is_stable(
    make_topic: MakeTopic, kafka_log: KafkaBroker, admin: AdminClient
) -> None:
    topic = make_topic(partitions=3)
    topic.produce(*numbered(10), partition=0)
    topic.produce(*numbered(20), partition=2)
    producer = topic.transaction(b"open", b"open", partition=2, end="stay open")
    topic.produce(b"after", partition=2)
    admin.delete_records([TopicPartition(topic.name, 0, 4)])[TopicPartition(topic.name, 0)].result(30)
    partitions = kafka_log.partitions([topic.name])
    topic.end_transaction(producer, "abort", partition=2)
    assert [(p.partition, p.earliest, p.last_stable, p.high_watermark) for p in partitions] == [
        (0, 4, 10, 10),
        (1, 0, 0, 0),
        (2, 0, 20, 23),
    ]
    assert {p.topic for p in partitions} == {topic.name}
    assert {p.topic_id for p in partitions} == {kafka_log.topic_ids([topic.name])[topic.name]}
    assert {p.leader_epoch for p in partitions} == {0}
    [_, _, after] = kafka_log.partitions([topic.name])
    assert after.last_stable == after.high_watermark == 24


def test_partitions_of_several_topics_come_in_order(make_topic: MakeTopic, kafka_log: KafkaBroker) -> None:
    topics = [make_topic(partitions=12), make_topic(partitions=2)]
    found = [(p.topic, p.partition) for p in kafka_log.partitions([topic.name for topic in topics])]
    assert found == sorted(
        (topic.name, partition) for topic, n in zip(topics, (12, 2), strict=True) for partition in range(n)
    )


def test_the_transactions_that_hold_the_log_back_are_named(
    make_topic: MakeTopic, kafka_log: KafkaBroker
) -> None:
    topic = make_topic()
    topic.produce(b"a")
    topic.transaction(b"committed")  # 1, marker 2
    producers = [topic.transaction(b"open", end="stay open") for _ in range(2)]
    [partition] = kafka_log.partitions([topic.name])
    found = kafka_log.open_transactions([partition])[partition.topic_partition]
    for producer in producers:
        topic.end_transaction(producer, "abort")
    assert [offset for _, offset in sorted(found, key=lambda each: each[1])] == [3, 4]
    assert len({producer_id for producer_id, _ in found}) == 2
    assert partition.last_stable == 3
    assert kafka_log.open_transactions([partition]) == {partition.topic_partition: []}


def test_a_topic_that_is_created_again_has_another_id(
    make_topic: MakeTopic, kafka_log: KafkaBroker, admin: AdminClient
) -> None:
    topic = make_topic()
    before = kafka_log.topic_ids([topic.name])
    assert kafka_log.topic_ids([topic.name]) == before
    admin.delete_topics([topic.name])[topic.name].result(30)
    deadline = time.monotonic() + 60
    while topic.name in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    make_topic(name=topic.name)
    assert kafka_log.topic_ids([topic.name])[topic.name] != before[topic.name]


def test_a_missing_topic_is_named(make_topic: MakeTopic, kafka_log: KafkaBroker, admin: AdminClient) -> None:
    topic, missing = make_topic(), f"missing-{uuid4().hex[:6]}"
    for ask in (kafka_log.partitions, kafka_log.topic_ids):
        with pytest.raises(TopicMissing) as failed:
            ask([topic.name, missing])
        remedy = "Check the pipeline's topics and bootstrap.servers, and create the topic; exactbatch never "
        remedy += "creates one."
        if ask == kafka_log.topic_ids:  # created again, it would be another one
            remedy = "It existed before: check bootstrap.servers. If it was deleted, a topic that is created "
            remedy += "again has another ID, and needs a pipeline under a new name."
        assert str(failed.value) == (f"the broker does not know the topic {missing!r}. {remedy}")
    assert missing not in admin.list_topics(timeout=10).topics


def test_a_closed_port_is_an_error_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(KafkaUnavailable) as failed:
        KafkaBroker({"bootstrap.servers": f"127.0.0.1:{port}"}).partitions(["t"])
    assert time.monotonic() - started < 25
    assert str(failed.value).startswith(f"Kafka at 127.0.0.1:{port} does not answer: ")
    assert "Check bootstrap.servers and the security properties" in str(failed.value)
    assert failed.value.retryable


def test_the_time_for_an_answer_can_be_shortened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {
            "bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
            "socket.connection.setup.timeout.ms": 1000,
        }
        started = time.monotonic()
        with pytest.raises(KafkaUnavailable):
            KafkaBroker(properties).topic_ids(["t"])
        assert time.monotonic() - started < 20


def test_a_group_s_offsets_are_those_that_it_committed(make_topic: MakeTopic, kafka_log: KafkaBroker) -> None:
    topic, other, group = make_topic(partitions=3), make_topic(), f"g{uuid4().hex[:6]}"
    topic.produce(*numbered(10))
    consumer = Consumer({**topic.properties, "group.id": group})
    consumer.commit(
        offsets=[
            TopicPartition(topic.name, 0, 7),
            TopicPartition(topic.name, 2, 0),
            TopicPartition(other.name, 0, 1),
        ],
        asynchronous=False,
    )
    consumer.close()
    assert kafka_log.group_offsets(group, [topic.name]) == {(topic.name, 0): 7, (topic.name, 2): 0}


def test_a_group_that_committed_nothing_is_refused(make_topic: MakeTopic, kafka_log: KafkaBroker) -> None:
    topic, other, group = make_topic(), make_topic(), f"g{uuid4().hex[:6]}"
    kafka_log.commit_group(group, {(other.name, 0): 1})
    for name in (group, "no-such-group"):
        with pytest.raises(ConfigurationError) as failed:
            kafka_log.group_offsets(name, [topic.name])
        there = other.name if name == group else "no topic at all"
        assert str(failed.value).startswith(
            f"start='group:{name}': the consumer group {name!r} has committed no offset for {topic.name}; it has "
            f"for {there}. Check the names"
        )
    with pytest.raises(ConfigurationError, match=f"has committed no offset for {topic.name}; it has for"):
        kafka_log.group_offsets(group, [other.name, topic.name])


def test_what_is_committed_to_a_group_is_what_lag_tools_see(
    make_topic: MakeTopic, kafka_log: KafkaBroker
) -> None:
    topic, group = make_topic(partitions=2), f"g{uuid4().hex[:6]}"
    for offset in (3, 9):
        offsets = {(topic.name, 0): offset, (topic.name, 1): 0}
        kafka_log.commit_group(group, offsets)
        assert kafka_log.group_offsets(group, [topic.name]) == offsets


def test_only_topics_that_are_compacted_are_said_to_be(make_topic: MakeTopic, kafka_log: KafkaBroker) -> None:
    plain, compacted, both = (
        make_topic().name,
        make_topic(cleanup_policy="compact").name,
        make_topic(cleanup_policy="compact,delete").name,
    )
    assert kafka_log.compacted([plain, compacted, both]) == {compacted, both}
    assert kafka_log.compacted([plain]) == set()


def read(
    log: KafkaBroker, topic: Topic, from_offset: int, *, leader_epoch: int | None, reader: str
) -> list[int]:
    """The offsets from one to the end of the log."""
    [partition] = log.partitions([topic.name])
    range_ = partition.range(from_offset, partition.last_stable)
    with pytest.MonkeyPatch.context() as patch:
        read_with(patch, reader)
        batches = read_range(range_, topic.properties, leader_epoch=leader_epoch, timeout=10)
        return [offset for records in batches for offset in records.offsets().to_pylist()]


@pytest.mark.slow
def test_log_cut_and_has_grown_again_is_told_from_one_that_was_not(
    own_stack: LocalStack, tmp_path: Path
) -> None:
    """Two partitions with the same life, but one loses offsets 50..99 and gets others in their place.

    Each of the broker's starts raises the leader's epoch.
    """
    broker = own_stack.broker
    log = KafkaBroker(broker.kafka_properties)
    cut, whole = (Topic(name, broker.kafka_properties) for name in ("cut", "whole"))
    created = AdminClient(broker.kafka_properties)
    for each in created.create_topics([NewTopic(name, 1, 1) for name in ("cut", "whole")]).values():
        each.result(30)
    for topic in (cut, whole):
        topic.produce(*numbered(50))
    [first] = log.partitions(["cut"])
    broker.stop()
    shutil.copytree(broker.data_dir / "cut-0", tmp_path / "cut-0")
    broker.start()
    for topic in (cut, whole):
        topic.produce(*numbered(50))
    [noted] = log.partitions(["cut"])
    assert noted.last_stable == 100
    assert noted.leader_epoch is not None
    assert first.leader_epoch is not None
    assert noted.leader_epoch > first.leader_epoch
    broker.stop()
    shutil.rmtree(broker.data_dir / "cut-0")
    shutil.copytree(tmp_path / "cut-0", broker.data_dir / "cut-0")
    broker.start()
    for topic in (cut, whole):
        # By another producer: what the first one remembers of its sequence is gone from the log.
        Topic(topic.name, topic.properties).produce(*numbered(100))
    assert [p.last_stable for p in log.partitions(["cut", "whole"])] == [150, 200]

    for reader in READERS:
        read_on = partial(read, log, reader=reader)
        with pytest.raises(LogTruncated) as failed:
            read_on(cut, 100, leader_epoch=noted.leader_epoch)
        assert not failed.value.retryable
        message = str(failed.value)
        assert message.startswith(
            "cut[0] 100..150: the log was truncated below 100, up to which it was processed, and has grown again ("
        )
        assert "Run `exactbatch audit` to compare the target with the log" in message

        # What was processed before the cut is still there, and a restart alone is no cut.
        assert read_on(cut, 50, leader_epoch=first.leader_epoch) == list(range(50, 150))
        assert read_on(whole, 100, leader_epoch=noted.leader_epoch) == list(range(100, 200))
        assert read_on(whole, 0, leader_epoch=first.leader_epoch) == list(range(200))
        # Only the epoch tells: without it, other records are taken for those that follow.
        assert read_on(cut, 100, leader_epoch=None) == list(range(100, 150))


@pytest.mark.parametrize("commit", ["batch", "partition"])
def test_executors_that_reach_another_cluster_than_planner_write_nothing(
    own_stack: LocalStack,
    connection: Any,
    settings: Settings,
    make_topic: MakeTopic,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    commit: str,
) -> None:
    """A name that they resolve otherwise, or two clusters in bootstrap.servers: both have a topic of this name."""
    topic, other = make_topic(), dict(own_stack.kafka_properties)
    admin = AdminClient(other)
    admin.create_topics([NewTopic(topic.name, 1, 1)])[topic.name].result(30)
    while topic.name not in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)
    for each in (topic, Topic(topic.name, other)):
        each.produce(*(record(number) for number in range(20)))

    def here(_spark: Any, tasks: Any, do: Callable[..., Any], **_: Any) -> list[Any]:
        tasks = [replace(task, kafka=kafka) for task in tasks]
        return loaded([dump(do([task], number)) for number, task in enumerate(tasks)])

    monkeypatch.setattr(driver_engine, "on_executors", here)
    monkeypatch.setattr(driver_engine, "batch_session", lambda spark, _pipeline: nullcontext(spark))
    monkeypatch.setattr(driver_engine, "launch_timeout", lambda *_: nullcontext())
    context = SimpleNamespace(defaultParallelism=1, applicationId="local-1", setLocalProperty=lambda *_: None)
    spark = SimpleNamespace(sparkContext=context)
    limits = Limits(max_offsets=10)
    pipeline, log = make_pipeline(topic, commit=commit, limits=limits), KafkaBroker(settings.kafka)

    def process() -> int | None:
        batch_id = freeze_advance(connection, log, pipeline, origin="cli")
        assert batch_id is not None
        return process_batch(DriverEngine(spark), pipeline, batch_id, settings).batch.rows

    kafka = dict(settings.kafka)
    assert process() == 10
    _, cluster_id = log.cluster([topic.name])
    with monkeypatch.context() as patch:
        patch.setattr("exactbatch.audit.log_windows.reader_properties", lambda _: reader_properties(other))
        with pytest.raises(ConfigurationError, match=f"planned from the Kafka cluster {cluster_id}, and"):
            audit(pipeline, settings)
    kafka = other
    with pytest.raises(ConfigurationError) as caught:
        process()
    assert str(caught.value).startswith(
        f"{topic.name}[0] 10..20: it was planned from the Kafka cluster {cluster_id}, and {socket.gethostname()} "
        f"reads from the cluster "
    )
    # Neither is what the other log lacks taken for lost.
    at = TopicPartition(topic.name, 0, 20)
    admin.delete_records([at])[at].result(30)
    with pytest.raises(ConfigurationError, match="reads from the cluster"):
        process()
    kafka = dict(settings.kafka)
    assert process() == 10


@pytest.mark.slow
def test_batches_over_logs_that_are_cut_write_nothing_and_say_so(
    own_stack: LocalStack,
    spark: Any,
    connection: Any,
    database: str,
    make_pipeline: Callable[..., Pipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cut below the stored offset; the same and grown again past it; cut between plan and read; under a reader.

    In one go, because each cut takes two starts of the broker.
    """
    broker = own_stack.broker
    world = BatchRunner(spark, connection, Settings(kafka=dict(broker.kafka_properties), postgres=database))
    topics = shorter, grown, by_range, between, under = [
        Topic(f"cut-{name}", broker.kafka_properties)
        for name in ("shorter", "grown", "by-range", "between", "under")
    ]
    admin = AdminClient(broker.kafka_properties)
    for future in admin.create_topics([NewTopic(each.name, 1, 1) for each in topics]).values():
        future.result(30)
    for topic in topics:
        topic.produce(*map(record, range(5)))
    broker.stop()
    for topic in topics:
        shutil.copytree(broker.data_dir / f"{topic.name}-0", tmp_path / topic.name)
    broker.start()
    for topic in (shorter, grown, by_range):
        topic.produce(*map(record, range(5, 50)))
    pad = "x" * 20_000
    for topic in (between, under):
        topic.produce(*(record(number, pad) for number in range(5, 100)))
    pipelines = {
        topic.name: make_pipeline(topic, commit="partition" if topic is by_range else "batch")
        for topic in topics
    }
    for topic in (shorter, grown, by_range):
        world.run(pipelines[topic.name])
    planned = {topic.name: world.plan(pipelines[topic.name]) for topic in (between, under)}
    before = {name: world.everything(each) for name, each in pipelines.items()}
    gate = tmp_path / "gate"
    small = {"queued.max.messages.kbytes": 100, "fetch.message.max.bytes": 50_000}
    world.settings = replace(world.settings, kafka={**world.settings.kafka, **small})
    monkeypatch.setitem(
        spark.sparkContext.environment, "EXACTBATCH_FAILPOINTS", f"read.after_records=hold:{gate}"
    )

    def cut() -> None:
        while not Path(f"{gate}.held").exists():
            time.sleep(0.02)
        broker.stop()
        for topic in topics:
            shutil.rmtree(broker.data_dir / f"{topic.name}-0")
            shutil.copytree(tmp_path / topic.name, broker.data_dir / f"{topic.name}-0")
        broker.start()
        # Other producers: what the first ones remember of their sequence is gone from the log.
        for topic in (grown, by_range):
            Topic(topic.name, topic.properties).produce(*map(record, range(1000, 1100)))
        for topic in (between, under):
            again = Topic(topic.name, topic.properties)
            again.produce(*(record(1000 + number, pad) for number in range(200)))
        gate.touch()

    with ThreadPoolExecutor(1) as meanwhile:
        done = meanwhile.submit(cut)
        said = {under.name: world.refused(LogTruncated, pipelines[under.name], planned[under.name])}
        done.result()
    said[between.name] = world.refused(LogTruncated, pipelines[between.name], planned[between.name])

    with pytest.raises(StoredOffsetBeyondLog) as refused:
        world.plan(pipelines[shorter.name])
    assert "the log ends at 5, below the stored offset 50" in str(refused.value)
    for topic in (grown, by_range):
        with pytest.raises(LogTruncated) as cut_below:
            world.plan(pipelines[topic.name])
        assert f"{topic.name}[0]: the log was truncated below 50, up to which it was" in str(cut_below.value)
        # Without a record that is known, the plan cannot tell, and the reader does.
        world.execute(f"delete from exactbatch.fingerprint where topic = '{topic.name}'")
        batch_id = world.plan(pipelines[topic.name])
        for _ in range(2):
            message = world.refused(LogTruncated, pipelines[topic.name], batch_id)
            assert f"{topic.name}[0] 50..105: the log was truncated below 50, up to which it was" in message
            assert "register a pipeline under a new name to load the log as it is now" in message
    assert {name: world.everything(each) for name, each in pipelines.items()} == before
    # Where the stored offset is below the cut, the next plan takes the log as it is now; so do later ones.
    for name, message in said.items():
        assert f"{name}[0] 0..100: the log was truncated since the batch was planned, and" in message
        assert "Nothing was written. Plan again (clear the run, or wait for the next one)." in message
        assert world.run(pipelines[name]).batch.records == 205
        Topic(name, broker.kafka_properties).produce(record(2000))
        assert world.run(pipelines[name]).batch.records == 1
        assert world.is_exact(pipelines[name])
        ids = [row[0] for row in world.target(pipelines[name], "id")]
        assert ids == [*range(5), *range(1000, 1200), 2000]


FAR = 5_000_000_000


def test_an_audit_jumps_over_the_gaps_of_a_sparse_log(
    own_stack: LocalStack, database: str, connection: Any, make_pipeline: Callable[..., Pipeline]
) -> None:
    """As compaction leaves them. What lies in a gap without a record is found all the same."""
    broker = own_stack.broker
    broker.start()
    topic = Topic("sparse", dict(broker.kafka_properties))
    new = NewTopic(topic.name, 1, 1, config={"segment.ms": "100"})
    admin = AdminClient(topic.properties)
    admin.create_topics([new])[topic.name].result(30)
    topic.produce(*map(record, range(5)))
    time.sleep(0.2)
    topic.produce(*map(record, range(5, 10)))
    broker.stop()
    move_segment(broker.data_dir / "sparse-0", 5, FAR)
    broker.start()
    pipeline = make_pipeline(topic, sink=Append("public.sparse"), limits=Limits(max_offsets=None))
    world = AuditedTarget(connection, Settings(topic.properties, database), pipeline)
    far = range(FAR, FAR + 5)
    batch_id = world.load(only=[*range(5), *far])

    def audited() -> tuple[AuditReport, int]:
        steps: list[int] = []

        def count(done: int, _all: int) -> None:
            steps.append(done)
            assert len(steps) < 20, "a step for each window of a gap"

        found = audit(pipeline, world.settings, progress=count)
        assert steps[-1] == FAR + 5
        return found, len(steps)

    found, steps = audited()
    assert (findings(found), found.records, found.rows) == ({}, 10, 10)
    assert steps < 10
    row = "insert into {t} values (0, '', 'sparse', 0, %s, null, %s)"
    for offset in (300_000, 1_000_000_000, FAR - 1):
        world.execute(row, offset, batch_id)
    world.reject(2_000_000_000, batch_id)
    found, _ = audited()
    wrong = [300_000, 1_000_000_000, 2_000_000_000, FAR - 1]
    assert findings(found) == {"unexpected": (4, wrong), "miscounted": (2, [])}
    world.execute(
        "delete from {t} where kafka_offset between 5 and %s or kafka_offset = %s", FAR - 1, FAR + 2
    )
    world.execute("delete from exactbatch.rejected_record")
    # Before and behind the gap the batch stands for the offsets; in it they are recorded as lost.
    columns = "pipeline, topic, topic_id, partition, offsets, kind, batch_id"
    world.execute("update exactbatch.coverage set offsets = '[0,5)'")
    for kind, covered in (("loss", f"[5,{FAR})"), ("batch", f"[{FAR},{FAR + 5})")):
        world.execute(
            f"insert into exactbatch.coverage ({columns}) select pipeline, topic, topic_id, partition, %s, %s, "
            "case %s when 'batch' then batch_id end from exactbatch.coverage where offsets = '[0,5)'",
            covered,
            kind,
            kind,
        )
    found, _ = audited()
    [partition] = found.partitions
    assert (partition.missing.first, partition.lost) == ([FAR + 2], FAR - 5)
    assert (found.records, found.rows, found.findings["gaps"]) == (10, 9, 0)


def move_segment(partition: Path, first: int, to: int) -> None:
    """Let the segment that begins at the offset `first` begin at another one: checksums do not cover offsets."""
    segment = partition / f"{first:020}.log"
    batches = bytearray(segment.read_bytes())
    at = 0
    while at < len(batches):
        base, length = struct.unpack_from(">qi", batches, at)
        struct.pack_into(">q", batches, at, base - first + to)
        at += 12 + length
    for each in partition.glob(f"{first:020}.*"):
        each.unlink()
    for each in partition.glob("*.snapshot"):
        each.unlink()
    (partition / f"{to:020}.log").write_bytes(batches)
