"""Decode the records of a test as the tasks of a batch decode them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from exactbatch.batch.rows.decode import RangeReader
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, row_schema
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.testing.given_records import GivenReads
from exactbatch.testing.loaded import Loaded, Reject, Row
from exactbatch.testing.record import Record

_ATTEMPT: Final = 0
_TOPIC_ID: Final = UUID(int=0)


def decode(pipeline: Pipeline, records: Mapping[TopicPartition, Sequence[Record]]) -> Loaded:
    """Return what a pipeline's decoders make of the records of each partition. Raises the errors of the format."""
    ranges = [
        OffsetRange(topic, partition, 0, len(records[topic, partition]), _TOPIC_ID)
        for topic, partition in records
    ]
    tasks = stage_tasks(pipeline, ranges, {}, StagingTables(0, 0), Settings({}, ""), parallelism=1)
    readers = [
        RangeReader(
            replace(task, max_rejects=len(task.range)),  # all rejects are shown, however many are allowed
            _ATTEMPT,
            row_schema(task.columns),
            {"task_attempt": _ATTEMPT},
            reads=GivenReads(records),
        )
        for task in tasks
    ]
    names = [column.name for column in pipeline.sink.staged_columns(pipeline.value.columns)]
    rows = [row for reader in readers for batch in reader.batches() for row in _rows(batch.select(names))]
    rejects = [reject for reader in readers for batch in reader.pending.take() for reject in _rejects(batch)]
    return Loaded(
        pipeline=pipeline,
        rows=rows,
        rejects=rejects,
        records=sum(reader.records for reader in readers),
        tombstones=sum(reader.tombstones for reader in readers),
        dropped=sum(reader.dropped for reader in readers),
    )


def _rejects(batch: pa.RecordBatch) -> list[Reject]:
    names = ["topic", "partition", "offset", "reason", "value", "key"]
    return [Reject(**row) for row in batch.select(names).to_pylist()]


def _rows(batch: pa.RecordBatch) -> list[Row]:
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """Return the values; as text those dates and times that Python cannot hold."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(column[index]) for index in range(len(column))]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast(pa.string()).as_py()
