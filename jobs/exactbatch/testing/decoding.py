"""Decode the records of a test as the tasks of a batch decode them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import pyarrow as pa

from exactbatch.batch.rows.decode import RangeReader
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, decoded_schema
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.testing.given_records import GivenReads
from exactbatch.testing.loaded import Reject
from exactbatch.testing.record import Record
from exactbatch.testing.staged import StagedRows, by_place

_ATTEMPT: Final = 0
TOPIC_ID: Final = UUID(int=1)


def decode(
    pipeline: Pipeline, records: Mapping[TopicPartition, Sequence[Record]], settings: Settings
) -> StagedRows:
    """Return what a pipeline's decoders make of the records of each partition. Raises the errors of the format."""
    ranges = tuple(
        OffsetRange(topic, partition, 0, len(of_partition), TOPIC_ID)
        for (topic, partition), of_partition in records.items()
    )
    tasks = stage_tasks(pipeline, ranges, {}, StagingTables(0, 0), settings, parallelism=1)
    columns = pipeline.sink.staged_columns(pipeline.value.columns)
    schema = decoded_schema(columns)
    readers = [
        RangeReader(
            replace(task, max_rejects=len(task.range)),  # all rejects are shown, however many are allowed
            _ATTEMPT,
            schema,
            {},
            reads=GivenReads(records),
        )
        for task in tasks
    ]
    batches = [batch for reader in readers for batch in reader.batches()]
    return StagedRows(
        pipeline=pipeline,
        columns=pipeline.value.columns,
        rows=pa.Table.from_batches(batches, schema),
        rejects=by_place(
            reject for reader in readers for batch in reader.pending.take() for reject in _rejects(batch)
        ),
        tombstones=sum(reader.tombstones for reader in readers),
        dropped=sum(reader.dropped for reader in readers),
        ranges=ranges,
        records=records,
    )


def _rejects(batch: pa.RecordBatch) -> list[Reject]:
    names = ["topic", "partition", "offset", "reason", "value", "key"]
    return [Reject(**row) for row in batch.select(names).to_pylist()]
