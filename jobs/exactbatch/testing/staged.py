"""The rows and rejects of a batch in a test before they reach a target."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.errors.printable import printable
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow_values import as_dicts
from exactbatch.testing.given_records import as_bytes
from exactbatch.testing.loaded import Reject, Row
from exactbatch.testing.record import Record

# Topic, partition and offset of a record.
Place = tuple[str, int, int]


@dataclass(frozen=True)
class StagedRecords:
    """What a batch has staged.

    columns  those of a row, without its lineage and without what the sink adds
    rows     with the columns that the sink stages, and LINEAGE_NAMES, by topic, partition and offset
    ranges   those of the batch
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
    """Return rows by topic, partition and offset; those of one record stay in their order."""
    order = pc.sort_indices(
        rows.append_column("exactbatch_row", pa.array(range(len(rows)), pa.int64())),
        sort_keys=[(name, "ascending") for name in (*LINEAGE_NAMES[:3], "exactbatch_row")],
    )
    return rows.take(order)
