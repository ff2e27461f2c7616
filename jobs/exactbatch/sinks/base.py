"""The protocol of sinks: how the rows of a batch are stored, retracted by a replay, and checked by an audit.

A sink is a module or package of its name: a frozen dataclass that satisfies Sink, with the help of SinkDefaults.
exactbatch.sinks.SINKS lists it. What plans, processes, replays and audits batches does not depend on which sinks exist;
`exactbatch new` and exactbatch.testing know those of this package. tests/integration/test_fourth_sink.py has a complete
example.

Tables. Every sink has one table whose rows carry lineage, the *lineage table*: which record, or at least which
batch, a row comes from. A replay retracts by lineage, and an audit compares by lineage. For a sink that is not
derived, the target is the lineage table. The target of a derived sink is computed from its lineage table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, Protocol, runtime_checkable

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import CheckedJson, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_definition import Evolve
from exactbatch.sinks.values.cast import RejectRule

# The origin that a row names: one record, or only the batch.
Lineage = Literal["record", "batch"]


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """The part of a sink that the ledger registers: rows written under another identity follow other rules.

    `key` names the columns that identify a row of the target, or the meaning of its columns. `version` is "" if the
    sink has none. `others` are those of further targets that the sink writes in the same transaction.
    """

    target: str
    sink: str
    key: tuple[str, ...]
    version: str
    lineage: Lineage
    others: "tuple[SinkIdentity, ...]" = ()


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


@dataclass(frozen=True, slots=True)
class KeptLatest:
    """A target that keeps the latest change of each key alone: what says which one that is.

    `markers` is the table with the columns of `key`, `version` and lineage of each deleted key. The latest change has
    the greatest `version`, compared column by column, null being less than any value, and then the greatest place.
    """

    markers: sql.Composable
    key: Sequence[str]
    version: Sequence[str]


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
        """The columns that are copied, those of the lineage included; their types are the target's."""
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
class Sink(Protocol):
    """Stores the rows of batches in one or more tables, within the transactions of its callers."""

    kind: ClassVar[str]
    """The name under which the ledger registers this kind of sink: its key in exactbatch.sinks.SINKS."""
    companion_suffixes: ClassVar[tuple[str, ...]]
    """Suffixes of the target's name that may name its other tables, whether or not each exists. The first one of a
    derived sink is that of its lineage table."""
    keeps_every_row: ClassVar[bool]
    """True if the lineage table keeps the rows of every record until they are retracted or compacted; otherwise only
    those of the latest record of each key. Then nothing can be retracted, and retract() lets the staged rows replace
    those of the ranges."""

    @property
    def target(self) -> str:
        """The target as the user writes it: `schema.table`."""
        ...

    @property
    def lineage(self) -> Lineage:
        """The origin that a row of the lineage table names: one record, or only the batch."""
        ...

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        ...

    # The tables.

    @property
    def table(self) -> sql.Composable:
        """The target as an SQL identifier."""
        ...

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a row of the target that are its result, for a pipeline with these columns."""
        ...

    @property
    def lineage_table(self) -> LineageTable:
        """The table whose rows carry lineage; the target itself if the sink is not derived."""
        ...

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """All tables of the sink in the order in which they are locked; the target is the last."""
        ...

    @property
    def parts(self) -> "tuple[Sink, ...]":
        """The sinks of its targets, which an audit compares one by one; the sink itself if it has one target."""
        ...

    @property
    def is_derived(self) -> bool:
        """True if the target is computed from the lineage table, which all pipelines with this target share."""
        ...

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns whose values identify a row of the target; () if there are none."""
        ...

    # What the sink needs from a batch.

    @property
    def needs_lineage(self) -> bool:
        """True if each staged row must name the record that it comes from."""
        ...

    @property
    def keeps_deletes(self) -> bool:
        """True if a staged row may be a delete: it has the column `deleted`, and null values are no tombstones."""
        ...

    @property
    def keeps_unchanged(self) -> bool:
        """True if a staged row may lack values that have not changed; it lists their columns."""
        ...

    def keeping_unchanged(self) -> "Sink":
        """Return the sink for a format that leaves values out: it resolves them if it can."""
        ...

    def with_positions(self, columns: Sequence[str]) -> "Sink":
        """Return the sink for a format that gives the position of each change's commit, in these columns."""
        ...

    @property
    def position_columns(self) -> tuple[str, ...]:
        """The version, if it is the position of each change's commit; otherwise ()."""
        ...

    @property
    def epochs(self) -> Sequence[Mapping[TopicPartition, int]]:
        """The offsets at which the positions of the source begin again, each time; 0 in other partitions."""
        ...

    def with_epochs(self, epochs: Sequence[Mapping[TopicPartition, int]]) -> "Sink":
        """Return the sink for positions that begin again at these offsets, once for each mapping."""
        ...

    def applying_truncates(self, order: Sequence[str]) -> "Sink":
        """Return the sink for a format with truncates, which the columns of `order` order among changes.

        Raises ConfigurationError if it cannot apply them.
        """
        ...

    @property
    def needs_last_records_only(self) -> bool:
        """True if only the last record of each message key matters, so that a compacted topic can be replayed."""
        ...

    @property
    def inserts_in_parts(self) -> bool:
        """True if insert_staged() may be called several times for a batch, each time with other staged rows, before
        the stored offsets are moved. It must not use or change anything that other batches write."""
        ...

    @property
    def not_copyable(self) -> str | None:
        """Why executors cannot copy ranges into the target independently of each other; None if they can."""
        ...

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if the sink cannot store rows with these columns."""
        ...

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a staged row, without its lineage, for the columns of a pipeline."""
        ...

    # Before rows are staged.

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create missing tables, and check those that exist. Raises TargetMismatch, which names the column."""
        ...

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if a table has columns that only other pipelines with the same target write."""
        ...

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if retracting rows would change other tables by foreign keys."""
        ...

    def check_copyable(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch unless the target accepts copied ranges. Called where not_copyable is None."""
        ...

    def forget_topics(self, cursor: Cursor, topics: Sequence[str]) -> None:
        """Drop what the sink stores about topics, besides their rows: no pipeline with this target loads them now."""
        ...

    def partition_staging(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, offsets: int
    ) -> PartitionStaging | None:
        """Return where the rows of a batch over `offsets` offsets are staged to become a part of the target as they
        are; None if they are staged and inserted. Called after prepare(), for rows without a transform."""
        ...

    def checked_json(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[CheckedJson, ...]:
        """Return the second staged columns for columns of JSON. Called after prepare().

        Where one has a document, the text is null: reject_rules() need not look at it, and the methods with StagedRows
        must take values from StagedRows.value().
        """
        ...

    # Between staging and publish.

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return rules for staged rows that the tables cannot hold. Their records become rejects.

        With `evolve`, the rules are those of a batch to come, without any that depend on what is loaded before it:
        tables and columns that its prepare() would add count as it adds them."""
        ...

    def find_unknown(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], *, without: sql.Composable
    ) -> sql.Composable | None:
        """Return a query (task_attempt, topic, partition, offset, reason) for staged rows that lack values which the
        sink does not know; None if there are none. `without` is a query (topic, partition, offset) for staged rows that
        do not count, because they become rejects."""
        ...

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a record gave several rows between which the sink cannot decide."""
        ...

    # Publish.

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Store staged rows, and bring a derived target up to date; return how many staged rows arrived.

        Raises TargetMismatch if a constraint of a table refuses a row.
        """
        ...

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches stored for ranges; return how many staged rows that was.

        A derived target is up to date again after the next insert_staged() in the same transaction. With
        lineage="batch" everything that these batches stored is deleted.
        """
        ...

    @property
    def drops_batches(self) -> bool:
        """True if drop_batches() takes the place of retract() for batches without any results that count."""
        ...

    def drop_batches(self, cursor: Cursor, batch_ids: Sequence[int]) -> None:
        """Remove all that batches stored, none of whose results count any more. The last step of a replay."""
        ...

    def count_retracted(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Return how many staged rows retract() would delete; 0 if there is no table yet."""
        ...

    def count_retracted_by_part(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:
        """Return how many rows retract() would delete of each part; None if rows do not name their records."""
        ...

    def batches_in(self, cursor: Cursor, ranges: Sequence[OffsetRange]) -> list[set[int]]:
        """Return the IDs of the batches whose results in each range retract() or the compactor could find; rows must
        name their records. The sets are empty if there is no table yet."""
        ...

    @property
    def compactor(self) -> Compactor | None:
        """Drops needless rows of the lineage table; None if every row of it is part of the result."""
        ...

    @property
    def merger(self) -> Merger | None:
        """Merges partitions of the target; None if the sink makes none."""
        ...

    # Audit. An audit runs these queries by itself, in its own transaction.

    @property
    def staged_row_count(self) -> sql.Composable:
        """An aggregate over rows of the lineage table: how many staged rows they stand for."""
        ...

    @property
    def event_times(self) -> TargetTable | None:
        """The table (topic, partition, batch_id, …) of the event time that each batch reached, if the sink has one."""
        ...

    @property
    def values_follow_from_records(self) -> bool:
        """True if an audit can compute the rows of the lineage table again from the records alone."""
        ...

    def compare_target(
        self,
        columns: Sequence[Column] | None,
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison | None:
        """Compare a derived target with what its lineage table makes of it; None if the target is not derived.

        `columns` are those of the pipeline; None if a transform defines them. The types, by column, are those of
        the two tables. This must not share code with what derives the target. Raises TargetMismatch if the
        target lacks a column.
        """
        ...

    @property
    def kept_latest(self) -> KeptLatest | None:
        """How an audit finds what the target must hold if it keeps only latest changes; None if it keeps all."""
        ...

    def compare_batches(
        self,
        records: sql.Composable,
        batch: sql.Composable,
        columns: Sequence[Column],
        lineage_types: Mapping[str, str],
        batch_ids: sql.Composable,
    ) -> Comparison | None:
        """Compare the lineage table with the decoded records of whole batches, where lineage="batch".

        `records` is a relation with these columns, `kafka_timestamp`, and the column `batch`, which holds the ID
        of the batch that covers the record; `batch_ids` is an array of the batches. Returns None if rows name
        their records: an audit compares these record by record.
        """
        ...
