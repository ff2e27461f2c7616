"""Store the rows of a batch in several targets, in one transaction: in all of them, or each row in its own."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import ChecksStaged
from exactbatch.sinks.sink import Routed, SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import VALUE_CHARACTERS, RejectRule, reject_null_keys
from exactbatch.sinks.writer import SinkWriter

_NO_TARGET: Final = -1  # in place of the number of a target
_VIEW: Final = sql.Identifier("pg_temp", "exactbatch_routed")


@dataclass(frozen=True)
class SeveralWriter:
    """The writer of several targets. The part that decides is the last."""

    parts: tuple[SinkWriter, ...]
    traits: SinkTraits

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The tables of all parts; the target of the last part is the last."""
        return tuple(table for part in self.parts for table in part.tables)

    @property
    def lineage_table(self) -> LineageTable:
        """The lineage table of the last part."""
        return self.parts[-1].lineage_table

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create missing tables, and check those that exist. Raises TargetMismatch."""
        for part in self.parts:
            part.prepare(cursor, part.traits.own_columns(columns), evolve=evolve)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if retracting rows of any target would change other tables by foreign keys."""
        for part in self.parts:
            part.check_replay(cursor)

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return the rules of all parts: a value that one target cannot hold rejects the record for all.

        With a route, a rule of a part concerns its rows alone, and a row without a target is a reject.
        """
        rules = []
        for part in self.parts:
            of_part = part.reject_rules(
                cursor, part.traits.own_columns(columns), batch_id=batch_id, evolve=evolve
            )
            route = part.traits.route
            rules += (
                of_part
                if route is None
                else _limit_rules([*reject_null_keys(part.traits.key_columns), *of_part], route)
            )
        routes = self._routes
        return [_reject_unrouted(routes), *rules] if routes and not routes[0].has_rest else rules

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a record gave several rows between which a part cannot decide."""
        for part, rows in self._share(cursor, staged):
            if isinstance(part, ChecksStaged):
                part.check_staged(cursor, rows, part.traits.own_columns(columns))

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Store staged rows in all targets, or each in its own; return how many arrived.

        Raises TargetMismatch if a constraint refuses a row, or a target received fewer rows than are for it.
        """
        total = 0
        for part, rows in self._share(cursor, staged):
            arrived = part.insert_staged(cursor, rows, part.traits.own_columns(columns))
            if arrived != rows.count:
                raise TargetMismatch(
                    f"target {part.traits.target}: {rows.count} of the staged rows are for it, and {arrived} arrived. "
                    f"Nothing was written. Does a trigger or a rule discard rows? Remove it."
                )
            total = total + arrived if self._routes else arrived
        return total

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete from all targets what batches stored for ranges; return how many staged rows that was."""
        retracted = [part.retract(cursor, parts) for part in self.parts]
        return sum(retracted) if self._routes else retracted[-1]

    @property
    def _routes(self) -> tuple[Routed, ...]:
        """The route of each part; () if each target has all rows."""
        return tuple(part.traits.route for part in self.parts if part.traits.route is not None)

    def _share(self, cursor: Cursor, staged: StagedRows) -> Iterator[tuple[SinkWriter, StagedRows]]:
        """Yield each part with the staged rows that are for it."""
        routes = self._routes
        if not routes:
            yield from ((part, staged) for part in self.parts)
            return
        counts = _count_rows(cursor, staged, routes)
        if lost := counts.pop(_NO_TARGET, None):
            raise TargetMismatch(
                f"{sum(lost.values())} staged rows have no target, because their {routes[0].by} is not a value of the "
                f"Route. Nothing was written."
            )
        for number, (part, route) in enumerate(zip(self.parts, routes, strict=True)):
            rows = counts.get(number, {})
            # What a replay has retracted from a target is missing there until rows are inserted, even if they are none.
            if rows or staged.replaced:
                with _view(cursor, staged, route):
                    yield (
                        part,
                        replace(staged, table=_VIEW, rows={each: rows.get(each, 0) for each in staged.rows}),
                    )


def _count_rows(cursor: Cursor, staged: StagedRows, routes: Sequence[Routed]) -> dict[int, dict[int, int]]:
    """Return how many rows each task attempt has staged, by the number of the target."""
    cursor.execute(
        sql.SQL(
            "select case {cases} else {none} end, task_attempt, count(*) from {staging} where {accepted} group by 1, 2"
        ).format(
            cases=sql.SQL(" ").join(
                sql.SQL("when {} then {}").format(_is_for(route), sql.Literal(number))
                for number, route in enumerate(routes)
            ),
            none=sql.Literal(_NO_TARGET),
            staging=staged.table,
            accepted=staged.accepted,
        )
    )
    counts: dict[int, dict[int, int]] = defaultdict(dict)
    for number, attempt, count in cursor.fetchall():
        counts[number][attempt] = count
    return counts


@contextmanager
def _view(cursor: Cursor, staged: StagedRows, route: Routed) -> Iterator[None]:
    """Let a temporary view show the staged rows that are for a target, until the block ends; then drop the temporary
    tables that were created in it, whose names the next part uses again."""
    before = _list_temporary(cursor)
    # A writer finds a staged row again by its ctid, which a view does not have by itself.
    cursor.execute(
        sql.SQL("create view {} as select s.ctid, s.* from {} s where {}").format(
            _VIEW, staged.table, _is_for(route)
        )
    )
    yield
    cursor.execute(sql.SQL("drop view {}").format(_VIEW))
    for name, kind in sorted(_list_temporary(cursor) - before):
        what = sql.SQL("sequence" if kind == "S" else "table")
        cursor.execute(sql.SQL("drop {} {}").format(what, sql.Identifier("pg_temp", name)))


def _list_temporary(cursor: Cursor) -> set[tuple[str, str]]:
    """Return name and kind of the temporary tables and sequences of this session."""
    cursor.execute(
        "select relname, relkind from pg_catalog.pg_class where relnamespace = pg_catalog.pg_my_temp_schema() "
        "and relkind in ('r', 'S')"
    )
    return {(name, kind) for name, kind in cursor.fetchall()}


def _is_for(route: Routed) -> sql.Composable:
    """Return the condition that a staged row is for the target of a route."""
    by = sql.Identifier(route.by)
    if route.takes_rest:
        return sql.SQL("coalesce({} <> all({}::text[]), true)").format(by, sql.Literal([*route.elsewhere]))
    return sql.SQL("coalesce({} = any({}::text[]), false)").format(by, sql.Literal([*route.values]))


def _limit_rules(rules: Sequence[RejectRule], route: Routed) -> list[RejectRule]:
    """Return rules for the rows of one target."""
    # Only case is sure to leave out a condition that would raise an error for the rows of other targets.
    return [
        replace(
            rule,
            condition=sql.SQL("case when {} then {} else false end").format(_is_for(route), rule.condition),
        )
        for rule in rules
    ]


def _reject_unrouted(routes: Sequence[Routed]) -> RejectRule:
    """Return the rule for rows without a target."""
    by = sql.Identifier(routes[0].by)
    values = sorted(value for route in routes for value in route.values)
    return RejectRule(
        sql.SQL("coalesce({} <> all({}::text[]), true)").format(by, sql.Literal(values)),
        sql.SQL("{} || coalesce(pg_catalog.quote_literal(pg_catalog.left({}, {})), 'null') || {}").format(
            sql.Literal(f"column {routes[0].by!r}: "),
            by,
            sql.Literal(VALUE_CHARACTERS),
            sql.Literal(f" leads to no target: the Route has {', '.join(values)} and no rest"),
        ),
        column=routes[0].by,
    )
