"""Insert every row of a batch with its lineage."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from exactbatch.columns import Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import Append
from exactbatch.sinks.by_batch.layout import ByBatch
from exactbatch.sinks.by_batch.merge import PartitionMerger
from exactbatch.sinks.by_batch.parent import PARTITION_BY, check_not_by_batch, check_parent
from exactbatch.sinks.capabilities import PartitionStaging
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.staged_rows import CheckedJson, Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_copyable
from exactbatch.sinks.values.cast import RejectRule, reject_rules


def build_append_writer(sink: Append, traits: SinkTraits) -> "AppendWriter":
    """Return the writer of an Append."""
    return ByBatchWriter(sink, traits) if sink.layout == "by_batch" else AppendWriter(sink, traits)


@dataclass(frozen=True)
class AppendWriter:
    """The writer of an Append with layout="plain".

    Next to an Upsert, the target has a row for each change, deletes included, with the column `deleted`.
    """

    sink: Append
    traits: SinkTraits

    @property
    def parts(self) -> "tuple[AppendWriter, ...]":
        """The writer itself."""
        return (self,)

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The target alone."""
        return (self._target,)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target."""
        return LineageTable(self._target, self.sink.lineage)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create the target if it is missing, and otherwise check its columns.

        Raises TargetMismatch, which names the column and both types, or says why the table has another layout.
        """
        if not self.lineage_table.prepare(cursor, self.traits.staged_columns(columns), evolve=evolve):
            check_not_by_batch(cursor, self._target)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that `cascade` does not name."""
        self.lineage_table.check_replay(cursor, self.sink.cascaded_tables)

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
        evolve: Evolve | None = None,
    ) -> list[RejectRule]:
        """Return rules for staged rows that the target's types cannot hold."""
        return reject_rules(
            self.lineage_table.casts(cursor, self.traits.staged_columns(columns), evolve=evolve)
        )

    def check_copyable(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch unless several transactions can copy ranges into the target at once."""
        check_copyable(cursor, self._target, (*columns, *self.lineage_table.lineage_columns))

    def checked_json(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[CheckedJson, ...]:
        """Return the second staged columns for columns that are jsonb in the pipeline and in the target."""
        return self.lineage_table.checked_json(cursor, columns)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged rows; return how many rows arrived.

        Raises TargetMismatch if a constraint of the target refuses a row.
        """
        return self.lineage_table.insert_staged(cursor, staged, self.traits.staged_columns(columns))

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches have written for ranges; return how many rows that was."""
        return self.lineage_table.retract(cursor, parts)


@dataclass(frozen=True)
class ByBatchWriter(AppendWriter):
    """The writer of an Append with layout="by_batch"."""

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target, changes_partitions=True)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target."""
        return LineageTable(self._target, self.sink.lineage, is_attached=True)

    @property
    def _layout(self) -> ByBatch:
        return ByBatch(self._target, self.sink.min_offsets)

    @property
    def merger(self) -> PartitionMerger:
        """Merges the partitions of batches."""
        return PartitionMerger(self._target)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create the target if it is missing, and otherwise check its columns.

        Raises TargetMismatch, which names the column and both types, or says why the table has another layout.
        """
        if not self.lineage_table.prepare(cursor, columns, evolve=evolve, partition_by=PARTITION_BY):
            check_parent(cursor, self._target)

    def partition_staging(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, offsets: int
    ) -> PartitionStaging | None:
        """Return the future partition of a batch; None if its rows are inserted."""
        columns = (*columns, *self.lineage_table.lineage_columns)
        return self._layout.partition_staging(cursor, columns, batch_id=batch_id, offsets=offsets)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged rows; return how many rows arrived.

        Raises TargetMismatch if a constraint of the target refuses a row.
        """
        self._layout.ensure_partition(cursor, staged)
        return super().insert_staged(cursor, staged, columns)

    def drop_batches(self, cursor: Cursor, batch_ids: Sequence[int]) -> None:
        """Drop the partitions of batches; delete their rows from partitions that they share."""
        self._layout.drop_batches(cursor, batch_ids)
