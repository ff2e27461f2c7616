"""Keep the target of an Upsert alone, for tables with too many changes to keep."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from exactbatch.columns import LINEAGE, Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import (
    check_companion,
    check_lineage,
    check_operators,
    check_own_types,
    check_same_keys,
    check_unique,
)
from exactbatch.sinks.tables.target_definition import add_columns, prepare_table
from exactbatch.sinks.upsert.change_order import find_order
from exactbatch.sinks.upsert.latest_only import LatestOnly
from exactbatch.sinks.upsert.marker_compaction import MarkerCompactor
from exactbatch.sinks.upsert.shared_target import check_shared_columns
from exactbatch.sinks.upsert.spec import Upsert
from exactbatch.sinks.upsert.staged_changes import check_one_per_record
from exactbatch.sinks.values.cast import RejectRule, reject_rules


@dataclass(frozen=True)
class LatestWriter:
    """The writer of an Upsert with history=False, whose rows carry the lineage of their latest change."""

    sink: Upsert
    traits: SinkTraits

    @property
    def parts(self) -> "tuple[LatestWriter, ...]":
        """The writer itself."""
        return (self,)

    @property
    def _key(self) -> tuple[str, ...]:
        return self.sink.key

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target, whose rows name their latest change."""
        return LineageTable(self._target)

    @cached_property
    def markers(self) -> LineageTable:
        """The table of deleted keys."""
        (suffix,) = self.sink.kind.companions
        return LineageTable(self._target.sibling(suffix))

    @property
    def _markers(self) -> TargetTable:
        return self.markers.table

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table of markers and the target, in the order in which they are locked."""
        return (self._markers, self._target)

    @property
    def _latest_only(self) -> LatestOnly:
        return LatestOnly(self._target, self._markers, find_order(self.traits))

    @property
    def compactor(self) -> MarkerCompactor:
        """Drops markers of deleted keys."""
        return MarkerCompactor(self.markers)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and table of markers if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, the missing unique constraint, or a version
        whose type is not one of Postgres's own.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        columns = (*columns, *self.traits.epoch)
        for table in (self._target, self._markers):
            add_columns(cursor, table, self.traits.epoch)
        if not prepare_table(cursor, self._target, columns, lineage=LINEAGE, key=self._key, evolve=evolve):
            check_unique(cursor, self._target, self._key)
            check_lineage(cursor, self._target, self._target.casts(cursor, LINEAGE))
        ordered = [*self._key, *self.traits.ordering_columns]
        of_markers = [column for name in ordered for column in columns if column.name == name]
        if not prepare_table(cursor, self._markers, of_markers, lineage=LINEAGE, key=self._key):
            check_unique(cursor, self._markers, self._key)
            check_lineage(cursor, self._markers, self._markers.casts(cursor, LINEAGE))
            check_companion(cursor, self._markers)
        check_same_keys(cursor, self._target, self._markers, ordered)
        check_operators(cursor, self._target, self._key)
        check_own_types(cursor, self._target, self.traits.ordering_columns, "without a history")

    def check_replay(self, cursor: Cursor) -> None:
        """Do nothing: a replay deletes no rows besides those that its records delete."""

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if the target has columns that only other pipelines with this target write."""
        check_shared_columns(cursor, self.traits, self.lineage_table, columns, pipelines)

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
        evolve: Evolve | None = None,
    ) -> list[RejectRule]:
        """Return rules for staged changes that the types of the target cannot hold."""
        return reject_rules(self._target.casts(cursor, columns, evolve=evolve))

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them."""
        casts = self.lineage_table.casts(cursor, (*columns, *self.traits.epoch))
        check_one_per_record(
            cursor, staged, find_order(self.traits), self.sink.target, self.lineage_table, casts
        )

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Apply the staged changes that are the latest of their keys; return how many were staged.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, ChangesBehind if positions may have gone
        back, and TargetMismatch if a constraint of the target refuses a row.
        """
        return self._latest_only.write(cursor, staged, (*columns, *self.traits.epoch))

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:  # noqa: ARG002
        """Delete nothing, and return 0: the staged changes of the replay replace rows and markers."""
        return 0
