"""How far a batch has come that another connection, or another process, is processing."""

from contextlib import AbstractContextManager
from typing import Final

from exactbatch.ledger import Ledger, ledger_session
from exactbatch.postgres.connection import Connection, transaction

# Rows of finished transactions, and of each COPY in progress; with commit="partition", records of committed ranges.
_STAGED: Final = """
with staging as (
    select oid from pg_class
    where relnamespace = to_regnamespace('exactbatch_staging') and relname ~ %(tables)s
)
select coalesce((select sum(pg_stat_get_tuples_inserted(oid)) from staging), 0)::bigint
     + coalesce((select sum(p.tuples_processed) from pg_stat_progress_copy p join staging s on s.oid = p.relid), 0)
     + coalesce((select sum(records) from exactbatch.batch_range where batch_id = %(batch_id)s), 0)::bigint
"""


def progress_session(postgres: str) -> AbstractContextManager[Connection]:
    """Connect to the ledger. Raises as ledger_session() does."""
    return ledger_session(postgres, "exactbatch progress")


def accounted_offsets(connection: Connection, batch_id: int) -> int:
    """Return how many offsets the ranges of a batch have."""
    with transaction(connection):
        return sum(map(len, Ledger(connection).batches.read_ranges(batch_id)))


def staged_records(connection: Connection, batch_id: int) -> int:
    """Return about how many records of a batch are staged or committed.

    Attempts that were repeated count twice, and tombstones and dropped records not at all. The server shows a COPY in
    progress only to the login that runs it, and to members of pg_read_all_stats.
    """
    tables = rf"^batch_{batch_id}_[0-9a-f]+_(rows|rejects|partition)"
    with transaction(connection) as cursor:
        cursor.execute(_STAGED, {"tables": tables, "batch_id": batch_id})
        return int(cursor.fetchone()[0])
