"""Aggregate: counts, sums, least and greatest values by key and window, exact also after a replay."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, Final, Literal

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, StagedRowsDiffer, TargetMismatch
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import LINEAGE, Append, Part
from exactbatch.sinks.cast import Misfit, misfits, own_casts
from exactbatch.sinks.finality import FINAL, REVISIONS, Finality
from exactbatch.sinks.groups import differs, has_one_image, listed, same_group
from exactbatch.sinks.measures import Measure
from exactbatch.sinks.partials import MERGED, RECORDS, Partials, staged_values
from exactbatch.sinks.target import Evolve, TargetTable
from exactbatch.sinks.touched import TOUCHED, create_touched
from exactbatch.sinks.watermark import Watermark
from exactbatch.sinks.window import TIMESTAMPTZ, Window, duration

_TAKEN: Final = {RECORDS.name, FINAL.name, REVISIONS.name, *(column.name for column in LINEAGE)}
_DOUBLE_OVERFLOW: Final = (
    "value out of range: overflow"  # as Postgres says it of floating point numbers alone
)
_GONE: Final = sql.Identifier("exactbatch_gone")


@dataclass(frozen=True)
class Aggregate:
    """Keep in `target` one row for each key and window, with what is measured over all of their rows.

    by            columns and at most one Window; null is a value like any other
    measures      the columns of the result: {"flights": Count(), "worst": Max("dep_delay")}
    final_after   how long after its end a window becomes final, as "2 hours" or a timedelta: as soon as each
                  partition has given an event that much later than the end; None, and no window ever is
    late          what becomes of rows of a final window: "update" applies them and counts the change in the
                  window's `revisions`, "reject" makes them rejects

    The results of each batch are kept apart, in `<target>_partial`, and the target is merged from them for the
    keys and windows that a batch touches, in the same transaction: so a replay, which takes partial results
    back, is exact, also for a greatest value or for a window that had been a mistake. A replay processes
    whole batches again.
    """

    kind: ClassVar[str] = "aggregate"
    lineage: ClassVar[Literal["batch"]] = "batch"
    keeps_deletes: ClassVar[bool] = False
    needs_last_records_only: ClassVar[bool] = False
    needs_lineage: ClassVar[bool] = True

    target: str
    by: tuple[str | Window, ...]
    measures: Mapping[str, Measure]
    final_after: str | timedelta | None = None
    late: Literal["update", "reject"] = "update"

    def __post_init__(self) -> None:
        check_types(self)
        _ = self._target, self.contributions, self.watermark
        if not self.by:
            raise ConfigurationError(
                f"expected what {self.target} groups by as a tuple of columns and at most one Window, "
                f'by=("carrier", Window("time", "1 hour")), found {self.by!r}'
            )
        if len([each for each in self.by if isinstance(each, Window)]) > 1:
            raise ConfigurationError(f"expected at most one Window for {self.target}, found {self.by!r}")
        if not self.measures:
            raise ConfigurationError(
                f'expected measures of {self.target} as {{"flights": Count(), "worst": Max("dep_delay")}}, '
                f"found {self.measures!r}"
            )
        names = [*self.by_names, *self.measures]
        if repeated := sorted({name for name in names if names.count(name) > 1 or name in _TAKEN}):
            raise ConfigurationError(
                f"expected each column of {self.target} once, and beside {', '.join(sorted(_TAKEN))}, found "
                f"{', '.join(map(repr, repeated))}: give the measure or the window another name"
            )
        if self.late == "reject" and self.final_after is None:
            raise ConfigurationError(
                f"expected final_after of {self.target}, which says when rows are late, found none"
            )
        if self.final_after is not None and self.finality is None:
            raise ConfigurationError(
                f"expected a Window among what {self.target} groups by, since it has final_after, found none"
            )

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @cached_property
    def contributions(self) -> Append:
        """The table of partial results."""
        return Append(self._target.beside("_partial"), lineage="batch")

    @cached_property
    def _partials(self) -> Partials:
        return Partials(self.contributions, self.by, self.measures)

    @cached_property
    def watermark(self) -> Watermark | None:
        """The table of event times; it is kept for windows, also before they have final_after."""
        written = self._target.beside("_watermark")
        return None if self.window is None else Watermark(written, self.window.column)

    @cached_property
    def finality(self) -> Finality | None:
        """When windows are final; None where they never are."""
        if self.final_after is None or self.window is None or self.watermark is None:
            return None
        wait = duration(self.final_after, what=f"final_after of {self.target}")
        return Finality(self.window, wait, self.watermark)

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The tables beside the target and the target, in the order in which tables are locked."""
        event_times = () if self.watermark is None else self.watermark.tables
        return (*self.contributions.tables, *event_times, self._target)

    @property
    def table(self) -> sql.Composable:
        """The target as an SQL identifier."""
        return self._target.identifier

    @property
    def window(self) -> Window | None:
        """The window of `by`."""
        return next((each for each in self.by if isinstance(each, Window)), None)

    @property
    def key(self) -> tuple[str, ...]:
        """What partial results mean: by what they are grouped, and what they measure."""
        return (
            *(
                f"{each.start.name} = {each.column} by {each.length}" if isinstance(each, Window) else each
                for each in self.by
            ),
            *(f"{name} = {measure}" for name, measure in self.measures.items()),
        )

    @property
    def by_names(self) -> tuple[str, ...]:
        """The columns of the target that name the group of a row."""
        return self._partials.by_names

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError when what is grouped or measured is no such column of the pipeline."""
        self.contributions.check(columns)
        found = staged_values(columns)
        for each in self.by:
            name = each.column if isinstance(each, Window) else each
            if name not in found:
                raise ConfigurationError(
                    f"expected {self.target} to group by the pipeline's columns, {', '.join(found)}, "
                    f"found {name!r}"
                )
            if isinstance(each, Window) and found[name].type != TIMESTAMPTZ:
                raise ConfigurationError(
                    f"window of {name!r}: expected a column of type timestamptz, found {found[name].type}"
                )
            if (found[name].element or found[name].type) == "json":
                raise ConfigurationError(
                    f"expected {self.target} to group by columns whose values can be compared, found {name!r} "
                    f"of type {found[name].type}: make it jsonb"
                )
        for measure in self.measures.values():
            measure.type_of(found)

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """What a staged row has beside its lineage."""
        return tuple(columns)

    def misfits(self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int) -> list[Misfit]:
        """What is true of a batch's staged rows that do not fit.

        A row has no time of the event, holds text that its column's type does not take, or comes late where
        that makes it a reject. In a replay, what was late before is late again, and nothing else is.
        """
        used = {each.column for each in self.measures.values()} | {*self.by}
        found = misfits(own_casts(cursor, [column for column in columns if column.name in used]))
        if self.window is not None:
            found.append(_without_time(self.window))
        if self.finality is not None and self.late == "reject":
            found.append(self.finality.late(batch_id))
        return found

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and the tables beside it when they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, or the missing unique constraint.
        """
        # First, as publish does: two pipelines may share the target.
        self._target.lock(cursor)
        self._partials.prepare(cursor, columns, evolve=evolve)
        if self.watermark is not None:
            self.watermark.prepare(cursor)
        own = () if self.finality is None else (FINAL, REVISIONS)
        if self.finality is not None:
            self.finality.check_target(cursor, self._target)
        if not self._target.prepare(
            cursor,
            self._partials.results(columns),
            lineage=own,
            required=[column.name for column in own],
            evolve=evolve,
            exact=True,
        ):
            self._target.check_unique(cursor, self.by_names, nulls_once=True)
            self._target.check_collations(cursor, self.by_names)
            self._target.check_operators(cursor, self.by_names)
            return
        self._target.check_operators(cursor, self.by_names)
        cursor.execute(
            sql.SQL("alter table {} add unique nulls not distinct ({})").format(
                self.table, listed(self.by_names)
            )
        )
        if self.finality is not None:
            self.finality.prepare(cursor, self._target)

    def leave_topics(self, cursor: Cursor, pipeline: str, topics: Sequence[str]) -> None:
        """Let windows wait no longer for topics that were taken out of the pipeline, which now has these."""
        if self.watermark is None or not (left := self.watermark.left_topics(cursor, pipeline, topics)):
            return
        self._target.lock(cursor)
        self.watermark.remember(cursor)
        self.watermark.forget(cursor, left)
        if self.finality is not None:
            self.finality.mark(cursor, self._target)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch when a replay would change tables that refer to the partial results."""
        self.contributions.check_replay(cursor)

    def counts(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:
        """None for each part: partial results do not tell which records they are of."""
        return self.contributions.counts(cursor, parts)

    def count(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """How many rows the partial results are of that take_back() would delete."""
        return self._partials.count(cursor, parts)

    def take_back(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the partial results of the batches that stand for ranges; return how many rows they are of."""
        self._begin(cursor)
        if self.watermark is not None:
            self.watermark.take_back(cursor, parts)
        return self._partials.take_back(cursor, parts)

    def insert_staged(
        self,
        cursor: Cursor,
        *,
        staging: sql.Composable,
        columns: Sequence[Column],
        batch_id: int,
        attempts: Sequence[int],
    ) -> int:
        """Insert the partial results of the staged rows of these task attempts, and bring the target up to them.

        Returns how many rows they are of. Raises StagedRowsDiffer for a row that does not fit, and
        TargetMismatch when a constraint of the target refuses a row, or a sum is too great for its column.
        """
        self._begin(cursor)
        rows = sql.SQL("task_attempt = any({})").format(sql.Literal(list(attempts)))
        self._check_fits(cursor, staging, columns, batch_id, rows)
        with self._sums_fit():
            inserted = self._partials.insert_staged(
                cursor, staging=staging, columns=columns, batch_id=batch_id, rows=rows
            )
            if self.watermark is not None:
                self.watermark.insert_staged(cursor, staging=staging, batch_id=batch_id, rows=rows)
            self._partials.merge(cursor, columns)
            self._derive(cursor, columns)
        if self.finality is not None:
            self.finality.mark(cursor, self._target)
        return inserted

    def _begin(self, cursor: Cursor) -> None:
        # Pipelines may share a target; two that merge the same group at once would each miss the other's part.
        self._target.lock(cursor)
        create_touched(cursor, self.contributions, self.by_names)
        if self.watermark is not None:
            self.watermark.remember(cursor)

    def _check_fits(
        self,
        cursor: Cursor,
        staging: sql.Composable,
        columns: Sequence[Column],
        batch_id: int,
        rows: sql.Composable,
    ) -> None:
        """What does not fit has become a reject before; the watermark may have moved since."""
        found = self.misfits(cursor, columns, batch_id=batch_id)
        if not found:
            return
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, kafka_offset, case {cases} end as reason from {staging} "
                "where {rows} and ({misfits}) limit 1"
            ).format(
                cases=sql.SQL(" ").join(
                    sql.SQL("when {} then {}").format(each.condition, each.reason) for each in found
                ),
                staging=staging,
                rows=rows,
                misfits=sql.SQL(" or ").join(sql.SQL("({})").format(each.condition) for each in found),
            )
        )
        if (row := cursor.fetchone()) is not None:
            raise StagedRowsDiffer(
                f"{row[0]}[{row[1]}] offset {row[2]}: expected a staged row that fits {self.target}, found "
                f"{row[3]}. What does not fit is rejected before publish, unless the watermark has moved in "
                f"between. Nothing was written; the retry rejects it."
            )

    def _derive(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Let the touched rows of the target be those that their partial results make."""
        results = self._partials.results(columns)
        # Equal values of a group can look different; the row has the one that stands for them all.
        written = [
            column.name
            for column in results
            if column.name in self.measures or not has_one_image(column.type)
        ]
        parts = {
            "target": self.table,
            "touched": TOUCHED,
            "merged": MERGED,
            "gone": _GONE,
            "by": listed(self.by_names),
            "measures": listed(self.measures),
        }
        cursor.execute(
            sql.SQL(
                "create temporary table {gone} on commit drop as select {by} from {target} with no data"
            ).format(**parts)
        )
        cursor.execute(
            sql.SQL("insert into {gone} select {by} from {touched} except select {by} from {merged}").format(
                **parts
            )
        )
        groups_go = bool(cursor.rowcount)
        guards = self._target.guards(cursor)
        if groups_go:
            gone = sql.SQL("{gone} g where {same}").format(**parts, same=same_group(self.by_names, "t", "g"))
            self._target.delete(
                cursor,
                sql.SQL("delete from {} t using {}").format(self.table, gone),
                left=sql.SQL("select count(*) from {} t, {}").format(self.table, gone) if guards else None,
            )
        # A row that stays as it is, is not written, and no revision is counted.
        changes: list[sql.Composable] = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in written
        ]
        own: sql.Composable = sql.SQL("")
        values: sql.Composable = sql.SQL("")
        if self.finality is not None:
            changes.append(sql.SQL("revisions = t.revisions + t.final::int"))
            own = sql.SQL(", final, revisions")
            values = sql.SQL(", {}, {}::int").format(self.finality.is_final, self.finality.was_final)
        self._target.execute(
            cursor,
            sql.SQL(
                "insert into {target} as t ({by}, {measures}{own}) select {by}, {measures}{values} from {merged} "
                "on conflict ({by}) do update set {changes} where {differs}"
            ).format(
                **parts,
                own=own,
                values=values,
                changes=sql.SQL(", ").join(changes),
                differs=differs(written, "t", "excluded"),
            ),
        )
        if guards:
            self._check_derived(cursor, results, guards)

    def _check_derived(self, cursor: Cursor, results: Sequence[Column], guards: str) -> None:
        """The touched groups' rows are those that were computed."""
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, count(*) as differ "
                "from {merged} m left join {target} t on {same} "
                "where t.tableoid is null or record_image_ne(row({stored}), row({computed}))"
            ).format(
                merged=MERGED,
                target=self.table,
                same=same_group(self.by_names, "t", "m"),
                stored=listed([column.name for column in results], of="t"),
                computed=sql.SQL(", ").join(
                    sql.SQL("{}::{}").format(sql.Identifier("m", column.name), sql.SQL(column.type))
                    for column in results
                ),
            )
        )
        missing, differ = cursor.fetchone()
        if differ:
            raise TargetMismatch(
                f"target {self.target}: of the rows of this batch {missing} did not arrive and "
                f"{differ - missing} are not stored as they were computed: {guards} "
                f"alters them. Nothing was written. Drop it, or let it change only columns that the "
                f"pipeline does not write."
            )

    @contextmanager
    def _sums_fit(self) -> Iterator[None]:
        try:
            yield
        except (psycopg2.errors.NumericValueOutOfRange, TargetMismatch) as error:
            cause = error.__cause__ if isinstance(error, TargetMismatch) else error
            if not isinstance(cause, psycopg2.errors.NumericValueOutOfRange):
                raise
            alter = (
                f"the column the type numeric in {self.target} and {self.contributions.target}: alter table … "
                f"alter column … type numeric;"
            )
            is_double = cause.diag.message_primary == _DOUBLE_OVERFLOW
            remedy = (
                f"A double precision holds at most 1.8e308. Declare the summed column numeric in the pipeline, "
                f"and give {alter}"
                if is_double
                else f"Give {alter}"
            )
            raise TargetMismatch(
                f"target {self.target}: expected every sum within the type of its column, found: "
                f"{cause.diag.message_primary}. Nothing was written. {remedy}"
            ) from error


def _without_time(window: Window) -> Misfit:
    return Misfit(
        sql.SQL("not {}").format(window.fits),
        sql.SQL("{} || coalesce(({} at time zone 'UTC')::text, 'null')").format(
            sql.Literal(
                f"column {window.column!r}: expected the time of the event, in the years 1 to 9999, found "
            ),
            window.time,
        ),
    )
