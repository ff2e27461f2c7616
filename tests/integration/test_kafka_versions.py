"""Older brokers: what is read, processed, replayed and audited is exact, and each refusal is the same."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from exactbatch import Append, Pipeline, ToTopic
from exactbatch.audit.run_audit import audit
from exactbatch.errors import LogTruncated, OffsetsLost, TopicRecreated
from exactbatch.forwarding.forward import forward_results
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.local import LocalStack
from exactbatch.model import Retention
from exactbatch.operations.doctor.examine import examine
from exactbatch.operations.doctor.servers import check_kafka
from exactbatch.operations.status import load_status
from exactbatch.planning.request import ReplayRequest
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic, recreate
from support.databases import create_ledger_template
from support.forwarded import committed
from support.kafka_versions import RELEASES, Release, released_stack
from support.readers import READERS, read_with
from support.replays import Replays, ranges
from support.topics import Topic, record, topic_maker
from support.upserts import MakeUpsert, change, key_of, state

# `make test` tries one release, with one test; the slow tests try all releases.
SHORT: Final = "2.8.2"
slow: Final = pytest.mark.slow
WITH_KRAFT: Final = [name for name, each in RELEASES.items() if not each.zookeeper]
BOTH_READERS: Final = pytest.mark.parametrize("reader", READERS)


@pytest.fixture(
    scope="session",
    params=[name if name == SHORT else pytest.param(name, marks=slow) for name in RELEASES],
)
def release(request: pytest.FixtureRequest) -> Release:
    return RELEASES[request.param]


@pytest.fixture(scope="session")
def stack(release: Release) -> Iterator[LocalStack]:
    """The stack of this module, which has a broker of a release, and which the fixtures of all tests use."""
    with released_stack(release) as stack:
        stack.up()
        yield stack


# Other tests of the same process may have these of another stack.


@pytest.fixture(scope="session")
def admin(stack: LocalStack) -> AdminClient:
    return AdminClient(dict(stack.kafka_properties))


@pytest.fixture(scope="session")
def make_topic_once(stack: LocalStack, admin: AdminClient) -> MakeTopic:
    return topic_maker(admin, stack.kafka_properties)


@pytest.fixture(scope="session")
def ledger_template(stack: LocalStack) -> str:
    return create_ledger_template(stack.postgres_dsn)


def read(topic: Topic, from_offset: int, until_offset: int, leader_epoch: int | None = None) -> list[int]:
    """The offsets of the committed records in a range."""
    [partition] = KafkaBroker(topic.properties).partitions([topic.name])
    range_ = partition.range(from_offset, until_offset)
    batches = read_range(range_, topic.properties, leader_epoch=leader_epoch, timeout=10)
    return [offset for records in batches for offset in records.offsets().to_pylist()]


def is_exact(world: BatchRunner, pipeline: Pipeline) -> bool:
    """Compare offsets, and values, of log and target."""
    report = audit(pipeline, world.settings, values=True)
    return bool(report.partitions) and report.is_exact


def remove(admin: AdminClient, topic: Topic, before: int) -> None:
    at = TopicPartition(topic.name, 0, before)
    admin.delete_records([at])[at].result(30)


@pytest.mark.slow
def test_a_batch_its_replay_and_the_audit_are_exact(
    world: BatchRunner, replays: Replays, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(2)
    topic.produce(*map(record, range(10)))
    topic.produce(*map(record, range(10, 14)), partition=1)
    pipeline = make_pipeline(topic)
    assert world.run(pipeline).batch.rows == 14
    assert replays.run(pipeline, ranges((2, 5), topic=topic)).batch.rows == 3
    assert sorted(world.target(pipeline, "id")) == [(number,) for number in range(14)]
    assert is_exact(world, pipeline)
    _, cluster_id = world.log.cluster([topic.name])
    [finding] = check_kafka(world.settings)
    assert (finding.level, finding.found) == ("ok", f"cluster {cluster_id} with 1 brokers")


@slow
@BOTH_READERS
def test_only_committed_records_are_loaded(
    world: BatchRunner,
    replays: Replays,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
) -> None:
    """A batch ends before an open transaction, whose producer is named, and never has an aborted one."""
    read_with(monkeypatch, reader, world.spark)
    topic = make_topic()
    topic.produce(record(0))
    topic.transaction(record(1), record(2), end="abort")  # 1, 2, marker 3
    topic.transaction(record(4))  # 4, marker 5
    producer = topic.transaction(record(6), end="stay open")
    topic.produce(record(7))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    [partition] = load_status(world.connection, world.log, pipeline).partitions
    topic.end_transaction(producer, "abort")
    assert (partition.log.last_stable, partition.log.high_watermark) == (6, 8)
    assert [offset for _, offset in partition.open_transactions] == [6]
    assert read(topic, 0, 6) == [0, 4]
    assert world.process(pipeline, batch_id).batch.records == 2
    assert world.run(pipeline).batch.records == 1
    assert replays.run(pipeline, ranges((0, 9), topic=topic)).batch.records == 3
    assert world.target(pipeline, "id, kafka_offset") == [(0, 0), (4, 4), (7, 7)]
    assert is_exact(world, pipeline)


@slow
def test_an_upsert_a_replay_of_a_window_and_the_audit_are_exact(
    world: BatchRunner, replays: Replays, make_topic: MakeTopic, make_upsert: MakeUpsert
) -> None:
    topic = make_topic()
    for at, (number, name) in enumerate([(1, "a"), (2, "b"), (1, "c"), (3, "d")], start=1000):
        topic.produce(change(number, name), key=key_of(number), timestamp=at)
    topic.produce(None, key=key_of(2), timestamp=1004)
    pipeline = make_upsert(topic)
    assert world.run(pipeline).batch.records == 5
    window = tuple(datetime.fromtimestamp(at / 1000, UTC) for at in (1002, 1004))
    batch_id = replays.plan(pipeline, ReplayRequest(window=(window[0], window[1])))
    assert batch_id is not None
    assert replays.planned(batch_id) == [(0, 2, 4)]
    assert world.process(pipeline, batch_id).batch.records == 2
    assert state(world, pipeline) == {1: "c", 3: "d"}
    assert is_exact(world, pipeline)


@slow
@BOTH_READERS
def test_offsets_that_are_gone_are_an_error_in_plan_batch_and_replay(
    world: BatchRunner,
    replays: Replays,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
) -> None:
    read_with(monkeypatch, reader, world.spark)
    topic = make_topic()
    topic.produce(*map(record, range(10)))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    remove(admin, topic, 4)
    assert f"{topic.name}[0]" in world.refused(OffsetsLost, pipeline, batch_id)
    with pytest.raises(OffsetsLost, match=rf"{topic.name}\[0\] 0\.\.10: "):
        read(topic, 0, 10)
    with pytest.raises(OffsetsLost, match=rf"{topic.name}\[0\]: retention removed 4 unprocessed offsets"):
        world.plan(pipeline)
    later = make_pipeline(topic, name=f"{topic.name}-later", sink=Append(f'public."{topic.name}-later"'))
    assert world.run(later).batch.records == 6
    remove(admin, topic, 6)
    assert "retention removed 2 of these 6 offsets (log starts at 6)" in replays.refused(
        OffsetsLost, later, ranges((4, 10), topic=topic)
    )


@slow
def test_what_retention_removes_is_an_error(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(segment_ms="100", file_delete_delay_ms="0")
    for number in range(10):  # each has a segment of its own; from 4.1 on, none can be small by its bytes
        topic.produce(record(number), timestamp=1000 * (number + 1))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    limit = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[limit])
    admin.incremental_alter_configs([resource])[resource].result(30)
    assert world.log.retention([topic.name]) == {topic.name: Retention(1000, None)}
    deadline = time.monotonic() + 120
    while world.log.partitions([topic.name])[0].earliest < 9:  # the last one is in the active segment
        assert time.monotonic() < deadline, "the broker has not removed all"
        time.sleep(0.5)
    assert "of these offsets since the batch was planned" in world.refused(OffsetsLost, pipeline, batch_id)
    with pytest.raises(
        OffsetsLost, match=rf"{topic.name}\[0\]: retention removed (9|10) unprocessed offsets"
    ):
        world.plan(pipeline)


@slow
@pytest.mark.usefixtures("settles_soon")
def test_a_topic_that_is_created_again_is_another_one(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    before = world.log.topic_ids([topic.name])
    assert before[topic.name] != UUID(int=0)
    topic.produce(*map(record, range(3)))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    topic.produce(record(3))
    batch_id = world.plan(pipeline)
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(10)))
    assert world.log.topic_ids([topic.name]) != before
    assert "created again since the batch was planned" in world.refused(TopicRecreated, pipeline, batch_id)
    with pytest.raises(TopicRecreated, match=rf"{topic.name}\[0\]: the topic was deleted and created again"):
        audit(pipeline, world.settings)


@slow
def test_a_group_and_the_settings_of_a_topic_are_known(world: BatchRunner, make_topic: MakeTopic) -> None:
    topic = make_topic(2, cleanup_policy="compact", max_message_bytes="5000")
    offsets = {(topic.name, 0): 3, (topic.name, 1): 0}
    world.log.commit_group(f"g{topic.name}", offsets)
    assert world.log.group_offsets(f"g{topic.name}", [topic.name]) == offsets
    assert world.log.compacted([topic.name]) == {topic.name}
    assert world.log.max_message_bytes(topic.name) == 5000


@slow
def test_results_reach_a_topic_once(
    world: BatchRunner, replays: Replays, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic, results = make_topic(), make_topic(2)
    topic.produce(*map(record, range(5)))
    pipeline = make_pipeline(topic, forward=ToTopic(results.name, keyed_by=("id",)))
    world.run(pipeline)
    assert forward_results(world.connection, world.settings, pipeline).sent == 5
    replays.run(pipeline, ranges((0, 2), topic=topic))
    forward_results(world.connection, world.settings, pipeline)
    messages = committed(world.settings.kafka, results.name)
    sequences = sorted(each.sequence for each in messages)
    assert sequences == list(range(1, len(messages) + 1))
    assert {each.row["id"] for each in messages if each.row} == set(range(5))


@slow
def test_doctor_finds_nothing_wrong(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    world.run(make_pipeline(topic))
    of_kafka = {"Kafka connection", "topics", "retention", "freshness", "open transactions"}
    findings = [each for each in examine(world.settings) if each.check in of_kafka]
    assert {each.check for each in findings} == of_kafka
    assert {each.level for each in findings} == {"ok"}, findings


@slow
@pytest.mark.parametrize("release", WITH_KRAFT, indirect=True, scope="session")
def test_a_log_that_was_cut_and_has_grown_again_is_told_from_the_old_one(
    stack: LocalStack, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Offsets 5..9 are lost, and others take their place: by the epochs of the leader, both readers notice it.

    With ZooKeeper, a lone broker that starts again keeps its epoch.
    """
    topic, broker = make_topic(), stack.broker
    folder = broker.data_dir / f"{topic.name}-0"
    topic.produce(*map(record, range(5)))
    broker.stop()
    shutil.copytree(folder, tmp_path / "before")
    broker.start()
    topic.produce(*map(record, range(5, 10)))
    [noted] = KafkaBroker(topic.properties).partitions([topic.name])
    assert noted.last_stable == 10
    assert noted.leader_epoch
    broker.stop()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "before", folder)
    broker.start()
    Topic(topic.name, topic.properties).produce(*map(record, range(100, 110)))
    for reader in READERS:
        with pytest.MonkeyPatch.context() as patch:
            read_with(patch, reader)
            with pytest.raises(LogTruncated, match=r"10\.\.15: the log was truncated below 10"):
                read(topic, 10, 15, leader_epoch=noted.leader_epoch)
            assert read(topic, 5, 15, leader_epoch=0) == list(range(5, 15))
