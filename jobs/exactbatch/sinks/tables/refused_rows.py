"""Find the rows of a batch that a table refuses, by its constraints, indexes and triggers.

A statement that writes many rows ends at the first one that is refused. The search finds all of them, after that
statement has been rolled back, in the same transaction, in which what the batch replaces is deleted already.

First, each constraint that concerns one row alone is a condition over all rows (constraints.py). If no row meets one,
rows are inserted in the order of topics, partitions and offsets, as many at a time as are accepted, and taken back at
the end. So the first of several rows that exclude each other is accepted, and what a trigger or an index refuses is
found as well. Of rows that a unique index refuses, only those that share a key with others are inserted.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.errors import RefusedRecord
from exactbatch.errors.sqlstates import UNDEFINED_COLUMN, UNIQUE_VIOLATION, is_row_error
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.connection import CHECK_CONSTRAINTS, Cursor
from exactbatch.sinks.tables.candidates import PLACE, Candidates
from exactbatch.sinks.tables.constraints import row_rules, sharing_a_key
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

_WRITTEN: Final = sql.Identifier("exactbatch_written")  # all rows that replace others
_JUDGED: Final = sql.Identifier("exactbatch_judged")  # those that are inserted
_REACHED: Final = sql.Identifier(
    "exactbatch_reached"
)  # a sequence: the number of the row that is being inserted
# The number of a row's record in the order of the log; 1 for all rows that no record of the batch gives.
_NUMBER: Final = sql.Identifier("exactbatch number")
_ORDER: Final = sql.SQL('{} collate "C" nulls first, {}, {}').format(*map(sql.Identifier, PLACE))
# Postgres's answers if a constraint that may be deferred, or a table with rules, is asked for conflicts.
_NOT_ASKED: Final = ("55000", "0A000")
_REASON_CHARACTERS: Final = 1_000


def find_refused(
    cursor: Cursor, table: TargetTable, candidates: Candidates, *, sqlstate: str | None, limit: int
) -> list[RefusedRecord]:
    """Return the records whose rows a table refuses, the first `limit` by topic, partition and offset. A search without
    them finds those that they hide.

    `sqlstate` is what Postgres answered when all of them were written. There are none if Postgres refuses a row that no
    record of the batch gives, or accepts each row now. Raises psycopg2's errors that are not about rows.
    """
    trial = _Trial(cursor, table, candidates)
    searches: list[Callable[[int], list[RefusedRecord]]] = [
        partial(_by_rules, cursor, table, candidates),
        trial.run,
    ]
    if sqlstate == UNIQUE_VIOLATION and cursor.searches_again:
        searches.insert(1, partial(trial.run, only_sharing=True))
    for search in searches:
        cursor.execute("savepoint refused_rows")
        found = search(limit)
        cursor.execute("rollback to savepoint refused_rows; release savepoint refused_rows")
        if found:
            return found
    return []


def _by_rules(cursor: Cursor, table: TargetTable, candidates: Candidates, limit: int) -> list[RefusedRecord]:
    """Return the first records with a row that meets one of row_rules()."""
    found: dict[tuple[str, int, int], str] = {}
    for rule in row_rules(cursor, table, candidates):
        cursor.execute("savepoint rule")
        try:
            cursor.execute(
                sql.SQL(
                    "select {place}, min({reason}) as reason from ({rows}) j where {condition} and {topic} is not null "
                    "group by {place} order by {order} limit {limit}"
                ).format(
                    place=column_list(PLACE),
                    reason=rule.reason,
                    rows=candidates.rows,
                    condition=rule.condition,
                    topic=sql.Identifier(PLACE[0]),
                    order=_ORDER,
                    limit=sql.Literal(limit),
                )
            )
            for topic, partition, offset, reason in cursor.fetchall():
                found.setdefault((topic, partition, offset), reason)
        except psycopg2.Error as error:
            # The login may not read a table that a foreign key refers to, or an expression raises an error for a value:
            # the trial finds these rows.
            if not is_row_error(error.pgcode) and not (error.pgcode or "").startswith("42"):
                raise
            cursor.execute("rollback to savepoint rule")
        cursor.execute("release savepoint rule")
    return [RefusedRecord(*place, reason) for place, reason in sorted(found.items())[:limit]]


class _Trial:
    """Inserts rows in the order of the log, and leaves out the records that are refused."""

    def __init__(self, cursor: Cursor, table: TargetTable, candidates: Candidates) -> None:
        self._cursor, self._table, self._candidates = cursor, table, candidates
        self._by_conflict = True

    def run(self, limit: int, *, only_sharing: bool = False) -> list[RefusedRecord]:
        """Return the first `limit` records that are refused, as find_refused() does; with `only_sharing`, among rows
        that share a key with others, and none if rows can exclude each other in other ways."""
        try:
            records = self._judge(only_sharing=only_sharing)
        except psycopg2.Error as error:
            is_undefined = only_sharing and error.pgcode == UNDEFINED_COLUMN
            if not is_row_error(error.pgcode) and not is_undefined:
                raise
            # Other rows refer to those that are to be replaced, with their places the rows are too wide for a table, or
            # an index has columns that are not written.
            return []
        if not records:
            return []
        found: dict[int, str] = {}
        # One of the records from `first` to `bound` is refused, if there are any; probably the last of them.
        first, bound, size = 1, 0, records
        is_near = False
        while first <= records and len(found) < limit:
            if first > bound:
                last = min(records, first + size - 1)
            elif is_near:
                last = max(first, bound - 1)
            else:
                last = (first + bound) // 2
            refused = self._insert(first, last, limit - len(found))
            if not isinstance(refused, psycopg2.Error):
                found |= refused
                size = size if first <= bound else 2 * size
                first = last + 1
            elif first < last:
                reached = self._reached()
                is_near = first <= reached < last  # no row of these was reached if the statement cannot begin
                bound = reached if is_near else last
            else:
                # The next one is probably as far away as the one before.
                size = max(1, (first - max(found, default=0)) // 2)
                found[first] = _reason(refused)
                first = last + 1
        return self._read_records(found)

    def _judge(self, *, only_sharing: bool) -> int:
        """Number the rows by their records, and make room for them in the table; return how many records there are."""
        cursor = self._cursor
        rows = sql.SQL(
            "select {columns}, {no_place} from {table} where false union all select {columns}, {place} from ({rows}) r"
        ).format(
            **self._names,
            no_place=sql.SQL("null::text as {}, null::integer as {}, null::bigint as {}").format(
                *map(sql.Identifier, PLACE)
            ),
            rows=self._candidates.rows,
        )
        written: sql.Composable = sql.SQL("({}) written").format(rows)
        if self._candidates.replaces:
            # What the rows are depends on those that they replace.
            written = _WRITTEN
            cursor.execute(sql.SQL("create temporary table {} on commit drop as {}").format(written, rows))
            cursor.execute(
                sql.SQL("delete from {table} t using {written} l where {same}").format(
                    **self._names, written=written
                )
            )
        judged: sql.Composable = sql.SQL("true")
        if only_sharing:
            sharing = sharing_a_key(cursor, self._table, written, self._candidates.identity)
            if sharing is None:
                return 0
            judged = sql.SQL("({}) in ({})").format(self._names["identity"], sharing)
        cursor.execute(
            sql.SQL(
                "create temporary table {judged} on commit drop as "
                "select *, dense_rank() over (order by {order}) as {number} from {written} where {condition}"
            ).format(**self._names, written=written, order=_ORDER, condition=judged)
        )
        cursor.execute(
            sql.SQL(
                "select coalesce(max({number}), 0) as records, count(*) filter (where {of_batch}) as rows, "
                "count(*) filter (where not {of_batch}) as others from {judged}"
            ).format(**self._names)
        )
        records, of_batch, others = cursor.fetchone()
        # If a record has several rows, those that arrive would exclude others although the record is refused.
        self._by_conflict = of_batch == records - (others > 0)
        # Single records and portions are looked up by their numbers.
        cursor.execute(sql.SQL("create index on {judged} ({number})").format(**self._names))
        cursor.execute(sql.SQL("analyze {judged}").format(**self._names))
        cursor.execute(sql.SQL("create temporary sequence {}").format(_REACHED))
        return int(records)

    def _reached(self) -> int:
        """Return the number of the row that was being inserted last; no rollback takes a sequence back."""
        self._cursor.execute(sql.SQL("select last_value from {}").format(_REACHED))
        return int(self._cursor.fetchone()[0])

    def _insert(self, first: int, last: int, limit: int) -> psycopg2.Error | dict[int, str]:
        """Insert the rows of these records, without those that others exclude; return the numbers of the first of
        these, and why. If Postgres refuses another row, insert none, and return the error."""
        if self._by_conflict and first < last:
            left_out = self._try(first, last, limit, by_conflict=True)
            if not isinstance(left_out, psycopg2.Error):
                errors = {each: self._try(each, each, limit, by_conflict=False) for each in left_out}
                return {
                    each: _reason(error)
                    for each, error in errors.items()
                    if isinstance(error, psycopg2.Error)
                }
            if left_out.pgcode not in _NOT_ASKED:
                return left_out
            self._by_conflict = False
        refused = self._try(first, last, limit, by_conflict=False)
        return refused if isinstance(refused, psycopg2.Error) else {}

    def _try(self, first: int, last: int, limit: int, *, by_conflict: bool) -> psycopg2.Error | list[int]:
        """Insert the rows of these records, with `by_conflict` without those that others exclude, and return the
        numbers of the first of these. If Postgres refuses a row, insert none, and return the error."""
        cursor = self._cursor
        portion = sql.SQL("{number} between {first} and {last}").format(
            **self._names, first=sql.Literal(first), last=sql.Literal(last)
        )
        statement = sql.SQL(
            "insert into {table} ({columns}) select {columns} from (select *, pg_catalog.setval({reached}, {number}) "
            "from {judged} where {portion} order by {number}) numbered"
        ).format(**self._names, portion=portion, reached=sql.Literal("pg_temp.exactbatch_reached"))
        if by_conflict:
            statement = sql.SQL(
                "with arrived as ({statement} on conflict do nothing returning {identity}) "
                "select {number} from {judged} l where {portion} and not exists (select from arrived t where {same}) "
                "order by 1 limit {limit}"
            ).format(**self._names, statement=statement, portion=portion, limit=sql.Literal(limit))
        cursor.execute("savepoint portion")
        try:
            cursor.execute(statement)
            left_out = [number for (number,) in cursor.fetchall()] if by_conflict else []
            cursor.execute(CHECK_CONSTRAINTS)
        except psycopg2.Error as error:
            if not is_row_error(error.pgcode) and error.pgcode not in _NOT_ASKED:
                raise
            cursor.execute("rollback to savepoint portion; release savepoint portion")
            return error
        cursor.execute("release savepoint portion")
        return left_out

    def _read_records(self, found: dict[int, str]) -> list[RefusedRecord]:
        """Return records by their numbers; none if one of these is that of rows which no record of the batch gives."""
        self._cursor.execute(
            sql.SQL(
                "select distinct {number}, {place} from {judged} where {number} = any({found}) order by 1"
            ).format(**self._names, found=sql.Literal(list(found)))
        )
        rows = self._cursor.fetchall()
        if any(topic is None for _, topic, _, _ in rows):
            return []
        return [
            RefusedRecord(topic, partition, offset, found[number])
            for number, topic, partition, offset in rows
        ]

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "table": self._table.identifier,
            "judged": _JUDGED,
            "number": _NUMBER,
            "columns": column_list(self._candidates.names),
            "identity": column_list(self._candidates.identity),
            "place": column_list(PLACE),
            "of_batch": sql.SQL("{} is not null").format(sql.Identifier(PLACE[0])),
            "same": same_values(self._candidates.identity, "l", "t"),
        }


def _reason(error: psycopg2.Error) -> str:
    """Return why Postgres refuses a row, without the row itself, which the reject has."""
    whole_row = (error.diag.message_detail or "").startswith("Failing row")
    message = (error.diag.message_primary if whole_row else None) or psycopg2_message(error)
    return f"{message} (SQLSTATE {error.pgcode})"[:_REASON_CHARACTERS]
