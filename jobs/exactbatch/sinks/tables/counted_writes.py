"""Statements that write into a sink's tables, with the proof that they did exactly what they were to do.

A trigger, a rule or a policy can swallow, keep or change rows without an error. Where a table has any, Postgres's own
counts of what the transaction has done to it, triggers included, are compared with what the statement reports.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.errors.sqlstates import is_refusal
from exactbatch.postgres.connection import CHECK_CONSTRAINTS, Cursor
from exactbatch.sinks.table_name import quoted
from exactbatch.sinks.tables.candidates import Candidates
from exactbatch.sinks.tables.constraint_errors import constraint_error
from exactbatch.sinks.tables.target import TargetTable

# The parameters are both the table as text in double quotes. The counters are those of
# pg_stat_xact_all_tables (https://www.postgresql.org/docs/current/monitoring-stats.html). They may start with what
# earlier transactions of the session did, so that only differences count. TRUNCATE resets them, and gives the
# table another file.
WRITES_OF: Final = """
with family as (
    select to_regclass(%s)::oid as relid union select relid::oid from pg_partition_tree(to_regclass(%s))
)
select coalesce(sum(pg_stat_get_xact_tuples_inserted(relid)), 0)::bigint as inserted,
       coalesce(sum(pg_stat_get_xact_tuples_updated(relid)), 0)::bigint as updated,
       coalesce(sum(pg_stat_get_xact_tuples_deleted(relid)), 0)::bigint as deleted,
       coalesce(string_agg(format('%%s %%s', relid, pg_relation_filenode(relid)), ','), '') as files
from family
"""


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """Numbers of inserted, updated and deleted rows, and the files of the table and its partitions."""

    inserted: int
    updated: int
    deleted: int
    files: str

    def __sub__(self, before: "WriteCounts") -> "WriteCounts":
        """Return what was done since `before`; `files` holds the tables whose file is another one now."""
        old_files, new_files = before._by_table(), self._by_table()
        replaced = sorted(
            table for table in old_files.keys() & new_files.keys() if old_files[table] != new_files[table]
        )
        return WriteCounts(
            self.inserted - before.inserted,
            self.updated - before.updated,
            self.deleted - before.deleted,
            ",".join(replaced),
        )

    def __str__(self) -> str:
        truncated = " after a TRUNCATE" if self.files else ""
        return f"{self.inserted} inserted, {self.updated} updated and {self.deleted} deleted{truncated}"

    def is_insert_of(self, rows: int) -> bool:
        """True if one statement that inserted or updated this many rows explains the counts."""
        return (self.inserted + self.updated, self.deleted, self.files) == (rows, 0, "")

    def is_delete_of(self, rows: int) -> bool:
        """True if one statement that deleted this many rows explains the counts."""
        return (self.inserted, self.updated, self.deleted, self.files) == (0, 0, rows, "")

    def _by_table(self) -> Mapping[str, str]:
        """Return the file by the table's oid; a partitioned table has none and is left out."""
        pairs = (pair.split(" ") for pair in self.files.split(",") if pair)
        return {table: file for table, file in pairs if file}


def write_rows(
    cursor: Cursor,
    table: TargetTable,
    statement: sql.Composable,
    *,
    candidates: Candidates | None = None,
    retried: Collection[str] = (),
    removal: sql.Composable | None = None,
) -> int:
    """Run a statement that inserts or updates rows of a table; return how many.

    A statement may return one row instead: first the number to return, last the number of rows written. `removal` is a
    statement that runs within it, as `removed`, and deletes rows that it inserts again.

    Raises TargetMismatch if the table refuses a row, or if triggers change other rows. `candidates` are the rows to be
    written, among which the records of refused rows are looked for; without them the error names none. Nor does it for
    the sqlstates of `retried`, after which the caller tries another statement.
    """
    before = _counts_if_watched(cursor, table)
    cursor.execute("savepoint write")
    try:
        cursor.execute(_noting(cursor, table, statement, removed=False, removal=removal))
        written, rows = _reported(cursor)
        # A deferred constraint would fail at the commit, when the rows that break it are no longer known.
        cursor.execute(CHECK_CONSTRAINTS)
    except psycopg2.Error as error:
        if not is_refusal(error.pgcode):
            raise
        cursor.execute("rollback to savepoint write")
        rows_of_error = None if error.pgcode in retried else candidates
        raise constraint_error(cursor, table, error, rows_of_error) from error
    cursor.execute("release savepoint write")
    if before is not None and not (done := count_writes(cursor, table) - before).is_insert_of(rows):
        raise _other_rows_changed(cursor, table, f"a statement wrote {rows} rows", done)
    return written


def delete_rows(
    cursor: Cursor,
    table: TargetTable,
    condition: sql.Composable,
    *,
    using: sql.Composable | None = None,
    statement: sql.Composable | None = None,
    checks: bool = True,
) -> int:
    """Delete the rows t of a table that meet a condition, which may name relations of `using`; return how many.

    `statement` does so, and more, in place of a plain delete; it returns the number that it reports, as that of
    write_rows() does. `checks` looks whether rows remain, which costs as much as the statement: not if nothing could
    keep them.

    Raises TargetMismatch if the table refuses, if rows remain, or if triggers change other rows.
    """
    before = _counts_if_watched(cursor, table)
    names = {"table": table.identifier, "condition": condition, "using": using or sql.SQL("")}
    if statement is None:
        statement = sql.SQL(
            "delete from {table} t using {using} where {condition}"
            if using is not None
            else "delete from {table} t where {condition}"
        ).format(**names)
    cursor.execute("savepoint write")
    try:
        cursor.execute(_noting(cursor, table, statement, removed=True))
        deleted, rows = _reported(cursor)
    except psycopg2.errors.ForeignKeyViolation as error:
        cursor.execute("rollback to savepoint write")
        raise TargetMismatch(
            f"target {table.spec}: other rows reference rows that must be deleted: {error.diag.message_detail} "
            f"Nothing was written. If a replay writes these rows again, defer the foreign key: alter "
            f"table … alter constraint {quoted(error.diag.constraint_name or '…')} deferrable "
            f"initially deferred; otherwise delete the rows that reference them first.",
            constraint=error.diag.constraint_name,
            sqlstate=error.pgcode,
        ) from error
    except psycopg2.Error as error:
        if not is_refusal(error.pgcode):
            raise
        cursor.execute("rollback to savepoint write")
        raise constraint_error(cursor, table, error, None) from error
    cursor.execute("release savepoint write")
    if checks:
        query = sql.SQL(
            "select count(*) from {table} t, {using} where {condition}"
            if using is not None
            else "select count(*) from {table} t where {condition}"
        )
        _check_deleted(cursor, table, query.format(**names))
    if before is not None and not (done := count_writes(cursor, table) - before).is_delete_of(rows):
        raise _other_rows_changed(cursor, table, f"a statement deleted {rows} rows", done)
    return deleted


@contextmanager
def forbid_changes(cursor: Cursor, table: TargetTable, *, while_writing: TargetTable) -> Iterator[None]:
    """Raise TargetMismatch if statements of this block, which write into another table, change rows of this one.

    Triggers of the other table can do so, at once or when their constraint is checked.
    """
    before = count_writes(cursor, table) if _counts_if_watched(cursor, while_writing) is not None else None
    yield
    if before is not None and not (done := count_writes(cursor, table) - before).is_insert_of(0):
        row_changers = while_writing.row_changers(cursor)
        raise TargetMismatch(
            f"target {table.spec}: while the batch wrote into {while_writing.spec}, Postgres counts {done} here, "
            f"because of {row_changers} of {while_writing.spec}. Nothing was written. Drop {row_changers}, or let it "
            f"write into other tables only."
        )


def _noting(
    cursor: Cursor,
    table: TargetTable,
    statement: sql.Composable,
    *,
    removed: bool,
    removal: sql.Composable | None = None,
) -> sql.Composable:
    """Return a statement that also notes the rows that it writes, if they are to be noted."""
    rows = cursor.written_rows
    queries = [] if removal is None else [sql.SQL("removed as ({})").format(removal)]
    if rows is not None and rows.table == table.name:
        return rows.noting(statement, removed=removed, queries=queries)
    return sql.SQL("with {} {}").format(*queries, statement) if queries else statement


def _check_deleted(cursor: Cursor, table: TargetTable, query: sql.Composable) -> None:
    cursor.execute(query)
    if remaining := int(cursor.fetchone()[0]):
        cause = table.triggers(cursor) or "a trigger, a rule or a policy of the table"
        raise TargetMismatch(
            f"target {table.spec}: {remaining} rows that were deleted are still there, because of {cause}. "
            f"They would be in the table twice, or permanently. Nothing was written. Let this login delete them."
        )


def count_writes(cursor: Cursor, table: TargetTable) -> WriteCounts:
    """Return what this transaction has done to a table, as far as Postgres counts it: see track_counts."""
    cursor.execute(WRITES_OF, (table.identifier.as_string(cursor),) * 2)
    return WriteCounts(*cursor.fetchone())


def _counts_if_watched(cursor: Cursor, table: TargetTable) -> WriteCounts | None:
    """Return what this transaction has done to the table; None if only its own statements can change a row."""
    if not (row_changers := table.row_changers(cursor)):
        return None
    cursor.execute("select current_setting('track_counts')")
    if cursor.fetchone()[0] != "on":
        raise TargetMismatch(
            f"target {table.spec}: {row_changers} may change other rows than the batch writes, and Postgres "
            f"does not count them, because track_counts is off. Nothing was written. Switch "
            f"track_counts on (the default), or drop {row_changers}."
        )
    return count_writes(cursor, table)


def _other_rows_changed(
    cursor: Cursor, table: TargetTable, statement: str, done: WriteCounts
) -> TargetMismatch:
    row_changers = table.row_changers(cursor)
    return TargetMismatch(
        f"target {table.spec}: {statement}, but Postgres counts {done}: {row_changers} "
        f"changes other rows of the target. Nothing was written. Drop {row_changers}, or let it write into other "
        f"tables only. A BEFORE trigger may fill columns that the pipeline does not write."
    )


def _reported(cursor: Cursor) -> tuple[int, int]:
    """Return the number that a statement reports first, and how many rows it wrote; the row count twice if the
    statement returns no row."""
    row = cursor.fetchone() if cursor.description else (cursor.rowcount,)
    return int(row[0]), int(row[-1])
