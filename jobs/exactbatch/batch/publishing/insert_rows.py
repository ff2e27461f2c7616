"""Insert the staged rows of a batch into the tables of its sink, and check that all of them were there."""

from collections.abc import Mapping, Sequence

import psycopg2.errors
from psycopg2 import sql

from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer
from exactbatch.failpoints import failpoint
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks import Sink, StagedRows
from exactbatch.sinks.staged_rows import Place


def insert_rows(
    cursor: Cursor,
    sink: Sink,
    tables: StagingTables,
    staged: StagedBatch,
    columns: Sequence[Column],
    repeats: frozenset[Place] = frozenset(),
) -> int:
    """Insert the staged rows of a batch, or of some of its task attempts; return how many arrived.

    `columns` are those of a row without its lineage. `repeats` are records that repeat earlier ones. Rows in parts are
    inserted task attempt by task attempt, into a target without triggers and rules: what arrives is what was staged.
    Otherwise the staged rows are counted first.

    Raises StagedRowsDiffer unless each attempt has staged exactly the rows that it reported, and TargetMismatch
    when the target refuses rows.
    """
    if not staged.part_of:
        check_staged(cursor, tables.batch_id, tables.rows, staged.rows)
        rows = StagedRows(identifier(tables.rows), tables.batch_id, staged.rows, tables.checked, repeats)
        return sink.insert_staged(cursor, rows, columns)
    inserted = 0
    for attempt, expected in staged.rows.items():
        table = tables.of_part(staged.part_of[attempt]).rows
        # A table that is missing is missed here, where the error does not say that the target refuses rows.
        cursor.execute(sql.SQL("lock table {} in access share mode").format(identifier(table)))
        rows = StagedRows(identifier(table), tables.batch_id, {attempt: expected}, tables.checked)
        if (arrived := sink.insert_staged(cursor, rows, columns)) != expected:
            raise _differ(tables.batch_id, table, attempt, expected, arrived)
        inserted += arrived
        failpoint("publish.after_part")
    return inserted


def check_staged(cursor: Cursor, batch_id: int, table: str, expected: Mapping[int, int]) -> None:
    """Raise StagedRowsDiffer unless a staging table holds exactly the rows of each accepted attempt.

    This detects an unlogged table that a crash has emptied, and a COPY that was never committed.
    """
    query = sql.SQL(
        "select task_attempt, count(*) from {} where task_attempt = any(%s) group by task_attempt"
    )
    try:
        cursor.execute(query.format(identifier(table)), (list(expected),))
    except psycopg2.errors.UndefinedTable:
        raise StagedRowsDiffer(
            f"the staging table {table} is missing: this launch lost its connection, and another launch dropped "
            f"the table as a leftover. Nothing was written; the retry reads the same ranges again.",
            batch_id=batch_id,
        ) from None
    staged = dict(cursor.fetchall())
    for attempt, rows in expected.items():
        if staged.get(attempt, 0) != rows:
            if attempt == INTACT:
                raise StagedRowsDiffer(
                    f"the staging table {table} is empty: Postgres was restarted after a crash or failed over, which "
                    f"empties unlogged tables. Nothing was written; the retry reads the same ranges again.",
                    batch_id=batch_id,
                )
            raise _differ(batch_id, table, attempt, rows, staged.get(attempt, 0))


def _differ(batch_id: int, table: str, attempt: int, expected: int, found: int) -> StagedRowsDiffer:
    return StagedRowsDiffer(
        f"staging table {table}, task attempt {attempt}: expected the {expected} rows that the task "
        f"reported, found {found}. Postgres was restarted after a crash or failed over, which empties unlogged "
        f"tables, or a COPY was not committed. Nothing was written; the retry reads the same ranges again.",
        batch_id=batch_id,
    )
