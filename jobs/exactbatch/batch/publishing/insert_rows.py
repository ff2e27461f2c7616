"""Insert the staged rows of a batch into the tables of its sink, and check that all of them were there."""

from collections.abc import Mapping, Sequence

import psycopg2.errors
from psycopg2 import sql

from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part, Place, StagedRows
from exactbatch.sinks.writer import SinkWriter


def insert_rows(
    cursor: Cursor,
    writer: SinkWriter,
    tables: StagingTables,
    staged: StagedBatch,
    columns: Sequence[Column],
    repeats: frozenset[Place] = frozenset(),
    replaced: Sequence[Part] = (),
) -> int:
    """Count the staged rows of a batch, and insert them; return how many arrived.

    `columns` are the columns of a row without its lineage. `repeats` are records that repeat earlier ones,
    and `replaced` is what a replay replaces (see StagedRows).

    Raises StagedRowsDiffer unless each attempt has staged exactly the rows that it reported, and TargetMismatch
    when the target refuses rows.
    """
    check_staged(cursor, tables.batch_id, tables.rows, staged.rows)
    rows = StagedRows(
        identifier(tables.rows), tables.batch_id, staged.rows, tables.checked, repeats, replaced
    )
    return writer.insert_staged(cursor, rows, columns)


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
            raise StagedRowsDiffer(
                f"staging table {table}, task attempt {attempt}: expected the {rows} rows that the task "
                f"reported, found {staged.get(attempt, 0)}. Postgres was restarted after a crash or failed over, "
                f"which empties unlogged tables, or a COPY was not committed. Nothing was written; the retry reads "
                f"the same ranges again.",
                batch_id=batch_id,
            )
