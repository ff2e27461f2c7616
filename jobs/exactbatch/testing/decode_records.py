"""Decode the records of a test as the tasks of a batch decode them from Kafka, into rows and rejects that are to reach
a target.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from exactbatch.batch.rows.decode import RangeReader
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, decoded_schema
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.errors import ConfigurationError
from exactbatch.errors.printable import printable
from exactbatch.kafka.records import MessageRecords, Records
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow_values import as_dicts
from exactbatch.settings import Settings
from exactbatch.testing.record import Given, Record, Reject, Row, placed

# Topic, partition and offset of a record.
Place = tuple[str, int, int]
_ATTEMPT: Final = 0
_TOPIC_ID: Final = UUID(int=1)


class GivenReads:
    """Reads ranges of the records of a test."""

    def __init__(self, records: Mapping[TopicPartition, Sequence[Record]]) -> None:
        self._records = records

    def read(self, range_: OffsetRange) -> Iterator[Records]:
        """Yield the records of a range, whose offsets are their positions."""
        offsets = np.arange(range_.from_offset, range_.until_offset, dtype=np.int64)
        given = self._records[range_.topic_partition][range_.from_offset : range_.until_offset]
        yield MessageRecords(list(map(_message, given)), offsets)


def as_bytes(part: bytes | str | None) -> bytes | None:
    """Return a key, value or header as bytes; text in UTF-8."""
    return part.encode() if isinstance(part, str) else part


def _message(record: Record) -> Message:
    """Return a record as confluent_kafka reads it, by the constructor that is for tests."""
    pairs = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
    time = record.milliseconds
    return Message(
        key=as_bytes(record.key),
        value=as_bytes(record.value),
        headers=[(name, as_bytes(value)) for name, value in pairs] or None,
        timestamp=(TIMESTAMP_NOT_AVAILABLE, 0) if time is None else (TIMESTAMP_CREATE_TIME, time),
    )


@dataclass(frozen=True)
class StagedRecords:
    """What a batch has staged.

    columns  the columns of a row, without its lineage and without what the sink adds
    rows     with the columns that the sink stages, and LINEAGE_NAMES, by topic, partition and offset
    ranges   the ranges of the batch
    records  all records of the test, by their offsets
    """

    pipeline: Pipeline
    columns: tuple[Column, ...]
    rows: pa.Table
    rejects: tuple[Reject, ...]
    tombstones: int
    dropped: int
    ranges: tuple[OffsetRange, ...]
    records: Mapping[TopicPartition, Sequence[Record]]

    @property
    def staged_columns(self) -> tuple[Column, ...]:
        """The columns that the sink stages."""
        return self.pipeline.traits.staged_columns(self.columns)

    @property
    def record_count(self) -> int:
        """How many records the batch has."""
        return sum(map(len, self.ranges))

    def places(self) -> list[Place]:
        """The record of each row."""
        return list(zip(*(self.rows.column(name).to_pylist() for name in LINEAGE_NAMES[:3]), strict=True))

    def as_dicts(self) -> list[Row]:
        """Each row with the columns that the sink stages."""
        return as_dicts(self.rows.select([column.name for column in self.staged_columns]))

    def without(self, refused: Iterable[tuple[Place, str]]) -> "StagedRecords":
        """Return what is staged without the rows of some records, which become rejects for the least of their
        reasons."""
        reasons: dict[Place, str] = {}
        for place, reason in refused:
            reasons[place] = min(reason, reasons.get(place, reason))
        if not reasons:
            return self
        kept = pa.array([place not in reasons for place in self.places()], pa.bool_())
        rejects = (*self.rejects, *(self._reject(place, reason) for place, reason in reasons.items()))
        return replace(
            self,
            rows=self.rows.filter(kept),
            rejects=by_place(rejects),
        )

    def _reject(self, place: Place, reason: str) -> Reject:
        topic, partition, offset = place
        record = self.records[topic, partition][offset]
        return Reject(
            topic, partition, offset, printable(reason), as_bytes(record.value), as_bytes(record.key)
        )


def build_result(batches: Sequence[StagedRecords]) -> dict[str, Any]:
    """Return the fields that DecodedRecords and Loaded share."""
    return {
        "rows": [row for staged in batches for row in staged.as_dicts()],
        "rejects": [reject for staged in batches for reject in staged.rejects],
        "records": sum(staged.record_count for staged in batches),
        "tombstones": sum(staged.tombstones for staged in batches),
        "dropped": sum(staged.dropped for staged in batches),
    }


def by_place(rejects: Iterable[Reject]) -> tuple[Reject, ...]:
    """Return rejects by topic, partition and offset."""
    return tuple(sorted(rejects, key=lambda each: (each.topic, each.partition, each.offset)))


def in_order(rows: pa.Table) -> pa.Table:
    """Return rows by topic, partition and offset; rows of one record stay in their order."""
    order = pc.sort_indices(
        rows.append_column("exactbatch_row", pa.array(range(len(rows)), pa.int64())),
        sort_keys=[(name, "ascending") for name in (*LINEAGE_NAMES[:3], "exactbatch_row")],
    )
    return rows.take(order)


_ByPartition = Mapping[TopicPartition, Sequence[Record]]


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
    records: _ByPartition = {}
    for batch in batches:
        given = placed(pipeline, batch)
        before = {place: len(records.get(place, ())) for place in given}
        records = {**records} | {place: [*records.get(place, ()), *added] for place, added in given.items()}
        ranges = [
            OffsetRange(*place, start, len(records[place]), _TOPIC_ID) for place, start in before.items()
        ]
        staged.append(_stage(pipeline, ranges, records, kafka))
    return staged


def stage_again(pipeline: Pipeline, records: _ByPartition, kafka: Mapping[str, Any] | None) -> StagedRecords:
    """Return what a pipeline makes of all records of a test."""
    ranges = [OffsetRange(*place, 0, len(known), _TOPIC_ID) for place, known in records.items()]
    return _stage(pipeline, ranges, records, kafka)


def _stage(
    pipeline: Pipeline, ranges: Sequence[OffsetRange], records: _ByPartition, kafka: Mapping[str, Any] | None
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
