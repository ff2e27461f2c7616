"""Aggregate: counts, sums, least and greatest values by key and window, exact also after a replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, Final, Literal

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, renamed_options
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.aggregate.added_results import AddedResults
from exactbatch.sinks.aggregate.audit import compare_partials_with_records, compare_with_partials
from exactbatch.sinks.aggregate.functions import AggregateFunction
from exactbatch.sinks.aggregate.group_key import check_group_key, create_group_key
from exactbatch.sinks.aggregate.merged_groups import MergedGroups
from exactbatch.sinks.aggregate.partial_results import RECORD_COUNT, RECORDS, PartialResults, staged_values
from exactbatch.sinks.aggregate.sum_overflow import explained_overflow
from exactbatch.sinks.aggregate.watermark import Watermark
from exactbatch.sinks.aggregate.window import TIMESTAMPTZ, Window, duration
from exactbatch.sinks.aggregate.window_finality import FINAL, REVISIONS, WindowFinality
from exactbatch.sinks.base import Comparison, SinkIdentity
from exactbatch.sinks.sink_defaults import SinkDefaults
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.affected_keys import create_affected_keys
from exactbatch.sinks.tables.lineage_table import LINEAGE, LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_collations, check_operators
from exactbatch.sinks.tables.target_definition import Evolve, prepare_table
from exactbatch.sinks.values.cast import RejectRule, own_casts, reject_rules
from exactbatch.sinks.values.check_fits import check_fits

_RESERVED: Final = {RECORDS.name, FINAL.name, REVISIONS.name, *(column.name for column in LINEAGE)}
_PARTIAL, _WATERMARK = "_partial", "_watermark"


@renamed_options(by="group_by", measures="aggregates", final_after="allowed_lateness", late="on_late")
@dataclass(frozen=True)
class Aggregate(SinkDefaults):
    """Keep in `target` one row for each key and window, with aggregates over all of their rows.

    group_by          columns and at most one Window; null is a value like any other
    aggregates        the columns of the result: {"flights": Count(), "worst": Max("dep_delay")}
    allowed_lateness  how long after its end a window becomes final, as "2 hours" or a timedelta: as soon as each
                      partition has given an event that is at least that much later than the end; None: never
    on_late           what happens to rows of a final window: "update" applies them and counts the change in the
                      window's `revisions`, "reject" makes them rejects

    The results of each batch are kept separately, in `<target>_partial`, and added to the rows of its keys and windows
    in the transaction of the batch. A replay retracts partial results and merges the others again, so it is exact, also
    for a greatest value or for a window that should not exist. It processes whole batches again.

    `by`, `measures`, `final_after` and `late` are deprecated names of these options.
    """

    kind: ClassVar[str] = "aggregate"
    lineage: ClassVar[Literal["batch"]] = "batch"
    companion_suffixes: ClassVar[tuple[str, ...]] = (_PARTIAL, _WATERMARK)
    is_derived: ClassVar[bool] = True
    needs_lineage: ClassVar[bool] = True
    not_copyable: ClassVar[str] = "a sink whose target is derived from all ranges (aggregate)"
    staged_row_count: ClassVar[sql.Composable] = RECORD_COUNT
    values_follow_from_records: ClassVar[bool] = True

    target: str
    group_by: tuple[str | Window, ...]
    aggregates: Mapping[str, AggregateFunction]
    allowed_lateness: str | timedelta | None = None
    on_late: Literal["update", "reject"] = "update"

    def __post_init__(self) -> None:
        check_types(self)
        self._target.check_length()
        _ = self.lineage_table, self.watermark
        if not self.group_by:
            raise ConfigurationError(
                f"expected group_by of {self.target} as a tuple of columns and at most one Window, "
                f'group_by=("carrier", Window("time", "1 hour")), found {self.group_by!r}'
            )
        if len([group for group in self.group_by if isinstance(group, Window)]) > 1:
            raise ConfigurationError(
                f"expected at most one Window for {self.target}, found {self.group_by!r}"
            )
        if not self.aggregates:
            raise ConfigurationError(
                f'expected aggregates of {self.target} as {{"flights": Count(), "worst": Max("dep_delay")}}, '
                f"found {self.aggregates!r}"
            )
        names = [*self.key_columns, *self.aggregates]
        if repeated := sorted({name for name in names if names.count(name) > 1 or name in _RESERVED}):
            raise ConfigurationError(
                f"target {self.target}: the columns {', '.join(map(repr, repeated))} occur twice or have "
                f"reserved names. Give the aggregate or the window another name. Reserved are "
                f"{', '.join(sorted(_RESERVED))}."
            )
        if self.on_late == "reject" and self.allowed_lateness is None:
            raise ConfigurationError(
                f"target {self.target}: on_late='reject' needs allowed_lateness, which says when rows are late"
            )
        if self.allowed_lateness is not None and self.finality is None:
            raise ConfigurationError(
                f"target {self.target}: allowed_lateness needs a Window in group_by, and there is none"
            )

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers; `key` describes groups and aggregates."""
        groups = (
            f"{group.start.name} = {group.column} by {group.length}" if isinstance(group, Window) else group
            for group in self.group_by
        )
        functions = (f"{name} = {function}" for name, function in self.aggregates.items())
        return SinkIdentity(
            self.target, self.kind, key=(*groups, *functions), version="", lineage=self.lineage
        )

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The table of partial results."""
        return LineageTable(self._target.sibling(_PARTIAL), lineage="batch")

    @cached_property
    def _partials(self) -> PartialResults:
        return PartialResults(self.lineage_table, self.group_by, self.aggregates)

    @property
    def _groups(self) -> MergedGroups:
        return MergedGroups(self._target, self._partials, self.finality)

    @property
    def _added(self) -> AddedResults:
        return AddedResults(self._groups)

    @cached_property
    def watermark(self) -> Watermark | None:
        """The table of event times; it is kept for every window, even without allowed_lateness."""
        table = self._target.sibling(_WATERMARK)
        return None if self.window is None else Watermark(table, self.window.column)

    @cached_property
    def finality(self) -> WindowFinality | None:
        """When windows are final; None if they never are."""
        if self.allowed_lateness is None or self.window is None or self.watermark is None:
            return None
        wait = duration(self.allowed_lateness, what=f"allowed_lateness of {self.target}")
        return WindowFinality(self.window, wait, self.watermark)

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The partial results, the event times and the target, in the order in which they are locked."""
        event_times = () if self.watermark is None else (self.watermark.table,)
        return (self.lineage_table.table, *event_times, self._target)

    @property
    def event_times(self) -> TargetTable | None:
        """The table of event times; None without a Window."""
        return None if self.watermark is None else self.watermark.table

    @property
    def window(self) -> Window | None:
        """The Window of `group_by`."""
        return next((group for group in self.group_by if isinstance(group, Window)), None)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the target that name the group of a row."""
        return self._partials.group_columns

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a group, its aggregates, and with allowed_lateness those of its finality."""
        return (*self._partials.result_columns(columns), *self._own_columns)

    @property
    def _own_columns(self) -> tuple[Column, ...]:
        return () if self.finality is None else (FINAL, REVISIONS)

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if a column to group by or to aggregate is not one of the pipeline's."""
        self.lineage_table.check(columns)
        values = staged_values(columns)
        for group in self.group_by:
            name = group.column if isinstance(group, Window) else group
            if name not in values:
                raise ConfigurationError(
                    f"expected {self.target} to group by the pipeline's columns, {', '.join(values)}, "
                    f"found {name!r}"
                )
            if isinstance(group, Window) and values[name].type != TIMESTAMPTZ:
                raise ConfigurationError(
                    f"window of {name!r}: expected a column of type timestamptz, found {values[name].type}"
                )
            if (values[name].element or values[name].type) == "json":
                raise ConfigurationError(
                    f"expected {self.target} to group by columns whose values can be compared, found {name!r} "
                    f"of type {values[name].type}: make it jsonb"
                )
        for function in self.aggregates.values():
            function.type_of(values)

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
            self._partials.result_columns(columns),
            lineage=self._own_columns,
            required=[column.name for column in self._own_columns],
            evolve=evolve,
            exact=True,
        )
        if not created:
            check_group_key(cursor, self._target, self._partials.group_columns_of(columns))
            check_collations(cursor, self._target, self.key_columns)
        check_operators(cursor, self._target, self.key_columns)
        if created:
            create_group_key(cursor, self._target, self._partials.group_columns_of(columns))
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

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return rules for a batch's staged rows that do not fit.

        A row lacks the time of its event, holds text that its column's type does not accept, or, with
        on_late="reject", comes late. In a replay exactly the rows that were late before are late.
        """
        used = {function.column for function in self.aggregates.values()} | {*self.group_by}
        rules = reject_rules(own_casts(cursor, [column for column in columns if column.name in used]))
        if self.window is not None:
            rules.append(self.window.reject_rule)
        if self.finality is not None and self.on_late == "reject" and evolve is None:
            rules.append(self.finality.late_rule(batch_id))
        return rules

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert the partial results of staged rows, and bring the target up to date.

        Returns how many staged rows arrived. Raises StagedRowsDiffer for a row that does not fit, and
        TargetMismatch if a constraint of the target refuses a row, or a sum is too great for its column.
        """
        self._begin(cursor)
        can_add = self._added.is_possible(cursor, columns)
        check_fits(cursor, self._target, staged, self.reject_rules(cursor, columns, batch_id=staged.batch_id))
        with explained_overflow(self._target, self.lineage_table.table):
            inserted = self._partials.insert_staged(cursor, staged, columns, copy=can_add)
            if self.watermark is not None:
                self.watermark.insert_staged(cursor, staged)
            if not can_add or not self._added.add(cursor, columns):
                self._partials.merge(cursor, columns)
                self._groups.derive(cursor, columns)
        if self.finality is not None:
            self.finality.update_final(cursor, self._target)
        return inserted

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the partial results of batches whose results stand for ranges; return how many staged rows
        these had."""
        self._begin(cursor)
        if self.watermark is not None:
            self.watermark.retract(cursor, parts)
        return self._partials.retract(cursor, parts)

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
            self.key_columns,
            self.aggregates,
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
            self.group_by,
            self.key_columns,
            self.aggregates,
            records=records,
            batch=batch,
            columns=columns,
            types=lineage_types,
            batch_ids=batch_ids,
        )

    def _begin(self, cursor: Cursor) -> None:
        create_affected_keys(cursor, self.lineage_table, self.key_columns)
        if self.watermark is not None:
            self.watermark.remember(cursor)
