"""One snapshot of ledger and target, which the auditor reads through Arrow."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from psycopg2 import sql

from exactbatch.postgres.arrow import ArrowConnection
from exactbatch.postgres.connection import Connection, Cursor


class Snapshot:
    """Runs the auditor's queries over one snapshot. Parameters of a query are $1, $2, …

    psycopg2 composes the statements: `connection` tells it how this server quotes.
    """

    def __init__(self, arrow: ArrowConnection, connection: Connection) -> None:
        self._arrow, self._connection = arrow, connection

    def share(self, cursor: Cursor) -> None:
        """See what the cursor's transaction sees, for the rest of this connection's transaction."""
        cursor.execute("select pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        self.execute(sql.SQL("set transaction isolation level repeatable read"))
        self.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))

    def lock(self, tables: Iterable[sql.Composable]) -> None:
        """Keep partitions of tables from being detached for the rest of this connection's transaction."""
        for table in tables:
            self.execute(sql.SQL("lock table {} in access share mode").format(table))

    def execute(self, statement: sql.Composable) -> None:
        """Run a statement that returns no rows."""
        with self._arrow.cursor() as cursor:
            cursor.execute(statement.as_string(self._connection))

    def rows(self, query: sql.Composable, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._arrow.cursor() as cursor:
            cursor.execute(query.as_string(self._connection), parameters)
            return list(cursor.fetchall())

    def table(self, query: sql.Composable, *parameters: object) -> pa.Table:
        """Return the rows of a query as an Arrow table."""
        with self._arrow.cursor() as cursor:
            cursor.execute(query.as_string(self._connection), parameters)
            return cursor.fetch_arrow_table()

    def create_temporary(self, name: str, schema: pa.Schema) -> None:
        """Create an empty temporary table."""
        with self._arrow.cursor() as cursor:
            cursor.adbc_ingest(name, schema.empty_table(), mode="create", temporary=True)

    def append_temporary(self, name: str, rows: pa.RecordBatch) -> None:
        """Copy rows into a temporary table."""
        with self._arrow.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="append", temporary=True)

    def types_of(self, table: sql.Composable) -> dict[str, str]:
        """Return the types of a table's columns by name, in their order."""
        query = sql.SQL(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attnum"
        )
        return dict(self.rows(query, table.as_string(self._connection)))
