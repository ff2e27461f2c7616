"""Write rows when one takes over a unique value, or a place in an exclusion constraint, from another one.

Postgres checks such constraints row by row, unless they are deferrable, which an index cannot be. So the rows that
change are locked in the order of their keys, as in every batch, and then written in another order: what holds a value
before what takes it over, and new keys last. Of rows that take over from each other in a circle, one is deleted and
inserted again, in the statement that writes the others: a foreign key without an action is checked at its end.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import psycopg2
from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.errors.sqlstates import (
    EXCLUSION_VIOLATION,
    FOREIGN_KEY_VIOLATION,
    RESTRICT_VIOLATION,
    UNIQUE_VIOLATION,
)
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.candidates import Candidates
from exactbatch.sinks.tables.constraint_errors import constraint_error
from exactbatch.sinks.tables.constraints import ExclusiveIndex, exclusive_indexes
from exactbatch.sinks.tables.counted_writes import write_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

Row = TypeVar("Row", bound=Hashable)
# What Postgres answers if another row is in the way.
IN_THE_WAY: Final = (UNIQUE_VIOLATION, EXCLUSION_VIOLATION)
# The rows of the target that change, where they are, and their places in the order; null if they are to be removed.
_CHANGING: Final = sql.Identifier("exactbatch_changing")
_TABLE: Final = sql.Identifier("exactbatch stored table")
_ROW: Final = sql.Identifier("exactbatch stored row")
_PLACE: Final = sql.Identifier("exactbatch place")
_COMPUTED: Final = """
select a.attname::text as name, pg_get_expr(d.adbin, d.adrelid) as expression
from pg_attribute a join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = %s::regclass and a.attgenerated <> '' and not a.attisdropped
"""


def order_releases(takeovers: Iterable[tuple[Row, Row]]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows in the order in which to write them, and those to remove before, which come last.

    A takeover is a pair: a row, and another one that holds what the first one is to have. Rows that take over from
    each other in a circle have no such order: one of each circle is among those to remove.
    """
    holders: dict[Row, set[Row]] = defaultdict(set)
    takers: dict[Row, list[Row]] = defaultdict(list)
    for taker, holder in dict.fromkeys(takeovers):
        holders[taker].add(holder)
        takers[holder].append(taker)
    ready = deque(row for row in takers if row not in holders)
    ordered: list[Row] = []
    removed: list[Row] = []
    while ready or holders:
        if ready:
            ordered.append(row := ready.popleft())
        else:
            removed.append(row := _in_circle(holders))
            del holders[row]
        for taker in takers[row]:
            if taker in holders:
                holders[taker].discard(row)
                if not holders[taker]:
                    del holders[taker]
                    ready.append(taker)
    return ordered, removed


def _in_circle(holders: dict[Row, set[Row]]) -> Row:
    """Return a row of a circle; each row waits for another one."""
    row = next(iter(holders))
    seen: set[Row] = set()
    while row not in seen:
        seen.add(row)
        row = next(iter(holders[row]))
    return row


@dataclass(frozen=True)
class MovingValues:
    """Rows to write into a target, and which of its rows they change.

    names       the columns that are written
    rows        a relation with these columns, and one row for each key
    changes     the condition, over a row `l` of `rows` and the row `t` of its key, that `t` changes
    on_conflict the clause that updates the row `t` if it changes
    candidates  the rows to write, among which those that are refused are looked for
    """

    target: TargetTable
    key: Sequence[str]
    names: Sequence[str]
    rows: sql.Composable
    changes: sql.Composable
    on_conflict: sql.Composable
    candidates: Candidates

    def write(self, cursor: Cursor, in_order: sql.Composable, *, may_conflict: bool) -> int:
        """Write the rows, which the query `in_order` gives in the order of their keys; return how many.

        If one of them is in the way of another, they are written in another order. Without `may_conflict`, the target
        has no row of their keys. Raises TargetMismatch if the target refuses a row.
        """
        insert = sql.SQL("insert into {} as t ({}) {}").format(
            self.target.identifier, column_list(self.names), in_order
        )
        # An insert that allows for rows with the same keys takes half as long again.
        if may_conflict:
            insert += sql.SQL(" on conflict ({}) {}").format(column_list(self.key), self.on_conflict)
        try:
            return write_rows(cursor, self.target, insert, candidates=self.candidates, retried=IN_THE_WAY)
        except TargetMismatch as error:
            if error.sqlstate not in IN_THE_WAY:
                raise
            return self._write_in_another_order(cursor, error)

    def _write_in_another_order(self, cursor: Cursor, refusal: TargetMismatch) -> int:
        """Write the rows in an order in which no row is in the way of another; return how many.

        `refusal` is the error of writing them in the order of their keys. Raises TargetMismatch if the rows violate
        the constraint as they end, or if they exchange values, and deleting one of them would have other effects.
        """
        if not self._lock_changing(cursor):  # no row can make room for another
            assert isinstance(refusal.__cause__, psycopg2.Error)
            raise constraint_error(cursor, self.target, refusal.__cause__, self.candidates) from refusal
        ordered, removed = order_releases(self._takeovers(cursor))
        if removed:
            self._check_removable(cursor, refusal)
        self._place(cursor, ordered, removed)
        try:
            written = write_rows(
                cursor,
                self.target,
                self._changing_rows(cursor, with_removed=bool(removed)),
                candidates=self.candidates,
                removal=self._removal if removed else None,
            )
        except TargetMismatch as error:
            if removed and self._is_restricted(cursor, error):
                raise self._not_removable(cursor, refusal, f"foreign key {error.constraint}") from error
            raise
        return written + write_rows(cursor, self.target, self._other_rows, candidates=self.candidates)

    def _lock_changing(self, cursor: Cursor) -> int:
        """Lock the rows that change, in the order of their keys, and note them; return how many there are."""
        cursor.execute(
            sql.SQL(
                "create temporary table {changing} on commit drop as "
                "select {of_row}, t.tableoid as {table}, t.ctid as {row}, 0 as {place} from {target} t "
                "join {rows} l on {same_key} where {changes} order by {of_row} for no key update of t"
            ).format(**self._names)
        )
        changing = int(cursor.rowcount)
        cursor.execute(sql.SQL("analyze {}").format(_CHANGING))
        return changing

    def _takeovers(self, cursor: Cursor) -> list[tuple[tuple[int, str], tuple[int, str]]]:
        """Return pairs of changing rows: one, and another that has what is in its way until it changes."""
        indexes = [each for each in exclusive_indexes(cursor, self.target) if each.is_immediate]
        changed = self._changed_rows(cursor)
        takeovers = []
        for index in indexes:
            cursor.execute(self._in_the_way(index, changed))
            takeovers += [((row[0], row[1]), (row[2], row[3])) for row in cursor.fetchall()]
        return takeovers

    def _in_the_way(self, index: ExclusiveIndex, changed: sql.Composable) -> sql.Composable:
        """Return a query for the takeovers of one index."""
        condition = sql.SQL(" and ").join(
            sql.SQL("{} {} {}").format(expression, sql.SQL(operator), value)
            for expression, operator, value in zip(
                index.expressions, index.operators, index.values, strict=True
            )
        )
        if index.nulls_equal:
            # Between values of type record, nulls are equal.
            condition = sql.SQL("row({})::record = row({})::record").format(
                sql.SQL(", ").join(index.expressions), sql.SQL(", ").join(index.values)
            )
        # Only the columns of the target itself have names that the index's expressions may mean.
        return sql.SQL(
            "select n.{table}, n.{row}::text, c.{table} as held_in, c.{row}::text as held_by from ("
            "select {table}, {row}, {new_values} from {changed} r where {predicate}) n "
            "join {target} t on {condition} and {predicate} "
            "join (select {table}, {row} from {changing}) c on c.{table} = t.tableoid and c.{row} = t.ctid "
            "where (n.{table}, n.{row}) <> (c.{table}, c.{row}) order by 1, n.{row}"
        ).format(
            **self._names,
            new_values=index.named_values,
            changed=changed,
            predicate=index.predicate,
            condition=condition,
        )

    def _changed_rows(self, cursor: Cursor) -> sql.Composable:
        """Return a relation of the changing rows as they are to be: the columns of the target, and where it is now."""
        cursor.execute(_COMPUTED, (self.target.identifier.as_string(cursor),))
        computed = dict(cursor.fetchall())
        columns = {
            name: column for name, column in self.target.columns(cursor).items() if name not in computed
        }
        values = [
            sql.SQL("{}::{}{} as {}").format(
                sql.Identifier("l" if name in self.names else "t", name),
                sql.SQL(column.type),
                sql.SQL(f" collate {column.collation}" if column.collation else ""),
                sql.Identifier(name),
            )
            for name, column in columns.items()
        ]
        return sql.SQL(
            "(select {computed} b.* from (select c.{table}, c.{row}, {values} from {changing} c "
            "join {target} t on t.tableoid = c.{table} and t.ctid = c.{row} join {rows} l on {same_key}) b)"
        ).format(
            **self._names,
            computed=sql.SQL("").join(
                sql.SQL("{} as {}, ").format(sql.SQL(expression), sql.Identifier(name))
                for name, expression in computed.items()
            ),
            values=sql.SQL(", ").join(values),
        )

    def _place(
        self, cursor: Cursor, ordered: Sequence[tuple[int, str]], removed: Sequence[tuple[int, str]]
    ) -> None:
        """Note the places of rows in the order; rows that are not in it come before all others."""
        places = [
            *((*row, place) for place, row in enumerate(ordered, 1)),
            *((*row, None) for row in removed),
        ]
        if places:
            tables, rows, numbers = zip(*places, strict=True)
            cursor.execute(
                sql.SQL(
                    "update {changing} c set {place} = p.place "
                    "from unnest(%s::oid[], %s::tid[], %s::int[]) p (oid, tid, place) "
                    "where c.{table} = p.oid and c.{row} = p.tid"
                ).format(**self._names),
                (list(tables), list(rows), list(numbers)),
            )

    def _changing_rows(self, cursor: Cursor, *, with_removed: bool) -> sql.Composable:
        """Return the statement that writes the rows whose keys are in the target."""
        kept: list[str] = []
        if with_removed:
            # Columns that the pipeline does not write keep their values: those in the snapshot of the statement.
            cursor.execute(_COMPUTED, (self.target.identifier.as_string(cursor),))
            computed = {row.name for row in cursor.fetchall()}
            kept = [name for name in self.target.columns(cursor) if name not in {*self.names, *computed}]
        return sql.SQL(
            "insert into {target} as t ({columns}) overriding system value select {values} from {rows} l "
            "join {changing} c on {same_key_of_changing} {with_kept} {condition} "
            "order by c.{place} nulls last, {of_changing} on conflict ({key}) {on_conflict}"
        ).format(
            **self._names,
            columns=column_list([*self.names, *kept]),
            values=sql.SQL(", ").join(
                [
                    *(sql.Identifier("l", name) for name in self.names),
                    *(sql.Identifier("k", name) for name in kept),
                ]
            ),
            with_kept=sql.SQL(
                "join {target} k on k.tableoid = c.{table} and k.ctid = c.{row}" if with_removed else ""
            ).format(**self._names),
            # Reading the count of what was removed makes it happen before.
            condition=sql.SQL("where (select count(*) from removed) >= 0" if with_removed else ""),
        )

    @property
    def _removal(self) -> sql.Composable:
        """The statement that deletes the rows that would be in each other's way in any order."""
        return sql.SQL(
            "delete from {target} t using {changing} c "
            "where c.{place} is null and t.tableoid = c.{table} and t.ctid = c.{row} returning 1"
        ).format(**self._names)

    @property
    def _other_rows(self) -> sql.Composable:
        """The statement that writes the rows of new keys; those that do not change stay as they are."""
        return sql.SQL(
            "insert into {target} as t ({columns}) select {of_new} from {rows} l "
            "where not exists (select from {changing} c where {same_key_of_changing}) order by {of_new_key} "
            "on conflict ({key}) {on_conflict}"
        ).format(
            **self._names,
            columns=column_list(self.names),
            of_new=column_list(self.names, of="l"),
            of_new_key=column_list(self.key, of="l"),
        )

    def _check_removable(self, cursor: Cursor, refusal: TargetMismatch) -> None:
        """Raise TargetMismatch if deleting a row and inserting it again does something else than an update."""
        if effects := self.target.row_changers(cursor):
            raise self._not_removable(cursor, refusal, effects)

    def _is_restricted(self, cursor: Cursor, error: TargetMismatch) -> bool:
        """True if a foreign key of another table does not let a row be deleted for a moment."""
        if error.sqlstate not in (FOREIGN_KEY_VIOLATION, RESTRICT_VIOLATION):
            return False
        cursor.execute(
            "select exists (select from pg_constraint where confrelid = %s::regclass and conname = %s "
            "and contype = 'f' and confdeltype = 'r')",
            (self.target.identifier.as_string(cursor), error.constraint),
        )
        return bool(cursor.fetchone()[0])

    def _not_removable(self, cursor: Cursor, refusal: TargetMismatch, effects: str) -> TargetMismatch:
        """Return the error of rows that exchange values and must not be deleted. Its sqlstate is None: no row of the
        batch violates the constraint in the end."""
        cursor.execute(
            "select pg_get_constraintdef(oid) from pg_constraint "
            "where conrelid = %s::regclass and conname = %s and contype in ('u', 'x')",
            (self.target.identifier.as_string(cursor), refusal.constraint),
        )
        row = cursor.fetchone()
        deferred = (
            f"Defer the check to the end of the statement: drop the constraint {refusal.constraint}, and add "
            f"{row[0]} deferrable initially deferred."
            if row is not None
            else f"An index cannot be deferred: let a constraint that is deferrable initially deferred take the place "
            f"of {refusal.constraint}, or drop {effects}."
        )
        return TargetMismatch(
            f"target {self.target.spec}: rows of the batch exchange values of {refusal.constraint}, which Postgres "
            f"checks row by row, so that one of them has to be deleted and inserted again; {effects} would take that "
            f"for a delete. Nothing was written. {deferred}",
            constraint=refusal.constraint,
        )

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "target": self.target.identifier,
            "rows": self.rows,
            "changes": self.changes,
            "on_conflict": self.on_conflict,
            "changing": _CHANGING,
            "table": _TABLE,
            "row": _ROW,
            "place": _PLACE,
            "key": column_list(self.key),
            "of_row": column_list(self.key, of="t"),
            "of_changing": column_list(self.key, of="c"),
            "same_key": same_values(self.key, "l", "t"),
            "same_key_of_changing": same_values(self.key, "l", "c"),
        }
