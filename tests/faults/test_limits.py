"""What a batch may take: connections to Postgres, and memory."""

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psutil
import psycopg2
import pytest
from confluent_kafka import Producer

from exactbatch import Json, Pipeline, Tuning
from exactbatch.batch.by_partition.partition_commit import commit_ranges
from exactbatch.batch.by_partition.range_copy import RangeTask
from exactbatch.batch.publishing.fences import read_sink_facts
from exactbatch.batch.staging.shares import grouped
from exactbatch.batch.staging.stage import stage
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.environment import LONG
from support.faults.drivers import BatchLauncher, Driver
from support.faults.worker_memory import each_in_turn, peak_of
from support.topics import Topic, record
from support.waiting import wait_for

pytestmark = pytest.mark.slow

log = logging.getLogger(__name__)
MakeTopic = Callable[..., Topic]
MB: Final = 1024 * 1024
SLOTS, CONNECTIONS, PARTITIONS = 8, 3, 220 if LONG else 80


@pytest.fixture
def world(spark, connection, settings, tmp_path):
    """Drivers over the test's broker and database; none of them outlives the test."""
    world = BatchLauncher(spark, connection, settings, tmp_path)
    yield world
    for driver in world.drivers:
        driver.close()


@contextmanager
def watching(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again until the block ends."""
    ended = threading.Event()

    def again() -> None:
        while not ended.wait(0.01):
            look()

    watcher = threading.Thread(target=again)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@pytest.mark.parametrize("commit", ["batch", "partition"] if LONG else ["batch"])
def test_connections_are_capped_however_many_partitions_and_slots_there_are(
    world, make_topic, make_pipeline, tmp_path, commit
):
    """Many more ranges than slots, each with 100 records of 1 kB. The first tasks wait for each other."""
    topic = make_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        for number in range(100):
            topic._producer.produce(topic.name, record(number, "x" * 1000), partition=partition)
        topic._producer.poll(0)
    assert topic._producer.flush(60) == 0
    pipeline = make_pipeline(
        topic,
        commit=commit,
        tuning=Tuning(max_connections=CONNECTIONS),
        spark_conf={"spark.master": f"local[{SLOTS}, 2]"},
        value=Json("id int"),
    )
    batch_id = world.plan(pipeline)
    now: dict[str, int] = {}
    most: dict[str, int] = defaultdict(int)
    watcher = psycopg2.connect(world.settings.postgres)
    watcher.autocommit = True

    def look() -> None:
        nonlocal now
        with watcher.cursor() as cursor:
            cursor.execute(
                "select application_name, count(*) from pg_stat_activity where datname = current_database() "
                "and application_name like 'exactbatch%' group by 1"
            )
            now = dict(cursor.fetchall())
        for name, count in {**now, "all": sum(now.values())}.items():
            most[name] = max(most[name], count)

    gate, writing = tmp_path / "go", tmp_path / "go.held"
    moment = "stage.before_copy_commit" if commit == "batch" else "partition.before_commit"
    driver = world.launch(pipeline, batch_id, f"{moment}=hold:{gate}")
    with watching(look):
        wait_for(
            lambda: writing.exists() and len(set(writing.read_text().split())) == CONNECTIONS,
            "tasks that write",
            driver=driver,
            timeout=100,
        )
        # The most may be larger: Postgres shows a closed connection for a moment beside the next one.
        wait_for(lambda: now.get("exactbatch task") == CONNECTIONS, "their connections", timeout=60)
        gate.touch()
        assert driver.wait() == 0, driver.output
    watcher.close()
    assert most["exactbatch task"] < 2 * CONNECTIONS
    assert most["all"] < 2 * CONNECTIONS + 2
    world.assert_exact(pipeline, rows=PARTITIONS * 100)


@pytest.mark.long
def test_memory_does_not_grow_with_the_batch(world, make_topic, make_pipeline):
    """Ten times as many records, 160 MB instead of 16, and the same peaks of driver and Python workers."""
    world.settings = replace(
        world.settings, kafka={**world.settings.kafka, "queued.max.messages.kbytes": 4096}
    )
    peaks = {}
    for records in (16_000, 160_000):
        topic = make_topic()
        value = record(7, "x" * 1000)
        for number in range(records):
            topic._producer.produce(topic.name, value, partition=0)
            if number % 1000 == 0:
                topic._producer.poll(0)
                while len(topic._producer) > 50_000:
                    topic._producer.poll(0.1)
        assert topic._producer.flush(120) == 0
        pipeline = make_pipeline(topic, value=Json("id int, name text"))
        batch_id = world.plan(pipeline)
        driver = world.launch(pipeline, batch_id)
        sizes: dict[str, float] = defaultdict(float)
        with watching(lambda: peak(driver, sizes)):  # noqa: B023 - it ends with the block
            assert driver.wait() == 0, driver.output
        assert world.batch(batch_id).rows == records
        peaks[records] = sizes
    small, large = peaks[16_000], peaks[160_000]
    log.info("peaks in MB: %s", {records: dict(sizes) for records, sizes in peaks.items()})
    for kind in ("driver", "workers"):
        assert 30 < small[kind] < 400
        # What is in flight is bounded; a copy of the batch would be 144 MB more.
        assert large[kind] < small[kind] + 60


def peak(driver: Driver, sizes: dict[str, float]) -> None:
    """Take the resident sizes of now into account, in MB: the driver's Python, and its largest Python worker."""
    time.sleep(0.05)
    try:
        root = psutil.Process(driver.pid)
        sizes["driver"] = max(sizes["driver"], root.memory_info().rss / MB)
        for process in root.children(recursive=True):
            if process.name().startswith("python"):
                sizes["workers"] = max(sizes["workers"], process.memory_info().rss / MB)
    except psutil.NoSuchProcess:
        return


def work_of(world: BatchLauncher, pipeline: Pipeline) -> tuple[Any, Any]:
    """What an executor does for the one range of a new batch, and its task."""
    work, (task,) = works_of(world, pipeline)
    return work, task


def works_of(world: BatchLauncher, pipeline: Pipeline) -> tuple[Any, list[Any]]:
    """What an executor does for each group of ranges of a new batch, and its tasks: a range is a group by itself."""
    batch_id = world.plan(pipeline)
    tables = StagingTables(batch_id, 1)
    with transaction(world.connection) as cursor:
        ranges = Ledger(world.connection).batches.read_ranges(batch_id)
        plan_id = Ledger(world.connection).batches.read(batch_id).plan_id
        create_rejects(cursor, tables)
        create_rows(cursor, tables, pipeline.value.columns)
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
    with transaction(world.connection) as cursor:
        seen = read_sink_facts(cursor, find_writer(pipeline.traits))
    if pipeline.commit == "batch":
        return stage, [
            [task] for task in stage_tasks(pipeline, pipeline.traits, ranges, {}, tables, world.settings, 1)
        ]
    kafka, postgres = world.settings.kafka, world.settings.postgres
    return commit_ranges, [
        [RangeTask(each, None, batch_id, plan_id, pipeline, kafka, postgres, seen)] for each in ranges
    ]


@pytest.mark.parametrize("commit", ["batch", "partition"] if LONG else ["batch"])
def test_a_worker_holds_few_rejects_however_many_there_are(world, make_topic, make_pipeline, commit):
    """One range in which no record decodes; a reject has all of its record."""
    kafka = {**world.settings.kafka, "queued.max.messages.kbytes": 4_096}
    world.settings = replace(world.settings, kafka=kafka)
    peaks = {}
    for megabytes in (48, 2_000 if LONG else 144):
        topic = make_topic()
        for number in range(megabytes * MB // 4_000):
            topic._producer.produce(topic.name, b"x" * 4_000, partition=0)
            if number % 1_000 == 0:
                assert topic._producer.flush(60) == 0
        assert topic._producer.flush(60) == 0
        pipeline = make_pipeline(topic, commit=commit, max_reject_share=1.0)
        (outcome,), peaks[megabytes] = peak_of(*work_of(world, pipeline))
        assert not isinstance(outcome, Exception), outcome
    log.info("peaks of a worker, in MB, by MB of rejects: %s", peaks)
    small, large = peaks.values()
    # To hold all of them would take twice as much again as they are large.
    assert large < small + 60


def in_bulk(
    topic: Topic, values: Iterable[bytes], *, partitions: int = 1, **producer_properties: str | int
) -> None:
    """Append many records, round the partitions, with a queue of at most 64 MB."""
    producer = Producer(
        {**topic.properties, "queue.buffering.max.kbytes": 65_536, "linger.ms": 20, **producer_properties}
    )
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic.name, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


def alike(megabytes: int) -> Iterator[bytes]:
    """Records of 2 kB that zstd packs 1,000 : 1."""
    return (record(7, "x" * 2_000) for _ in range(megabytes * MB // 2_020))


def undecodable(megabytes: int) -> Iterator[bytes]:
    """Records of 4 kB, none of them JSON, that a broker does not pack."""
    parts = [random.Random(number).randbytes(3_990) for number in range(100)]
    return (b"%010d" % number + parts[number % 100] for number in range(megabytes * MB // 4_000))


def large(megabytes: int) -> Iterator[bytes]:
    """Records of just under 10 MB."""
    return (record(number, "x" * (10 * MB - 1_000)) for number in range(megabytes // 10))


def few(_megabytes: int) -> Iterator[bytes]:
    """Twenty records for each of 5,000 ranges."""
    return (record(number, "x" * 100) for number in range(100_000))


def cut(task: Any, offsets: int) -> list[Any]:
    """The same work in ranges of this number of offsets."""
    whole = task.range
    starts = range(whole.from_offset, whole.until_offset, offsets)
    return [
        replace(task, range=replace(whole, from_offset=each, until_offset=each + offsets)) for each in starts
    ]


# What docs/limits.md gives for topics that are packed well.
SMALL_FETCHES: Final = {"fetch.message.max.bytes": 32_768, "queued.max.messages.kbytes": 4_096}


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize(
    ("values", "megabytes", "partitions", "properties", "bound"),
    [
        pytest.param(undecodable, 10_000, 1, {}, 500, id="10 GB of rejects"),
        pytest.param(large, 2_000, 1, {}, 500, id="records of 10 MB"),
        pytest.param(few, 10, 50, {}, 500, id="5,000 ranges"),
        pytest.param(alike, 2_000, 1, {}, 2_000, id="packed 1,000 to 1"),
        pytest.param(large, 2_000, 1, {}, 3_000, id="records of 10 MB, packed"),
        pytest.param(alike, 2_000, 1, SMALL_FETCHES, 600, id="packed 1,000 to 1, small fetches"),
        pytest.param(large, 2_000, 1, SMALL_FETCHES, 1_500, id="records of 10 MB, packed, small fetches"),
    ],
)
def test_the_memory_of_a_worker_has_a_bound(
    world, make_topic, make_pipeline, request, values, megabytes, partitions, properties, bound
):
    """`bound` in MB, with these properties of the Kafka connection and all other settings at their defaults."""
    world.settings = replace(world.settings, kafka={**world.settings.kafka, **properties})
    topic = make_topic(partitions, max_message_bytes=str(10 * MB))
    packed = "packed" in request.node.callspec.id
    in_bulk(
        topic,
        values(megabytes),
        partitions=partitions,
        **{
            "compression.type": "zstd" if packed else "none",
            "batch.size": 10 * MB if packed or values is large else MB,
            "message.max.bytes": 10 * MB + 1_000,
        },
    )
    pipeline = make_pipeline(topic, value=Json("id int, name text"), max_reject_share=1.0)
    work, tasks = works_of(world, pipeline)
    assert len(tasks) == partitions
    if values is few:
        splits = [split for (task,) in tasks for split in cut(task, 20)]
        assert len(splits) == 5_000
        tasks = grouped(splits)
    started = time.monotonic()
    outcome, peak_mb = peak_of(partial(each_in_turn, work), tasks)
    log.info("%d groups: %.0f MB in %.0f s", len(tasks), peak_mb, time.monotonic() - started)
    assert not isinstance(outcome, Exception), outcome
    assert peak_mb < bound
