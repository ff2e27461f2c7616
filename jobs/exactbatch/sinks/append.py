"""Append: every row of a batch is inserted with its lineage."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.base import Merger, PartitionStaging, SinkIdentity
from exactbatch.sinks.by_batch.layout import ByBatch
from exactbatch.sinks.by_batch.merge import PartitionMerger
from exactbatch.sinks.by_batch.parent import PARTITION_BY, check_not_by_batch, check_parent
from exactbatch.sinks.sink_defaults import SinkDefaults
from exactbatch.sinks.staged_rows import CheckedJson, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_copyable
from exactbatch.sinks.tables.target_definition import Evolve
from exactbatch.sinks.values.cast import RejectRule, reject_rules


@dataclass(frozen=True)
class Append(SinkDefaults):
    """Insert rows into `target`, written `schema.table`; a part that is not lower-case goes in double quotes.

    With lineage="record" each row carries its origin: kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, batch_id. With lineage="batch", for rows that come from many records, it carries
    batch_id alone, and a replay processes whole batches again.

    A replay deletes rows and inserts them again. `cascade` names the tables that a foreign key with on delete
    cascade, set null or set default may then change, as in ("public.note",); otherwise such a replay is refused.

    With layout="by_batch" the target is partitioned by ranges of batch IDs. A batch of at least
    `smallest_partition` offsets becomes a partition: its rows are written once. Smaller ones share partitions.
    """

    kind: ClassVar[str] = "append"

    target: str
    lineage: Literal["record", "batch"] = "record"
    cascade: tuple[str, ...] = ()
    layout: Literal["plain", "by_batch"] = "plain"
    smallest_partition: int = 100_000

    def __post_init__(self) -> None:
        check_types(self)
        self._target.check_length()
        _ = [TargetTable(table) for table in self.cascade]
        if self.smallest_partition < 0:
            raise ConfigurationError(
                f"target {self.target}: expected smallest_partition to be 0 or more, found {self.smallest_partition}"
            )

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        return SinkIdentity(self.target, self.kind, key=(), version="", lineage=self.lineage)

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target, changes_partitions=self.layout == "by_batch")

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target."""
        return LineageTable(self._target, self.lineage, is_attached=self._by_batch is not None)

    @property
    def needs_lineage(self) -> bool:
        """True if each staged row must name the record that it comes from."""
        return self.lineage == "record"

    @property
    def inserts_in_parts(self) -> bool:
        """True if the table is there and no row depends on another; a small batch may have to open a partition."""
        return self._by_batch is None

    @property
    def not_copyable(self) -> str | None:
        """Why executors cannot copy ranges into the target independently; None if rows name their records."""
        if self.lineage == "batch":
            return f"rows that come from many records (lineage={self.lineage!r})"
        if self._by_batch is not None:
            return "layout='by_batch', where a batch becomes visible as a whole and is written once anyway"
        return None

    @cached_property
    def _by_batch(self) -> ByBatch | None:
        """The layout of a target that is partitioned by batch; None for another."""
        return ByBatch(self._target, self.smallest_partition) if self.layout == "by_batch" else None

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if a column of the pipeline has a name that staging or lineage uses."""
        self.lineage_table.check(columns)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create the target if it is missing, and otherwise check its columns.

        Raises TargetMismatch, which names the column and both types, or says why the table has another layout.
        """
        partition_by = "" if self._by_batch is None else PARTITION_BY
        if self.lineage_table.prepare(cursor, columns, evolve=evolve, partition_by=partition_by):
            return
        if self._by_batch is not None:
            check_parent(cursor, self._target)
        else:
            check_not_by_batch(cursor, self._target)

    def partition_staging(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, offsets: int
    ) -> PartitionStaging | None:
        """Return the future partition of a batch; None if its rows are inserted."""
        if self._by_batch is None:
            return None
        columns = (*columns, *self.lineage_table.lineage_columns)
        return self._by_batch.partition_staging(cursor, columns, batch_id=batch_id, offsets=offsets)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that `cascade` does not name."""
        self.lineage_table.check_replay(cursor, self.cascade)

    def check_copyable(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch unless several transactions can copy ranges into the target at once."""
        check_copyable(cursor, self._target, (*columns, *self.lineage_table.lineage_columns))

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
        evolve: Evolve | None = None,
    ) -> list[RejectRule]:
        """Return rules for staged rows that the target's types cannot hold."""
        return reject_rules(self.lineage_table.casts(cursor, columns, evolve=evolve))

    def checked_json(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[CheckedJson, ...]:
        """Return the second staged columns for columns that are jsonb in the pipeline and in the target."""
        return self.lineage_table.checked_json(cursor, columns)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged rows; return how many rows arrived.

        Raises TargetMismatch if a constraint of the target refuses a row.
        """
        if self._by_batch is not None:
            self._by_batch.ensure_partition(cursor, staged)
        return self.lineage_table.insert_staged(cursor, staged, columns)

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches have written for ranges; return how many rows that was."""
        return self.lineage_table.retract(cursor, parts)

    @property
    def drops_batches(self) -> bool:
        """True if a batch may have a partition to itself."""
        return self._by_batch is not None

    def drop_batches(self, cursor: Cursor, batch_ids: Sequence[int]) -> None:
        """Drop the partitions of batches; delete their rows from partitions that they share."""
        if self._by_batch is not None:
            self._by_batch.drop_batches(cursor, batch_ids)

    @property
    def merger(self) -> Merger | None:
        """Merges the partitions of batches."""
        return None if self._by_batch is None else PartitionMerger(self._target)

    @property
    def values_follow_from_records(self) -> bool:
        """True if rows name their records. Rows with lineage="batch" do not say which records they are of."""
        return self.lineage == "record"
