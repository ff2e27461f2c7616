"""Keep the partial results of batches, and bring the rows of their groups up to date."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.aggregate.added_results import AddedResults
from exactbatch.sinks.aggregate.audit import compare_partials_with_records, compare_with_partials
from exactbatch.sinks.aggregate.group_key import check_group_key, create_group_key
from exactbatch.sinks.aggregate.merged_groups import MergedGroups
from exactbatch.sinks.aggregate.partial_results import PartialResults
from exactbatch.sinks.aggregate.spec import PARTIAL, RECORDS, WATERMARK, Aggregate
from exactbatch.sinks.aggregate.sum_overflow import explained_overflow
from exactbatch.sinks.aggregate.watermark import Watermark
from exactbatch.sinks.aggregate.window_finality import WindowFinality
from exactbatch.sinks.aggregate.window_sql import reject_rule
from exactbatch.sinks.capabilities import Comparison
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.affected_keys import create_affected_keys
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_collations, check_operators
from exactbatch.sinks.tables.target_definition import prepare_table
from exactbatch.sinks.values.cast import RejectRule, own_casts, reject_rules
from exactbatch.sinks.values.checks import check_fits


@dataclass(frozen=True)
class AggregateWriter:
    """The writer of an Aggregate."""

    sink: Aggregate
    traits: SinkTraits

    @property
    def parts(self) -> "tuple[AggregateWriter, ...]":
        """The writer itself."""
        return (self,)

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The table of partial results."""
        return LineageTable(self._target.sibling(PARTIAL), lineage="batch", counted_by=RECORDS.name)

    @property
    def _partials(self) -> PartialResults:
        return PartialResults(self.lineage_table, self.sink)

    @property
    def _groups(self) -> MergedGroups:
        return MergedGroups(self._target, self._partials, self.finality)

    @property
    def _added(self) -> AddedResults:
        return AddedResults(self._groups)

    @cached_property
    def watermark(self) -> Watermark | None:
        """The table of event times; it is kept for every window, even without allowed_lateness."""
        window = self.sink.window
        return None if window is None else Watermark(self._target.sibling(WATERMARK), window.column)

    @cached_property
    def finality(self) -> WindowFinality | None:
        """When windows are final; None if they never are."""
        wait, window = self.sink.wait, self.sink.window
        if wait is None or window is None or self.watermark is None:
            return None
        return WindowFinality(window, wait, self.watermark)

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The partial results, the event times and the target, in the order in which they are locked."""
        event_times = () if self.watermark is None else (self.watermark.table,)
        return (self.lineage_table.table, *event_times, self._target)

    @property
    def event_times(self) -> TargetTable | None:
        """The table of event times; None without a Window."""
        return None if self.watermark is None else self.watermark.table

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create the tables if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, or the missing unique constraint.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        self._partials.prepare(cursor, columns, evolve=evolve)
        if self.watermark is not None:
            self.watermark.prepare(cursor)
        if self.finality is not None:
            self.finality.check_target(cursor, self._target)
        created = prepare_table(
            cursor,
            self._target,
            self.sink.aggregated_columns(columns),
            lineage=self.sink.finality_columns,
            required=[column.name for column in self.sink.finality_columns],
            evolve=evolve,
            exact=True,
        )
        if not created:
            check_group_key(cursor, self._target, self._partials.find_group_columns(columns))
            check_collations(cursor, self._target, self.sink.group_columns)
        check_operators(cursor, self._target, self.sink.group_columns)
        if created:
            create_group_key(cursor, self._target, self._partials.find_group_columns(columns))
            if self.finality is not None:
                self.finality.create_index(cursor, self._target)

    def forget_topics(self, cursor: Cursor, topics: Sequence[str]) -> None:
        """Let windows no longer wait for topics that no pipeline with this target loads any more."""
        if self.watermark is None or not (known := self.watermark.known_topics(cursor, topics)):
            return
        self._target.lock(cursor)
        self.watermark.remember(cursor)
        self.watermark.forget(cursor, known)
        if self.finality is not None:
            self.finality.update_final(cursor, self._target)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that refer to the partial results."""
        self.lineage_table.check_replay(cursor)

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return rules for a batch's staged rows that do not fit.

        A row lacks the time of its event, holds text that its column's type does not accept, or, with
        on_late="reject", comes late. In a replay exactly the rows that were late before are late.
        """
        used = {function.column for function in self.sink.aggregates.values()} | {*self.sink.groups}
        rules = reject_rules(own_casts(cursor, [column for column in columns if column.name in used]))
        if self.sink.window is not None:
            rules.append(reject_rule(self.sink.window))
        if self.finality is not None and self.sink.on_late == "reject" and evolve is None:
            rules.append(self.finality.late_rule(batch_id))
        return rules

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert the partial results of staged rows, and bring the target up to date.

        Returns how many staged rows arrived. Raises StagedRowsDiffer for a row that does not fit, and
        TargetMismatch if a constraint of the target refuses a row, or a sum is too great for its column.
        """
        affected = self._begin(cursor)
        can_add = self._added.is_possible(cursor, columns, affected)
        check_fits(cursor, self._target, staged, self.reject_rules(cursor, columns, batch_id=staged.batch_id))
        with explained_overflow(self._target, self.lineage_table.table):
            computed = self._partials.compute(cursor, staged, columns) if can_add else None
            inserted = self._partials.insert_staged(
                cursor, staged, columns, affected=affected, computed=computed
            )
            if self.watermark is not None:
                self.watermark.insert_staged(cursor, staged)
            if computed is None or not self._added.add(cursor, columns, computed):
                merged = self._partials.merge(cursor, columns, affected)
                self._groups.derive(cursor, columns, merged, affected)
        if self.finality is not None:
            self.finality.update_final(cursor, self._target)
        return inserted

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the partial results of batches whose results stand for ranges; return how many staged rows
        these had."""
        affected = self._begin(cursor)
        if self.watermark is not None:
            self.watermark.retract(cursor, parts)
        return self._partials.retract(cursor, parts, affected)

    def compare_target(
        self,
        columns: Sequence[Column] | None,  # noqa: ARG002
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison:
        """Compare each row of the target with the partial results of its group."""
        return compare_with_partials(
            self._target,
            self.lineage_table.identifier,
            self.sink.group_columns,
            self.sink.aggregates,
            self.finality,
            target_types,
            lineage_types,
        )

    def compare_batches(
        self,
        records: sql.Composable,
        batch: sql.Composable,
        columns: Sequence[Column],
        lineage_types: Mapping[str, str],
        batch_ids: sql.Composable,
    ) -> Comparison:
        """Compare the partial results of whole batches with what their records give."""
        return compare_partials_with_records(
            self.lineage_table.identifier,
            self.sink.groups,
            self.sink.group_columns,
            self.sink.aggregates,
            records=records,
            batch=batch,
            columns=columns,
            types=lineage_types,
            batch_ids=batch_ids,
        )

    def _begin(self, cursor: Cursor) -> sql.Identifier:
        """Remember the watermark before the transaction; return the table of affected groups."""
        if self.watermark is not None:
            self.watermark.remember(cursor)
        return create_affected_keys(cursor, self.lineage_table, self.sink.group_columns)
