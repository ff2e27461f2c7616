"""List the staging tables of all launches, and count staged records."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.ledger.statements import load_queries
from exactbatch.postgres.connection import Connection

_QUERIES: Final = load_queries("staging")


def list_staging_tables(connection: Connection) -> Sequence[str]:
    """Return the names of the staging tables of every launch that this login may drop."""
    return [row.relname for row in _QUERIES.staging_tables(connection)]


def count_staged_records(
    connection: Connection,
    batch_id: int,
    *,
    rows: sql.Composable,
    rejects: sql.Composable,
    attempts: Sequence[int],
    notes: Sequence[int],
) -> tuple[int, str | None]:
    """Return how many records the rows of task attempts in the staging table `rows`, and their notes in
    `rejects`, come from, and one of them that is in no range of the batch."""
    query = sql.SQL(_QUERIES.staged_records.sql).format(rows=rows, rejects=rejects)
    with connection.cursor() as cursor:
        cursor.execute(query, {"batch_id": batch_id, "attempts": list(attempts), "notes": list(notes)})
        row = cursor.fetchone()
        return int(row.records), row.foreign_record
