"""Ranges that are committed one by one."""

from typing import Any

from exactbatch import Pipeline
from exactbatch.batch.by_partition.range_copy import RangeTask
from exactbatch.batch.publishing.fences import read_sink_facts
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner


def committed(world: BatchRunner, batch_id: int) -> list[tuple[Any, ...]]:
    """Return the counts that the ledger has for each range of a batch."""
    return world.rows(
        "select partition, records, rows, rejected, tombstones from exactbatch.batch_range "
        "where batch_id = %s order by partition",
        batch_id,
    )


def task_of(world: BatchRunner, pipeline: Pipeline, batch_id: int, partition: int = 0) -> RangeTask:
    """Return the task that the driver gives an executor."""
    with transaction(world.connection):
        ledger = Ledger(world.connection)
        (range_,) = (each for each in ledger.batches.read_ranges(batch_id) if each.partition == partition)
        plan_id = ledger.batches.read(batch_id).plan_id
    with transaction(world.connection) as cursor:
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
    with transaction(world.connection) as cursor:
        seen = read_sink_facts(cursor, find_writer(pipeline.traits))
    return RangeTask(
        range_, None, batch_id, plan_id, pipeline, world.settings.kafka, world.settings.postgres, seen
    )
