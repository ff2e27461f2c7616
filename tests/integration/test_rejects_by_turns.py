"""Rejects are copied in portions, so that no worker holds all of them; each counts once all the same."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from exactbatch.batch.by_partition import range_copy
from exactbatch.batch.by_partition.partition_commit import Committed, commit_batch, commit_range
from exactbatch.batch.rows import rejected
from exactbatch.batch.staging import reread, uncastable
from exactbatch.batch.staging import stage as stage_module
from exactbatch.batch.staging.stage import decode_range, stage
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, create_rejects, create_rows
from exactbatch.batch.staging.task import Staged, StageTask
from exactbatch.compiled.availability import VARIABLE
from exactbatch.errors import TooManyRejects
from exactbatch.kafka import reader as read
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner
from support.range_commits import committed, task_of
from support.topics import record

GOOD, BAD = 40, 20


@pytest.fixture
def topic(make_topic):
    """60 records; each third one is bad."""
    topic = make_topic()
    topic.produce(*(b"bad" if number % 3 == 2 else record(number) for number in range(GOOD + BAD)))
    return topic


@pytest.fixture
def turns(monkeypatch):
    """Ten records are read at a time, and their rejects copied; how often that was."""
    monkeypatch.setattr(read, "_FIRST_RECORDS", 10)
    monkeypatch.setattr(read, "_BATCH_RECORDS", 10)
    monkeypatch.setattr(rejected, "_HELD_BYTES", 1)
    counted: Counter[str] = Counter()
    for module in (stage_module, range_copy):
        monkeypatch.setattr(module, "failpoint", lambda name: counted.update([name]))
    return counted


@pytest.fixture
def task(world, topic, make_pipeline):
    """What an executor is given, and its staging tables."""
    pipeline = make_pipeline(topic, max_reject_share=1.0)
    batch_id = world.plan(pipeline)
    tables = StagingTables(batch_id, 7)
    with transaction(world.connection) as cursor:
        ranges = Ledger(world.connection).batches.read_ranges(batch_id)
        create_rejects(cursor, tables)
        create_rows(cursor, tables, pipeline.value.columns)
    (task,) = stage_tasks(pipeline, pipeline.traits, ranges, {}, tables, world.settings, 1)
    yield task
    world.execute(f"drop table exactbatch_staging.{tables.rows}, exactbatch_staging.{tables.rejects}")


def staged(world: BatchRunner, task: StageTask, table: str) -> list[tuple[Any, ...]]:
    """Task attempts and how many rows each has."""
    return world.rows(
        f"select task_attempt, count(*) from exactbatch_staging.{table} where task_attempt <> {INTACT} "
        f"group by 1 order by 1"
    )


def test_one_connection_takes_rows_and_rejects_by_turns(world, task, turns, monkeypatch):
    assert stage([task], 5) == [Staged(task.range, 5, GOOD + BAD, GOOD, BAD, 0)]
    assert turns["stage.after_rejects"] >= 6
    assert staged(world, task, task.tables.rows) == [(5, GOOD)]
    assert staged(world, task, task.tables.rejects) == [(5, BAD)]
    found = world.rows(
        f'select distinct "offset" % 3 from exactbatch_staging.{task.tables.rejects} where task_attempt <> {INTACT}'
    )
    assert found == [(2,)]

    def third(name: str) -> None:
        turns[name] += 1
        if turns[name] == 3:
            raise RuntimeError("killed")

    turns.clear()
    monkeypatch.setattr(stage_module, "failpoint", third)
    with pytest.raises(RuntimeError):
        stage([task], 6)
    assert staged(world, task, task.tables.rejects) == [(5, BAD)]


def test_what_a_transform_reads_leaves_its_rejects_in_portions(world, task, turns):
    given = list(decode_range(task, 5))
    assert given.pop() == Staged(task.range, 5, GOOD + BAD, GOOD, BAD, 0)
    assert sum(len(batch) for batch in given if isinstance(batch, pa.RecordBatch)) == GOOD
    assert turns["stage.after_rejects"] >= 6
    assert staged(world, task, task.tables.rejects) == [(5, BAD)]
    left = decode_range(task, 6)  # as an attempt that is killed
    for _ in range(4):
        next(left)
    left.close()
    ((_, whole), (attempt, part)) = staged(world, task, task.tables.rejects)
    assert (whole, attempt) == (BAD, 6)
    assert 0 < part < BAD  # an attempt that Spark does not accept: it does not count


@pytest.mark.parametrize("fast_path", ["off", "0"])
def test_a_range_is_committed_with_rejects_of_many_portions(
    world, topic, make_pipeline, turns, monkeypatch, fast_path
):
    monkeypatch.setenv(VARIABLE, fast_path)
    pipeline = make_pipeline(topic, commit="partition", max_reject_share=1.0)
    batch_id = world.plan(pipeline)
    task = task_of(world, pipeline, batch_id)
    assert commit_range(task, 1) == Committed(GOOD + BAD)
    assert turns["partition.after_rejects"] >= 6
    assert committed(world, batch_id) == [(0, GOOD + BAD, GOOD, BAD, 0)]
    commit_batch(world.connection, pipeline, batch_id, task.plan_id)
    assert world.is_exact(pipeline)
    topic.produce(*[b"worse"] * 3)
    strict = make_pipeline(topic, commit="partition")
    error = commit_range(task_of(world, strict, world.plan(strict)), 1)
    assert isinstance(error, TooManyRejects)
    assert f"The first: offset {GOOD + BAD}: " in str(error)


def test_rows_that_do_not_fit_become_rejects_page_by_page(world, make_topic, make_pipeline, monkeypatch):
    """100,000 is too large a number for the target; its records are far from each other, and near."""
    topic = make_topic(2)
    large = {0, 1, 2, 7, 8, 19}
    for partition in (0, 1):
        topic.produce(
            *(record(100_000 if number in large else number) for number in range(20)), partition=partition
        )
    pipeline = make_pipeline(topic, max_rejects=12)
    world.execute(
        f"create table {pipeline.traits.target} (id smallint, name text, kafka_topic text, kafka_partition int, "
        f"kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint)"
    )
    monkeypatch.setattr(uncastable, "_PAGE", 4)
    monkeypatch.setattr(reread, "_NEAR", 3)
    monkeypatch.setattr(reread, "_LARGEST_GROUP", 4)
    monkeypatch.setattr(rejected, "_HELD_RECORDS", 5)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (40, 28, 12)
    assert world.rows('select partition, "offset" from exactbatch.rejected_record order by 1, 2') == [
        (partition, offset) for partition in (0, 1) for offset in sorted(large)
    ]
    assert world.is_exact(pipeline)
    topic.produce(*[record(100_000)] * 5)
    message = world.refused(TooManyRejects, make_pipeline(topic, max_rejects=3))
    assert "4 or more of the 5 records" in message
