"""A log that is not the one that was processed is noticed by its records, with topic IDs and without."""

import logging
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch import Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    LogTruncated,
    StoredOffsetBeyondLog,
    TopicRecreated,
)
from exactbatch.kafka import admin as admins
from exactbatch.kafka import record_digests
from exactbatch.kafka.identity import named_id
from exactbatch.ledger import Ledger
from exactbatch.local import LocalStack
from exactbatch.model import Fingerprint
from exactbatch.operations.doctor.servers import check_kafka
from exactbatch.operations.doctor.topic_checks import check_known_records
from exactbatch.operations.lag import measure_lag
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.plan_tables import plan_tables
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic, recreate
from support.kafka_versions import RELEASES, WITHOUT_IDS, Release, released_stack
from support.replays import Replays, ranges
from support.shop import Shop
from support.topics import Topic, record, topic_maker

AT: Final = 1_790_000_000_000  # ms
NO_IDS: Final = (2, 7)
# What a broker of these versions sends: topic IDs and leader epochs, only epochs, neither.
SENT: Final = {"all": None, "no IDs": NO_IDS, "no IDs and epochs": (2, 0)}


def sent(*names: str) -> Any:
    return pytest.mark.parametrize("version", [SENT[name] for name in names], ids=names, indirect=True)


@pytest.fixture(autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int] | None:
    """Ask the broker what one of an older version can be asked."""
    version: tuple[int, int] | None = getattr(request, "param", None)
    if version is not None:
        speak(monkeypatch, version)
    return version


def speak(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]) -> None:
    of_properties = admins.admin_properties
    monkeypatch.setattr(
        admins, "admin_properties", lambda given: {**of_properties(given), "api_version": version}
    )


def kept(world: BatchRunner, pipeline: Pipeline) -> list[int]:
    statement = 'select "offset" from exactbatch.fingerprint where pipeline = %s order by 1'
    return [offset for (offset,) in world.rows(statement, pipeline.name)]


def plan(world: BatchRunner, pipeline: Pipeline) -> int | None:
    return freeze_advance(world.connection, world.log, pipeline, origin="cli")


def plan_error(world: BatchRunner, pipeline: Pipeline) -> ExactbatchError:
    with pytest.raises(ExactbatchError) as raised:
        plan(world, pipeline)
    return raised.value


@sent(*SENT)
@pytest.mark.parametrize("count", [5, 10, 30], ids=["shorter", "equal", "longer"])
@pytest.mark.usefixtures("settles_soon")
def test_a_topic_that_is_created_again_is_noticed(
    world: BatchRunner,
    replays: Replays,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    version: tuple[int, int] | None,
    count: int,
) -> None:
    topic = make_topic()
    pipeline = make_pipeline(topic)
    for numbers in (range(3), range(3, 10)):
        topic.produce(*map(record, numbers), timestamp=AT)
        world.run(pipeline)
    # Without an ID, the first plan keeps the first record.
    assert kept(world, pipeline) == ([2, 9] if version is None else [0, 9])
    assert plan(world, pipeline) is None
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(100, 100 + count)), timestamp=AT)
    error = plan_error(world, pipeline)
    assert isinstance(error, TopicRecreated)
    if version is not None:
        differs = 0 if count == 5 else 9
        assert str(error).startswith(
            f"{topic.name}[0]: the topic was deleted and created again, or is that of another cluster: offset "
            f"{differs} had a record of 2026-09-21 "
        )
    with pytest.raises(TopicRecreated):
        replays.plan(pipeline, ranges((2, 5), topic=topic))


@sent("no IDs")
@pytest.mark.usefixtures("settles_soon")
def test_a_shorter_log_with_the_same_records_lost_its_end(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    pipeline = make_pipeline(topic)
    for numbers in (range(3), range(3, 10)):
        topic.produce(*map(record, numbers), timestamp=AT)
        world.run(pipeline)
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(5)), timestamp=AT)
    assert isinstance(plan_error(world, pipeline), StoredOffsetBeyondLog)


@sent("no IDs")
@pytest.mark.parametrize("commit", ["batch", "partition"])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "second batch"])
def test_a_topic_that_is_created_again_while_it_is_read_is_noticed(
    world: BatchRunner,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    commit: str,
    first: bool,
) -> None:
    topic = make_topic()
    topic.produce(*map(record, range(10)), timestamp=AT)
    pipeline = make_pipeline(topic, commit=commit)
    if not first:
        world.run(pipeline)
        topic.produce(*map(record, range(10, 20)), timestamp=AT)
    batch_id = world.plan(pipeline)
    known = kept(world, pipeline)
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(100, 130)), timestamp=AT)
    message = world.refused(TopicRecreated, pipeline, batch_id)
    assert f"offset {0 if first else 9} had a record" in message
    assert kept(world, pipeline) == known


def restore(broker: Any, backup: Path) -> None:
    broker.stop()
    shutil.rmtree(broker.data_dir)
    shutil.copytree(backup, broker.data_dir)
    broker.start()


@sent(*SENT)
def test_restored_disks_with_the_same_epochs_are_noticed(
    own_stack: LocalStack,
    spark: Any,
    connection: Any,
    database: str,
    make_pipeline: MakePipeline,
    tmp_path: Path,
    version: tuple[int, int] | None,
) -> None:
    """All disks are restored, those of the controller, too: so the epochs come again."""
    broker = own_stack.broker
    broker.start()
    settings = Settings(kafka=dict(broker.kafka_properties), postgres=database)
    world = BatchRunner(spark, connection, settings)
    topic = Topic(f"restored-{'-'.join(map(str, version or ()))}", dict(broker.kafka_properties))
    admin = AdminClient(topic.properties)
    admin.create_topics([NewTopic(topic.name, 1, 1)])[topic.name].result(30)
    pipeline = make_pipeline(topic)
    topic.produce(*map(record, range(5)))
    world.run(pipeline)
    broker.stop()
    shutil.copytree(broker.data_dir, tmp_path / "backup")
    broker.start()
    topic.produce(*map(record, range(5, 10)))
    world.run(pipeline)
    [before] = world.log.partitions([topic.name])
    restore(broker, tmp_path / "backup")
    Topic(topic.name, topic.properties).produce(*map(record, range(100, 120)))
    [after] = world.log.partitions([topic.name])
    assert (after.leader_epoch, after.topic_id) == (before.leader_epoch, before.topic_id)
    assert after.last_stable == 25
    error = plan_error(world, pipeline)
    assert isinstance(error, LogTruncated)
    assert "the log was truncated below 10, up to which it was processed" in str(error)
    assert "offset 9 had a record" in str(error)
    assert f", while offset {4 if version is None else 0} is unchanged" in str(error)


def compact(admin: AdminClient, world: BatchRunner, topic: Topic, gone: int) -> None:
    """Write until the broker has compacted a record away."""
    deadline, found = time.monotonic() + 60, gone
    while found == gone:
        assert time.monotonic() < deadline, "the broker compacts nothing"
        topic.produce(record(1000), key=b"filler")
        time.sleep(0.5)
        [partition] = world.log.partitions([topic.name])
        [fingerprint] = world.log.take_fingerprints(
            [partition.range(gone, partition.last_stable)], of_first=True
        )
        found = fingerprint.offset


@sent("all", "no IDs")
def test_records_that_compaction_has_removed_say_nothing(
    world: BatchRunner,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    caplog: pytest.LogCaptureFixture,
    version: tuple[int, int] | None,
) -> None:
    topic = make_topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
    )
    pipeline = make_pipeline(topic)
    for number, key in enumerate((b"a", b"b")):
        topic.produce(record(number), key=key)
        world.run(pipeline)
    assert kept(world, pipeline) == [0, 1]
    topic.produce(record(2), key=b"b")
    compact(admin, world, topic, 1)
    assert plan(world, pipeline) is not None  # by offset 0
    assert "no known record left" not in caplog.text
    topic.produce(record(3), key=b"a")
    compact(admin, world, topic, 0)
    assert plan(world, pipeline) is not None
    assert ("no known record left" in caplog.text) == (version is not None)


@sent("all", "no IDs")
def test_when_no_known_record_is_left_the_plan_and_doctor_say_so(
    world: BatchRunner,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    caplog: pytest.LogCaptureFixture,
    version: tuple[int, int] | None,
) -> None:
    topic = make_topic(2)
    topic.produce(*map(record, range(10)))
    topic.produce(*map(record, range(10)), partition=1)
    pipeline = make_pipeline(topic)
    world.run(pipeline)

    def diagnosed() -> list[tuple[str, str]]:
        with transaction(world.connection):
            ledger = Ledger(world.connection)
            definition, stored = (
                ledger.registry.read(pipeline.name),
                ledger.plans.read_stored_offsets(pipeline),
            )
        lags = [measure_lag(world.log, definition, stored)]
        return [(each.level, each.found) for each in check_known_records(world.connection, world.log, lags)]

    assert diagnosed() == [("ok", "2 partitions have records that were processed")]
    at = TopicPartition(topic.name, 0, 10)
    admin.delete_records([at])[at].result(30)
    caplog.set_level(logging.WARNING)
    assert plan(world, pipeline) is None
    [(level, found)] = diagnosed()
    if version is None:
        assert (level, found) == ("ok", "1 partitions have records that were processed")
        assert "known record" not in caplog.text
    else:
        assert level == "warning"
        assert f"1 partitions have no record left that was processed ({topic.name}[0] is one)" in found
        assert (
            "1 partitions have no known record left to compare, and the brokers send no topic IDs"
            in caplog.text
        )
        assert f"created again: {topic.name}[0]" in caplog.text
        topic.produce(record(10))
        world.run(pipeline)
        caplog.clear()
        topic.produce(record(11))
        assert plan(world, pipeline) is not None
        assert caplog.text == ""


def test_markers_and_aborted_records_are_stepped_over(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(0))
    topic.transaction(record(1))  # 1, marker 2
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    assert kept(world, pipeline) == [1]
    topic.produce(*map(record, range(3, 6)))
    topic.transaction(*map(record, range(20)), end="abort")  # 6 to 25, marker 26
    world.run(pipeline)
    assert kept(world, pipeline) == [1, 3]
    topic.transaction(record(27), end="abort")  # 27, marker 28
    assert world.run(pipeline).batch.records == 0
    assert kept(world, pipeline) == [1, 3]


def test_a_record_past_the_range_is_not_kept(world: BatchRunner, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.transaction(record(0), end="abort")  # 0, marker 1
    topic.produce(record(2))
    [partition] = world.log.partitions([topic.name])
    assert world.log.take_fingerprints([partition.range(0, 2)]) == []
    assert [each.offset for each in world.log.take_fingerprints([partition.range(0, 3)])] == [2]


@sent("no IDs")
def test_a_topic_is_still_known_when_brokers_begin_to_send_ids(
    world: BatchRunner,
    replays: Replays,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic()
    topic.produce(*map(record, range(10)))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    speak(monkeypatch, (3, 0))
    assert world.log.topic_ids([topic.name])[topic.name] != named_id(topic.name)
    topic.produce(*map(record, range(10, 20)))
    assert world.run(pipeline).batch.rows == 10
    assert replays.run(pipeline, ranges((2, 15), topic=topic)).batch.rows == 13
    assert world.is_exact(pipeline)
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(100, 130)))
    assert isinstance(plan_error(world, pipeline), TopicRecreated)


def test_brokers_that_send_ids_no_more_are_refused(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    topic.produce(record(0))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    speak(monkeypatch, NO_IDS)
    error = plan_error(world, pipeline)
    assert isinstance(error, ConfigurationError)
    assert "the brokers send no topic ID, and the topic that was processed has the ID" in str(error)


def test_at_most_eight_fingerprints_remain_at_growing_distances(
    connection: Any, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    pipeline, ledger = make_pipeline(make_topic()), Ledger(connection)
    id_ = UUID(int=1)

    def add(*places: tuple[int, int]) -> None:
        with transaction(connection):
            ledger.fingerprints.add(
                pipeline.name,
                [Fingerprint("t", partition, id_, offset, None, b"d") for partition, offset in places],
            )

    def behind(partition: int) -> list[int]:
        with transaction(connection):
            found = [
                each.offset for each in ledger.fingerprints.read(pipeline.name) if each.partition == partition
            ]
        return sorted(max(found) - each for each in found)

    for number in range(2000):
        add((0, 7 * number), (1, 1000 * number))
    for partition, step in ((0, 7), (1, 1000)):
        distances = behind(partition)
        assert distances[0] == 0
        assert len(distances) == 5
        assert all(far <= 16**2 * max(near, step) for near, far in pairwise(distances)), distances
    end = 10**12
    distances = [0, 1, 15, 20, 300, 400, 5000, 70_000, 2_000_000, 10**8, 10**9, 10**11]
    add(*((2, end - each) for each in distances))
    assert behind(2) == [0, 15, 20, 400, 5000, 70_000, 2_000_000, 10**11]


@sent("no IDs")
def test_of_many_tables_only_the_one_of_another_topic_fails(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic
) -> None:
    shop = Shop(world.settings.kafka, admin)
    names = ("event1", "event2", "event3")
    shop.create(*names)
    tables = shop.tables(names)
    with transaction(world.connection):
        for member in tables.members([shop.topic(name) for name in names]):
            Ledger(world.connection).registry.register(member)
    for name in names:
        shop.produce(name, *range(5))
    for made in plan_tables(world.connection, world.log, tables, None, None, origin="cli"):
        assert made.pipeline is not None
        assert made.batch is not None
        world.process(made.pipeline, made.batch.batch_id)
    recreate(admin, make_topic, Topic(shop.topic("event2"), dict(world.settings.kafka)))
    for name in names:
        shop.produce(name, *range(50, 60))
    plans = plan_tables(world.connection, world.log, tables, None, None, origin="cli")
    assert {each.name: type(each.error) for each in plans if each.error is not None} == {
        f"{tables.name}.event2": TopicRecreated
    }
    assert sum(each.batch is not None for each in plans) == 2


def test_what_the_broker_does_not_send_in_time_is_not_compared(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    topic.produce(record(0))
    pipeline = make_pipeline(topic)
    monkeypatch.setattr(record_digests, "_TIMEOUT", 0.0)
    assert world.run(pipeline).batch.rows == 1
    assert kept(world, pipeline) == []
    assert plan(world, pipeline) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "settings_of_broker"),
    [(WITHOUT_IDS, {}), (RELEASES["2.8.2"], {"inter.broker.protocol.version": "2.7"})],
    ids=["2.7.2", "2.8.2 that speaks 2.7"],
)
def test_a_broker_without_topic_ids_is_known_by_its_records(
    release: Release,
    settings_of_broker: dict[str, str],
    spark: Any,
    connection: Any,
    database: str,
    make_pipeline: MakePipeline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A batch, a replay, a window and the audit are exact; a topic that was created again is noticed."""
    with released_stack(release, "without-ids") as stack:
        stack.broker.configure({}, settings_of_broker)
        stack.broker.start()
        admin = AdminClient(dict(stack.kafka_properties))
        make_topic = topic_maker(admin, stack.kafka_properties)
        world = BatchRunner(spark, connection, Settings(dict(stack.kafka_properties), database))
        topic = make_topic(2)
        topic.produce(*map(record, range(10)))
        topic.transaction(record(10), record(11), partition=1)
        pipeline = make_pipeline(topic)
        assert world.log.topic_ids([topic.name]) == {topic.name: named_id(topic.name)}
        assert world.run(pipeline).batch.rows == 12
        replays = Replays(world)
        assert replays.run(pipeline, ranges((2, 5), topic=topic)).batch.rows == 3
        topic.produce(record(12))
        assert world.run(pipeline).batch.rows == 1
        assert audit(pipeline, world.settings, values=True).is_exact
        [finding] = check_kafka(world.settings)
        assert finding.level == "ok"
        assert "no known record left" not in caplog.text
        topic.produce(record(13))
        batch_id = world.plan(pipeline)
        recreate(admin, lambda **named: make_topic(2, **named), topic)
        topic.produce(*map(record, range(100, 120)))
        for refused in (lambda: world.plan(pipeline), lambda: world.process(pipeline, batch_id)):
            with pytest.raises(TopicRecreated, match="offset 10 had a record of .*, and has another one now"):
                refused()


def test_a_replay_compares_known_records_of_its_own_partitions_alone(
    world: BatchRunner,
    replays: Replays,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipeline may have thousands of partitions, and a replay of one range must not read them all."""
    topic = make_topic(3)
    pipeline = make_pipeline(topic)
    for partition in range(3):
        topic.produce(record(partition), timestamp=AT, partition=partition)
    world.run(pipeline)
    compared: list[list[int]] = []
    compare = type(world.log).compare_fingerprints

    def noting(self: Any, known: Any, partitions: Any) -> Any:
        compared.append([each.partition for each in partitions])
        return compare(self, known, partitions)

    monkeypatch.setattr(type(world.log), "compare_fingerprints", noting)
    replays.plan(pipeline, ranges((0, 1), topic=topic, partition=1))
    assert compared == [[1]]
