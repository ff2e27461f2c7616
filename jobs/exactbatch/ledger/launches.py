"""List staging tables, and count staged records."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.ledger.statements import OnConnection, load_queries

_QUERIES: Final = load_queries("launches")


class Launches(OnConnection):
    """The staging tables of launches."""

    def staging_tables(self) -> Sequence[str]:
        """Return the names of the staging tables of every launch that this login may drop."""
        return [row.relname for row in _QUERIES.staging_tables(self._connection)]

    def staged_records(
        self,
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
        with self._connection.cursor() as cursor:
            cursor.execute(query, {"batch_id": batch_id, "attempts": list(attempts), "notes": list(notes)})
            row = cursor.fetchone()
            return int(row.records), row.foreign_record
