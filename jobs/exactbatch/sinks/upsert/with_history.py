"""Keep all changes of an Upsert, and derive the latest state of each key from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import Comparison
from exactbatch.sinks.sink import UNAVAILABLE
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.affected_keys import create_affected_keys, retract_affecting
from exactbatch.sinks.tables.counted_writes import forbid_changes
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target_checks import check_same_keys, check_unique
from exactbatch.sinks.tables.target_definition import add_columns, prepare_table
from exactbatch.sinks.upsert.audit import compare_with_changes
from exactbatch.sinks.upsert.change_compaction import ChangeCompactor
from exactbatch.sinks.upsert.latest_changes import ChangeStore
from exactbatch.sinks.upsert.truncates import Truncates
from exactbatch.sinks.upsert.unavailable_values import UnavailableValues
from exactbatch.sinks.upsert.writer import UpsertWriter
from exactbatch.sinks.values.cast import RejectRule, check_two_steps, reject_rules


@dataclass(frozen=True)
class HistoryWriter(UpsertWriter):
    """The writer of an Upsert that keeps all changes."""

    @property
    def lineage_table(self) -> LineageTable:
        """The table of changes."""
        return self._companion

    @property
    def compactor(self) -> ChangeCompactor:
        """Drops changes that later ones have superseded."""
        return ChangeCompactor(self.lineage_table, self.traits.key_columns, self.traits.ordering_columns)

    def _prepare_tables(self, cursor: Cursor, columns: Sequence[Column], evolve: Evolve) -> None:
        if not prepare_table(cursor, self._target, columns, key=self.traits.key_columns, evolve=evolve):
            check_unique(cursor, self._target, self.traits.key_columns)
        # A table of changes from before has whole changes, in the first epoch.
        added = [*([UNAVAILABLE] if self.traits.keeps_unavailable else []), *self.traits.epoch]
        add_columns(cursor, self.lineage_table.table, added)
        changes = self.traits.staged_columns(columns)
        self.lineage_table.prepare(cursor, changes, evolve=evolve)
        check_same_keys(cursor, self._target, self.lineage_table.table, self.traits.key_columns)
        if self.traits.applies_truncates:
            self._truncates.check(cursor)
        check_two_steps(
            self.sink.target, self.lineage_table.casts(cursor, changes), self._target.casts(cursor, columns)
        )

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that refer to the table of changes."""
        self.lineage_table.check_replay(cursor)

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
        evolve: Evolve | None = None,
    ) -> list[RejectRule]:
        """Return rules for staged changes that the types of the changes or of the target cannot hold."""
        return [
            *reject_rules(
                self.lineage_table.casts(cursor, self.traits.staged_columns(columns), evolve=evolve)
            ),
            *reject_rules(self._target.casts(cursor, columns, evolve=evolve)),
            *self._unordered_rules,
        ]

    @property
    def _unordered_rules(self) -> list[RejectRule]:
        """A rule for staged changes whose version the source left out: nothing orders them."""
        if not self.traits.keeps_unavailable:
            return []
        return [
            RejectRule(
                sql.SQL("coalesce({} = any({}), false)").format(
                    sql.Literal(name), sql.Identifier(UNAVAILABLE.name)
                ),
                sql.Literal(f"column {name!r}: the source left out the version, which orders the changes"),
            )
            for name in self.traits.version_columns
        ]

    def find_unavailable(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], *, without: sql.Composable
    ) -> sql.Composable | None:
        """Return a query for staged changes that lack a value which no older change of their key has."""
        return self._unavailable_values.find_unavailable(
            cursor, staged, (*columns, *self.traits.epoch), without=without, truncates=self._truncates
        )

    @property
    def _unavailable_values(self) -> UnavailableValues:
        return UnavailableValues(self.lineage_table, self.traits.key_columns, self.traits.ordering_columns)

    @property
    def _truncates(self) -> Truncates:
        return Truncates(
            self._target,
            self.lineage_table,
            self.traits.key_columns,
            self.traits.ordering_columns,
            self.traits.applies_truncates,
        )

    def _open_store(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> ChangeStore:
        affected = create_affected_keys(cursor, self.lineage_table, self.traits.key_columns)
        casts = self.lineage_table.casts(cursor, self.traits.staged_columns(columns))
        return ChangeStore(
            self._target,
            self.lineage_table,
            self._order,
            staged,
            columns,
            casts,
            affected,
            self._truncates,
            self._truncates.find(cursor, staged, casts, affected),
            self._unavailable_values,
        )

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the changes that batches have written for ranges; return how many that was."""
        affected = create_affected_keys(cursor, self.lineage_table, self.traits.key_columns)
        truncates = self._truncates.note(cursor, parts)
        with forbid_changes(cursor, self._target, while_writing=self.lineage_table.table):
            retracted = retract_affecting(
                cursor, self.lineage_table, parts, self.traits.key_columns, affected
            )
        if truncates is not None:
            self._truncates.affect(cursor, truncates, affected)
        return retracted

    def compare_target(
        self,
        columns: Sequence[Column] | None,
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison:
        """Compare each row of the target with the latest change of its key."""
        return compare_with_changes(
            self._target.identifier,
            self.lineage_table.identifier,
            self.traits.key_columns,
            self.traits.ordering_columns,
            columns=columns,
            target_types=target_types,
            change_types=lineage_types,
        )
