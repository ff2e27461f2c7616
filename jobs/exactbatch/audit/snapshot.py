"""One snapshot of ledger and target, which all workers of an audit read through Arrow."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from psycopg2 import sql

from exactbatch.ledger import ledger_session
from exactbatch.postgres.arrow import ArrowConnection, connect_arrow
from exactbatch.postgres.connection import Connection, Cursor
from exactbatch.postgres.session_settings import OWN_PATH


class Snapshot:
    """Runs the auditor's queries over one snapshot. Parameters of rows() are $1, $2, …

    psycopg2 composes the statements: `connection` says how this server quotes, and is for short transactions.
    """

    def __init__(self, arrow: ArrowConnection, connection: Connection) -> None:
        self._arrow, self.connection = arrow, connection

    def share(self, cursor: Cursor) -> None:
        """See what the cursor's transaction sees, for the rest of this connection's transaction."""
        cursor.execute("select pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        self.join(snapshot)

    def export(self) -> str:
        """Return the name under which other connections can join this snapshot while this one is open."""
        return str(self.rows(sql.SQL("select pg_export_snapshot()"))[0][0])

    def join(self, name: str) -> None:
        """See what the snapshot of this name sees, for the rest of this connection's transaction."""
        self.execute(sql.SQL("set transaction isolation level repeatable read"))
        self.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(name)))
        # JIT compilation takes longer than it saves.
        self.execute(sql.SQL("set local jit to off"))
        self._search(self._arrow.target_path)

    def lock(self, tables: Iterable[sql.Composable]) -> None:
        """Keep partitions of tables from being detached for the rest of this connection's transaction."""
        for table in tables:
            self.execute(sql.SQL("lock table {} in access share mode").format(table))

    def _search(self, path: str) -> None:
        """Run a statement that sets the search path: what is compared has the operators of the login's."""
        with self._arrow.cursor() as cursor:
            cursor.execute(path)

    def execute(self, statement: sql.Composable) -> None:
        """Run a statement that returns no rows."""
        with self._arrow.cursor() as cursor:
            cursor.execute(statement.as_string(self.connection))

    def rows(self, query: sql.Composable, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._arrow.cursor() as cursor:
            cursor.execute(query.as_string(self.connection), parameters)
            return list(cursor.fetchall())

    def table(self, query: sql.Composable) -> pa.Table:
        """Return the rows of a query without parameters as an Arrow table. ADBC reads them by binary COPY."""
        with self._arrow.cursor() as cursor:
            cursor.execute(query.as_string(self.connection))
            return cursor.fetch_arrow_table()

    def batches(self, query: sql.Composable) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query without parameters, some megabytes at a time."""
        with self._arrow.cursor() as cursor:
            cursor.execute(query.as_string(self.connection))
            # fetch_record_batch() returns the reader below this one, whose errors have no SQLSTATE.
            reader = cursor._results.reader  # type: ignore[union-attr]  # there are results after execute()
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                yield batch

    def create_temporary(self, name: str, schema: pa.Schema) -> None:
        """Create an empty temporary table."""
        with self._arrow.cursor() as cursor:
            cursor.adbc_ingest(name, schema.empty_table(), mode="create", temporary=True)

    def append_temporary(self, name: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Copy rows into a temporary table."""
        with self._arrow.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="append", temporary=True)

    def list_types(self, table: sql.Composable) -> dict[str, str]:
        """Return the types of a table's columns by name, in their order."""
        query = sql.SQL(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attnum"
        )
        self._search(OWN_PATH)
        types = dict(self.rows(query, table.as_string(self.connection)))
        self._search(self._arrow.target_path)
        return types


@contextmanager
def join_snapshot(dsn: str, name: str) -> Iterator[Snapshot]:
    """Open two connections of a worker, and join the snapshot that export() has named."""
    with (
        ledger_session(dsn, "exactbatch audit") as connection,
        connect_arrow(dsn, application="exactbatch audit", read_only=True) as arrow,
    ):
        snapshot = Snapshot(arrow, connection)
        snapshot.join(name)
        yield snapshot
