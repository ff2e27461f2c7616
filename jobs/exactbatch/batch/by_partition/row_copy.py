"""How commit="partition" copies the rows of a range: as Arrow batches through ADBC, or encoded, through psycopg2."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg2
import pyarrow as pa
from adbc_driver_manager import Error as AdbcError
from psycopg2 import sql

from exactbatch.batch.rows.arrow_copy import PostgresAccess, copy_batches, on_target_path
from exactbatch.batch.rows.binary_copy import Copied, copy_encoded, send_encoded
from exactbatch.batch.rows.decode import RangeReader, ReadTask
from exactbatch.batch.rows.fast_path import encoder_for
from exactbatch.batch.rows.rejects import REJECT_SCHEMA
from exactbatch.batch.rows.watchdog import StallTimeout
from exactbatch.batch.staging.staging_tables import definitions
from exactbatch.postgres.connection import CHECK_CONSTRAINTS
from exactbatch.postgres.numbered import NumberedConnection
from exactbatch.postgres.task_cursor import TaskConnection

if TYPE_CHECKING:
    from exactbatch.batch.rows.row_encoder import RowEncoder

# What a statement of either library may raise.
DATABASE_ERRORS: Final = (AdbcError, psycopg2.Error)


Work = Callable[[TaskConnection, StallTimeout], None]


class RowCopy(Protocol):
    """Copies the rows and rejects of one range. The cursors are those of the connection that run() opens."""

    def run(self, postgres: PostgresAccess, work: Work, *, where: str) -> None:
        """Run work on a connection, as PostgresAccess.run() does."""
        ...

    def rows(self, reader: RangeReader) -> Iterator[Any]:
        """Yield what the reader reads, in portions for copy_rows(). Raises the errors of reading."""
        ...

    def copy_rows(self, cursor: Any, schema_name: str, table: str, rows: Iterator[Any]) -> Copied:
        """COPY rows into a table. Raises one of DATABASE_ERRORS, and whatever the iterator raises."""
        ...

    def check_constraints(self, cursor: Any) -> None:
        """Check the deferred constraints of the rows. Raises one of DATABASE_ERRORS."""
        ...

    def copy_rejects(self, cursor: Any, table: str, rejects: list[pa.RecordBatch]) -> None:
        """COPY rejects into a temporary table, which the first call creates. Raises what copy_rows() raises."""
        ...


def row_copy(task: ReadTask, reader: RangeReader, constants: Mapping[str, int]) -> RowCopy:
    """Return how the rows of a range are copied; `constants` are those of the reader."""
    encoder = encoder_for(task, reader.schema, constants)
    return ArrowCopy(reader.schema) if encoder is None else EncodedCopy(encoder)


class ArrowCopy:
    """The RowCopy of Arrow batches, which ADBC encodes."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._mode = "create"

    def run(self, postgres: PostgresAccess, work: Work, *, where: str) -> None:
        """See RowCopy."""
        postgres.run(work, where=where)

    def rows(self, reader: RangeReader) -> Iterator[pa.RecordBatch]:
        """See RowCopy."""
        return reader.batches()

    def copy_rows(self, cursor: Any, schema_name: str, table: str, rows: Iterator[pa.RecordBatch]) -> Copied:
        """See RowCopy. ADBC reports what it sent, not what has arrived."""
        with on_target_path(cursor):
            sent = copy_batches(cursor, table, self._schema, rows, mode="append", db_schema_name=schema_name)
        return Copied(sent, sent)

    def check_constraints(self, cursor: Any) -> None:
        """See RowCopy."""
        with on_target_path(cursor):
            cursor.execute(CHECK_CONSTRAINTS.string)

    def copy_rejects(self, cursor: Any, table: str, rejects: list[pa.RecordBatch]) -> None:
        """See RowCopy."""
        copy_batches(cursor, table, REJECT_SCHEMA, iter(rejects), mode=self._mode, temporary=True)
        self._mode = "append"


class EncodedCopy:
    """The RowCopy of rows that compiled code encodes."""

    def __init__(self, encoder: "RowEncoder") -> None:
        self._encoder = encoder
        self._has_table = False

    def run(self, postgres: PostgresAccess, work: Work, *, where: str) -> None:
        """See RowCopy."""
        postgres.run_encoded(
            lambda connection, timeout: work(NumberedConnection(connection), timeout), where=where
        )

    def rows(self, reader: RangeReader) -> Iterator[Any]:
        """See RowCopy."""
        return reader.encoded(self._encoder)

    def copy_rows(self, cursor: Any, schema_name: str, table: str, rows: Iterator[Any]) -> Copied:
        """See RowCopy."""
        names = self._encoder.schema.names
        return send_encoded(cursor.psycopg2, sql.Identifier(schema_name, table), names, rows)

    def check_constraints(self, cursor: Any) -> None:
        """See RowCopy."""
        cursor.psycopg2.execute(CHECK_CONSTRAINTS)

    def copy_rejects(self, cursor: Any, table: str, rejects: list[pa.RecordBatch]) -> None:
        """See RowCopy. Raises StagedRowsDiffer as well, if Postgres has stored more or fewer."""
        name = sql.Identifier("pg_temp", table)
        if not self._has_table:
            cursor.psycopg2.execute(sql.SQL("create table {} ({})").format(name, definitions(REJECT_SCHEMA)))
            self._has_table = True
        copy_encoded(cursor.psycopg2, name, REJECT_SCHEMA.names, map(self._encoder.encode_rejects, rejects))
