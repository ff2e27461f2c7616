"""The capabilities that some writers offer besides SinkWriter. Callers ask for a capability: `isinstance(writer,
Compacts)`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import CheckedJson, Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows that a table should hold, and rows that it holds, for an audit to compare.

    `expected` and `actual` are queries that give the `compared` columns and those that `same_row` refers to.
    `same_row` pairs a row m of `expected` with a row t of `actual`. An audit counts the rows of either query
    without a counterpart, and the pairs whose `compared` columns differ in any byte. `also_wrong`, over the same m
    and t, is true of pairs that are wrong although these columns are equal. `actual_count` is a query for the
    number of rows that `actual` gives; it may refer to the CTE `actual`.
    """

    expected: sql.Composable
    actual: sql.Composable
    actual_count: sql.Composable
    same_row: sql.Composable
    compared: Sequence[str]
    also_wrong: sql.Composable | None = None


# How many rows of the lineage table compaction drops and keeps, by (topic, partition).
CompactedRows = Mapping[tuple[str, int], tuple[int, int]]


class Compactor(Protocol):
    """Drops rows of a lineage table that only a replay of old offsets could need."""

    def first_since(self, cursor: Cursor, parts: Sequence[Part], at: datetime) -> dict[tuple[str, int], int]:
        """Return the first offset in each (topic, partition) of a row that is not from before a time."""
        ...

    def preview(self, cursor: Cursor, parts: Sequence[Part]) -> CompactedRows:
        """Return what compact() would return. Writes nothing."""
        ...

    def compact(self, cursor: Cursor, parts: Sequence[Part]) -> CompactedRows:
        """Drop rows of these parts that neither later changes nor replays outside of the parts can need."""
        ...


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Neighbouring partitions, by name, whose place a partition for the batch IDs [lower, upper) can take."""

    lower: int
    upper: int
    partitions: tuple[str, ...]
    bytes: int


class Merger(Protocol):
    """Merges small partitions of a target."""

    def count(self, cursor: Cursor) -> int:
        """Return how many partitions the target has; 0 if it does not exist."""
        ...

    def groups(
        self, cursor: Cursor, *, planned: Collection[int], below: int, max_bytes: int
    ) -> list[MergeGroup]:
        """Return which partitions to merge, into `max_bytes` each at most: below a batch ID, without planned ones."""
        ...

    def copy(self, cursor: Cursor, group: MergeGroup) -> int | None:
        """Copy the rows of a group into a new table; return how many, or None if its partitions have changed."""
        ...

    def exchange(self, cursor: Cursor, group: MergeGroup) -> None:
        """Let the new table take the place of the partitions, in the transaction of copy()."""
        ...


class PartitionStaging(Protocol):
    """A table into which executors copy the rows of one batch, and which then becomes a part of the target.

    Nothing is written twice. The table belongs to one launch; it is logged, and nobody else writes into it.
    """

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are copied, including the lineage; their types are the target's."""
        ...

    def create(self, cursor: Cursor, table: sql.Identifier) -> None:
        """Create the table."""
        ...

    def complete(self, cursor: Cursor, table: sql.Identifier) -> None:
        """Do what takes long and must not be done in the publish transaction, once all rows are there.

        Raises TargetMismatch if a constraint of the target refuses the rows.
        """
        ...

    def publish(self, cursor: Cursor, table: sql.Identifier) -> None:
        """Make the table a part of the target, in the publish transaction.

        Raises StagedRowsDiffer, retryable, if the target has changed so that this is no longer possible.
        """
        ...


@runtime_checkable
class Compacts(Protocol):
    """A writer that keeps rows which only replays of old offsets could need."""

    @property
    def compactor(self) -> Compactor:
        """Drops needless rows of the lineage table."""
        ...


@runtime_checkable
class MergesPartitions(Protocol):
    """A writer whose target is partitioned by batch."""

    @property
    def merger(self) -> Merger:
        """Merges partitions of the target."""
        ...


@runtime_checkable
class AttachesPartitions(Protocol):
    """A writer that may make a partition of the target of what is staged."""

    def partition_staging(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, offsets: int
    ) -> PartitionStaging | None:
        """Return where the rows of a batch over `offsets` offsets are staged to become a part of the target as they
        are; None if they are staged and inserted. Called after prepare(), for rows without a transform."""
        ...

    def drop_batches(self, cursor: Cursor, batch_ids: Sequence[int]) -> None:
        """Remove all that batches stored, none of whose results count any more. The last step of a replay, in place of
        retract() for these batches."""
        ...


@runtime_checkable
class TakesCopies(Protocol):
    """A writer into whose target executors can copy ranges; see SinkTraits.not_copyable."""

    def check_copyable(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch unless the target accepts copied ranges."""
        ...


@runtime_checkable
class TakesCheckedJson(Protocol):
    """A writer that takes documents which compiled code has checked, as they are stored."""

    def checked_json(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[CheckedJson, ...]:
        """Return the second staged columns for columns of JSON. Called after prepare().

        Where one has a document, the text is null: reject_rules() need not look at it, and the methods with StagedRows
        must take values from StagedRows.value().
        """
        ...


@runtime_checkable
class ChecksStaged(Protocol):
    """A writer that cannot take every set of rows from one record."""

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a record gave several rows between which the sink cannot decide."""
        ...


@runtime_checkable
class FindsUnavailable(Protocol):
    """A writer whose staged rows may have unavailable values; see SinkTraits.keeps_unavailable."""

    def find_unavailable(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], *, without: sql.Composable
    ) -> sql.Composable | None:
        """Return a query (task_attempt, topic, partition, offset, reason) for staged rows with unavailable values
        that the sink does not have; None if there are none. `without` is a query (topic, partition, offset)
        for staged rows that do not count, because they become rejects."""
        ...


@runtime_checkable
class ChecksShared(Protocol):
    """A writer whose target other pipelines may write only as this one does."""

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if what the pipelines with the same target do would harm the rows of each other."""
        ...


@runtime_checkable
class KeepsEventTimes(Protocol):
    """A writer that may keep the event time which each batch reached."""

    @property
    def event_times(self) -> TargetTable | None:
        """The table (topic, partition, batch_id, …) of event times; None if it keeps none."""
        ...

    def forget_topics(self, cursor: Cursor, topics: Sequence[str]) -> None:
        """Drop the event times of topics: no pipeline with this target loads them now."""
        ...


@runtime_checkable
class ComparesTarget(Protocol):
    """A writer whose target is derived, and that says what an audit compares it with.

    An audit runs the queries by itself, in its own transaction.
    """

    def compare_target(
        self,
        columns: Sequence[Column] | None,
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison:
        """Compare a derived target with what its lineage table makes of it.

        `columns` are the pipeline's columns; None if a transform defines them. The types, by column, are the types
        in the two tables. This must not share code with what derives the target. Raises TargetMismatch if the
        target lacks a column.
        """
        ...


@runtime_checkable
class KeepsLatest(Protocol):
    """A writer whose target keeps the latest change of each key alone.

    That is the one with the greatest version, compared column by column, null being less than any value, and then at
    the greatest place.
    """

    @property
    def markers(self) -> LineageTable:
        """The table with the columns of the key, the version and the lineage of each deleted key."""
        ...


@runtime_checkable
class ComparesBatches(Protocol):
    """A writer whose rows name their batch alone."""

    def compare_batches(
        self,
        records: sql.Composable,
        batch: sql.Composable,
        columns: Sequence[Column],
        lineage_types: Mapping[str, str],
        batch_ids: sql.Composable,
    ) -> Comparison:
        """Compare the lineage table with the decoded records of whole batches.

        `records` is a relation with these columns, `kafka_timestamp`, and the column `batch`, which holds the ID
        of the batch that covers the record; `batch_ids` is an array of the batches.
        """
        ...
