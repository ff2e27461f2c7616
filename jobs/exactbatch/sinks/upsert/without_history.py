"""Upsert(…, history=False): the target alone, for tables with too many changes to keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Self

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.base import Compactor, Comparison, KeptLatest
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.lineage_table import LINEAGE, LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import (
    check_companion,
    check_lineage,
    check_operators,
    check_own_types,
    check_same_keys,
    check_unique,
)
from exactbatch.sinks.tables.target_definition import Evolve, add_columns, prepare_table
from exactbatch.sinks.upsert.latest_changes import LatestChanges
from exactbatch.sinks.upsert.latest_only import LatestOnly
from exactbatch.sinks.upsert.marker_compaction import MarkerCompactor
from exactbatch.sinks.upsert.sink import Upsert
from exactbatch.sinks.values.cast import RejectRule, reject_rules

_DELETED: str = "_deleted"


@dataclass(frozen=True)
class UpsertWithoutHistory(Upsert):
    """An Upsert whose rows carry the lineage of their latest change, and that keeps no other change.

    A deleted key has a marker in `<target>_deleted`, until `exactbatch compact` drops it: an older change that
    arrives late does not bring the row back. A replay applies its records again, and retracts nothing: a row that the
    records no longer produce stays.
    """

    kind: ClassVar[str] = "upsert_latest"
    companion_suffixes: ClassVar[tuple[str, ...]] = (_DELETED,)
    is_derived: ClassVar[bool] = False
    keeps_every_row: ClassVar[bool] = False

    history: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history:
            raise ConfigurationError(
                f"target {self.target}: to keep a history, write Upsert(…), found {self!r}"
            )

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target, whose rows name their latest change."""
        return LineageTable(self._target)

    @cached_property
    def _markers(self) -> TargetTable:
        return self._target.sibling(_DELETED)

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table of markers and the target, in the order in which they are locked."""
        return (self._markers, self._target)

    @property
    def _latest_only(self) -> LatestOnly:
        return LatestOnly(self._target, self._markers, self.change_order)

    @property
    def compactor(self) -> Compactor:
        """Drops markers of deleted keys."""
        return MarkerCompactor(LineageTable(self._markers))

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and table of markers if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, the missing unique constraint, or a version
        whose type is not one of Postgres's own.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        columns = (*columns, *self._epoch)
        for table in (self._target, self._markers):
            add_columns(cursor, table, self._epoch)
        if not prepare_table(cursor, self._target, columns, lineage=LINEAGE, key=self.key, evolve=evolve):
            check_unique(cursor, self._target, self.key)
            check_lineage(cursor, self._target, self._target.casts(cursor, LINEAGE))
        ordered = [*self.key, *self.version_columns]
        of_markers = [column for name in ordered for column in columns if column.name == name]
        if not prepare_table(cursor, self._markers, of_markers, lineage=LINEAGE, key=self.key):
            check_unique(cursor, self._markers, self.key)
            check_lineage(cursor, self._markers, self._markers.casts(cursor, LINEAGE))
            check_companion(cursor, self._markers)
        check_same_keys(cursor, self._target, self._markers, ordered)
        check_operators(cursor, self._target, self.key)
        check_own_types(cursor, self._target, self.version_columns, "without a history")

    def keeping_unchanged(self) -> Self:
        """Return the sink itself: without older changes, nothing says what a value was."""
        return self

    def applying_truncates(self, order: Sequence[str]) -> Self:  # noqa: ARG002
        """Raise ConfigurationError: nothing would keep a truncate for changes that arrive late, or retract it."""
        raise ConfigurationError(
            f"target {self.target}: truncate='apply' needs the history of the Upsert. Leave out history=False."
        )

    def check_replay(self, cursor: Cursor) -> None:
        """Do nothing: a replay deletes no rows besides those that its records delete."""

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
        LatestChanges(self._target, self.lineage_table, self.change_order).check_one_per_record(
            cursor, staged, (*columns, *self._epoch)
        )

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Apply the staged changes that are the latest of their keys; return how many were staged.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, ChangesBehind if positions may have gone
        back, and TargetMismatch if a constraint of the target refuses a row.
        """
        return self._latest_only.write(cursor, staged, (*columns, *self._epoch))

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Let the staged changes replace the rows and markers of these ranges; delete none, and return 0."""
        self._latest_only.let_replace(cursor, parts)
        return 0

    def count_retracted(self, cursor: Cursor, parts: Sequence[Part]) -> int:  # noqa: ARG002
        """Return 0: nothing is retracted."""
        return 0

    def count_retracted_by_part(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:  # noqa: ARG002
        """Return 0 for each part: nothing is retracted."""
        return [0] * len(parts)

    def batches_in(self, cursor: Cursor, ranges: Sequence[OffsetRange]) -> list[set[int]]:
        """Return the IDs of the batches that have rows or markers in each range."""
        of_markers = LineageTable(self._markers).batches_in(cursor, ranges)
        return [
            rows | markers
            for rows, markers in zip(super().batches_in(cursor, ranges), of_markers, strict=True)
        ]

    @property
    def kept_latest(self) -> KeptLatest:
        """The markers, and what orders the changes of a key."""
        return KeptLatest(self._markers.identifier, self.key, self.version_columns)

    def compare_target(
        self,
        columns: Sequence[Column] | None,  # noqa: ARG002
        target_types: Mapping[str, str],  # noqa: ARG002
        lineage_types: Mapping[str, str],  # noqa: ARG002
    ) -> Comparison | None:
        """Return None: only the log says which change is the latest."""
        return None
