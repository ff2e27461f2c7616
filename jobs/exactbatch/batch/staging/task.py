"""The input of Spark tasks that stage, and the outcomes that they return to the driver."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exactbatch.batch.rows.copy import PostgresAccess
from exactbatch.batch.rows.decode import Changes, RangeReader
from exactbatch.batch.staging.outcomes import declare_outcome
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.columns import Column
from exactbatch.formats import Format
from exactbatch.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class StageTask:
    """A range to stage, which is a whole one of the batch or a split. A Spark task's share has several of them, which
    travel in its closure, secrets included.

    `leader_epoch` is the epoch up to which the log was processed at the start of the range, if it is known;
    `columns` are the columns of a staged row without its lineage; `cluster_id` is the Kafka cluster of the plan.
    Timeouts are in seconds; `slot_offsets` is how many offsets of the batch each slot of Spark reads.
    """

    range: OffsetRange
    leader_epoch: int | None
    tables: StagingTables
    kafka: Mapping[str, Any] = field(repr=False)
    postgres: PostgresAccess
    value: Format
    columns: tuple[Column, ...]
    changes: Changes | None
    max_rejects: int
    read_timeout: float
    cluster_id: str | None = None
    slot_offsets: int = 0
    replace_unstorable: str | None = None


@declare_outcome
@dataclass(frozen=True, slots=True)
class Staged:
    """What one task attempt staged of a range. `records` = records that gave rows + rejects + tombstones + dropped;
    `replaced` of them decoded with replaced text. Compiled code took `fast_count`, which does not matter for the
    result."""

    range: OffsetRange
    attempt: int
    records: int
    rows: int
    rejects: int
    tombstones: int
    dropped: int = 0
    replaced: int = 0
    fast_count: int = field(default=0, compare=False)

    @property
    def decoded(self) -> int:
        """How many records decoded, whether or not they gave rows."""
        return self.records - self.rejects - self.tombstones

    @classmethod
    def read_by(cls, reader: RangeReader, range_: OffsetRange, attempt: int) -> "Staged":
        """Return the work of an attempt that has staged all that the reader read."""
        return cls(
            range_,
            attempt,
            reader.records,
            reader.rows,
            reader.rejects,
            reader.tombstones,
            reader.dropped,
            reader.replaced,
            fast_count=reader.fast_count,
        )


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """All that the accepted task attempts of a batch did.

    The ranges of `splits` are together the ranges of the batch. `rows` and `rejects` hold how many each task attempt
    has staged. `dropped` counts the records that decoded and gave no row, or for which the transform returned none.
    """

    splits: tuple[Staged, ...]
    rows: Mapping[int, int]
    rejects: Mapping[int, int]
    dropped: int = 0

    @classmethod
    def of(cls, splits: Iterable[Staged]) -> "StagedBatch":
        """Return a batch whose tasks staged what they read."""
        splits = tuple(splits)
        rows, rejects = by_attempt(splits, "rows"), by_attempt(splits, "rejects")
        dropped = sum(split.dropped for split in splits)
        return cls(splits, rows, rejects, dropped)

    @property
    def attempts(self) -> list[int]:
        """The task attempts whose staged rows and rejects count."""
        return sorted({*self.rows, *self.rejects})

    @property
    def records(self) -> int:
        """How many records were read."""
        return sum(split.records for split in self.splits)

    @property
    def tombstones(self) -> int:
        """How many records rightly gave no row: null values, and events that carry none."""
        return sum(split.tombstones for split in self.splits)

    @property
    def replaced(self) -> int:
        """How many records decoded after text that Postgres cannot hold was replaced."""
        return sum(split.replaced for split in self.splits)

    @property
    def rejected(self) -> int:
        """How many records were rejected."""
        return sum(self.rejects.values())

    @property
    def has_several_rows_of_a_record(self) -> bool:
        """True if there are more rows than records that gave rows; only for rows that carry their record."""
        with_rows = self.records - self.rejected - self.tombstones - self.dropped
        return sum(self.rows.values()) > with_rows


def by_attempt(splits: Iterable[Staged], counted: Literal["rows", "rejects"]) -> dict[int, int]:
    """Return how many rows or rejects each task attempt has staged, over all its splits."""
    counts: dict[int, int] = defaultdict(int)
    for split in splits:
        counts[split.attempt] += split.rows if counted == "rows" else split.rejects
    return dict(counts)
