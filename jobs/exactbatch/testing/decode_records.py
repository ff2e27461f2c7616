"""Decode the records of a test as the tasks of a batch decode them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from exactbatch.batch.rows.decode import RangeReader
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, decoded_schema
from exactbatch.errors import ConfigurationError
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.testing.given_records import GivenReads
from exactbatch.testing.loaded import Reject
from exactbatch.testing.record import Given, Record, placed
from exactbatch.testing.staged import StagedRecords, by_place

_ATTEMPT: Final = 0
_TOPIC_ID: Final = UUID(int=1)
Records = Mapping[TopicPartition, Sequence[Record]]


def stage_batches(
    pipeline: Pipeline, batches: Iterable[Iterable[Given]], kafka: Mapping[str, Any] | None
) -> list[StagedRecords]:
    """Return what a pipeline makes of the records of each batch; each continues where the one before it ended."""
    if not isinstance(pipeline, Pipeline):
        raise ConfigurationError(
            f"expected a Pipeline, found {type(pipeline).__name__}. Of Tables, test a member: "
            f"tables.member('topic')."
        )
    staged: list[StagedRecords] = []
    records: Records = {}
    for batch in batches:
        given = placed(pipeline, batch)
        before = {place: len(records.get(place, ())) for place in given}
        records = {**records} | {place: [*records.get(place, ()), *added] for place, added in given.items()}
        ranges = [
            OffsetRange(*place, start, len(records[place]), _TOPIC_ID) for place, start in before.items()
        ]
        staged.append(_stage(pipeline, ranges, records, kafka))
    return staged


def stage_again(pipeline: Pipeline, records: Records, kafka: Mapping[str, Any] | None) -> StagedRecords:
    """Return what a pipeline makes of all records of a test."""
    ranges = [OffsetRange(*place, 0, len(known), _TOPIC_ID) for place, known in records.items()]
    return _stage(pipeline, ranges, records, kafka)


def _stage(
    pipeline: Pipeline, ranges: Sequence[OffsetRange], records: Records, kafka: Mapping[str, Any] | None
) -> StagedRecords:
    """Return what a pipeline's decoders, and its transform, make of ranges of the records. Raises their errors."""
    tasks = stage_tasks(
        pipeline, pipeline.traits, ranges, {}, StagingTables(0, 0), Settings(kafka or {}, ""), parallelism=1
    )
    schema = decoded_schema(pipeline.traits.staged_columns(pipeline.value.columns))
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
    staged = StagedRecords(
        pipeline=pipeline,
        columns=pipeline.value.columns,
        rows=pa.Table.from_batches(batches, schema),
        rejects=by_place(
            reject for reader in readers for batch in reader.pending.take() for reject in _rejects(batch)
        ),
        tombstones=sum(reader.tombstones for reader in readers),
        dropped=sum(reader.dropped for reader in readers),
        ranges=tuple(ranges),
        records=records,
    )
    if not pipeline.is_transformed:
        return staged
    from exactbatch.testing.run_transform import transformed  # imports Spark, which takes long

    return transformed(staged)


def _rejects(batch: pa.RecordBatch) -> list[Reject]:
    names = ["topic", "partition", "offset", "reason", "value", "key"]
    return [Reject(**row) for row in batch.select(names).to_pylist()]
