"""The tables in which a launch stages the rows of a batch, from their creation until they are dropped.

Staging tables belong to one launch of one batch. They are UNLOGGED, and each row carries the Spark task attempt
that wrote it, because Spark's commit protocol does not cover the side effects of Python workers. Future partitions
are the exception (staged_splits.py).
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg2
import psycopg2.errors
import pyarrow as pa
from psycopg2 import sql

from exactbatch.batch.rows.rejected import REJECT_SCHEMA
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.ledger import ledger_session, list_staging_tables
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, clear_errors, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.staged_rows import CheckedJson

logger = logging.getLogger(__name__)

SCHEMA: Final = "exactbatch_staging"
# Earlier versions had several tables of rows, with numbers, and tables of pieces, which are splits.
_NAME: Final = re.compile(r"batch_\d+_([0-9a-f]+)_(?:rows(?:_\d+)?|rejects|lineage|pieces|splits|partition)")
_REJECTS: Final = "_rejects"
_DROP_LOCK_TIMEOUT: Final = "2s"
# The task_attempt, which no attempt or note has, of a row that the table of rejects holds from the start. If it is
# gone, a crash has emptied the launch's unlogged tables, including the notes, which are not counted.
INTACT: Final = -(2**63)
# These precede a row's own columns: publish counts rows by task_attempt, and Postgres unpacks a tuple from its
# start up to the last column that a query needs.
LINEAGE_SCHEMA: Final = pa.schema(
    [
        ("task_attempt", pa.int64()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("kafka_topic", pa.string()),
    ]
)
_SQL_TYPES: Final = {
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
}


@dataclass(frozen=True, slots=True)
class StagingTables:
    """The names of a launch's tables: rows, rejects and, for some transforms, lineage.

    `checked` are the second columns of columns of JSON.
    """

    batch_id: int
    launch: int
    checked: tuple[CheckedJson, ...] = ()

    @staticmethod
    def parse_launch(table: str) -> int | None:
        """Return the launch that a staging table belongs to; None if the name is no staging table's."""
        match = _NAME.fullmatch(table)
        return int(match[1], 16) if match else None

    @property
    def rows(self) -> str:
        """The table of decoded rows."""
        return f"batch_{self.batch_id}_{self.launch:x}_rows"

    @property
    def rejects(self) -> str:
        """The table of rejected records and of notes of records that will be rejected."""
        return f"batch_{self.batch_id}_{self.launch:x}{_REJECTS}"

    @property
    def lineage(self) -> str:
        """The table of decoded records, for transforms whose rows must be compared with them."""
        return f"batch_{self.batch_id}_{self.launch:x}_lineage"

    @property
    def splits(self) -> str:
        """The table of splits whose rows are in the future partition of a target that is partitioned by batch."""
        return f"batch_{self.batch_id}_{self.launch:x}_splits"

    @property
    def partition(self) -> str:
        """The name of this future partition once it takes no more rows; until then it is the table of rows."""
        return f"batch_{self.batch_id}_{self.launch:x}_partition"


def row_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of the table of rows: the lineage, then the columns."""
    return pa.schema([*LINEAGE_SCHEMA, *((c.name, c.arrow_type) for c in columns)])


def decoded_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of the rows that a transform gets: the columns, then the lineage without an
    attempt."""
    return pa.schema(
        [*((c.name, c.arrow_type) for c in columns), *(LINEAGE_SCHEMA.field(name) for name in LINEAGE_NAMES)]
    )


def create_rejects(cursor: Cursor, tables: StagingTables) -> None:
    """Create a launch's table of rejects, with the row by which publish knows that it was not emptied."""
    _create(cursor, tables.rejects, [_definition(column) for column in REJECT_SCHEMA])
    cursor.execute(
        sql.SQL("insert into {} (task_attempt) values (%s)").format(identifier(tables.rejects)), (INTACT,)
    )


def create_rows(cursor: Cursor, tables: StagingTables, columns: Sequence[Column]) -> None:
    """Create a launch's table of rows. Columns have the types of the Arrow data, never the target's: binary COPY
    into another type corrupts values silently. `tables.checked` are written in the binary form of jsonb."""
    own = [(column.name, column.staged_type) for column in columns]
    checked = [(column.name, column.definition) for column in tables.checked]
    _create(cursor, tables.rows, [*map(_definition, LINEAGE_SCHEMA), *own, *checked])


def create_lineage(cursor: Cursor, tables: StagingTables) -> None:
    """Create a launch's table of decoded records."""
    _create(cursor, tables.lineage, [_definition(column) for column in LINEAGE_SCHEMA])


def definitions(schema: pa.Schema) -> sql.Composable:
    """Return the columns of LINEAGE_SCHEMA or REJECT_SCHEMA, as `create table` takes them."""
    return _definitions([_definition(column) for column in schema])


def _create(cursor: Cursor, table: str, columns: Sequence[tuple[str, str]]) -> None:
    cursor.execute(sql.SQL("create unlogged table {} ({})").format(identifier(table), _definitions(columns)))


def _definitions(columns: Sequence[tuple[str, str]]) -> sql.Composable:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns
    )


def _definition(field: pa.Field) -> tuple[str, str]:
    return field.name, _SQL_TYPES[field.type]


def identifier(table: str) -> sql.Identifier:
    """Return a staging table as an SQL identifier."""
    return sql.Identifier(SCHEMA, table)


@contextmanager
def hold_launch(
    connection: Connection, settings: Settings, pipeline: Pipeline, tables: StagingTables
) -> Iterator[None]:
    """Hold a launch; drop its staging tables at the end, whatever happens. The table of rejects exists from the
    start: a transform may start Spark jobs while it is planned.

    A launch is a transaction that stays open on a separate connection, and locks the table of rejects against being
    dropped: no other launch takes these tables for leftovers. A pooler in any mode keeps a transaction on one server
    connection, and the lock ends with the transaction. The transaction has neither a snapshot nor a transaction
    id, so it does not delay vacuum.
    """
    with ledger_session(settings.postgres, "exactbatch launch", pipeline) as lock_connection:
        try:
            with clear_errors(lock_connection):
                drop_leftovers(lock_connection)
            _begin_launch(connection, lock_connection, tables)
            yield
        finally:
            _drop(lock_connection, *_list_tables(lock_connection, tables))


def _begin_launch(connection: Connection, lock_connection: Connection, tables: StagingTables) -> None:
    """Create the table of rejects, and begin the transaction that locks it; the driver sends nothing in it while
    executors read."""
    while True:
        with transaction(connection) as cursor:
            create_rejects(cursor, tables)
        with clear_errors(lock_connection), lock_connection.cursor() as cursor:
            try:
                cursor.execute(
                    sql.SQL("lock table {} in access share mode").format(identifier(tables.rejects))
                )
            except psycopg2.errors.UndefinedTable:
                lock_connection.rollback()  # another launch took it for a leftover before it was locked
                continue
            cursor.execute("set local idle_in_transaction_session_timeout to 0")
        return


def _list_tables(lock_connection: Connection, tables: StagingTables) -> list[str]:
    """Return the names of a launch's tables that exist, and end the open transaction."""
    try:
        lock_connection.rollback()
        with lock_connection:
            names = list_staging_tables(lock_connection)
    except psycopg2.Error:  # _drop() fails as well, and says what remains
        return [tables.rows, tables.rejects]
    return [name for name in names if StagingTables.parse_launch(name) == tables.launch]


def drop_leftovers(lock_connection: Connection) -> None:
    """Drop the tables of launches whose transaction has ended."""
    by_launch: dict[int, list[str]] = {}
    for table in list_staging_tables(lock_connection):
        if (launch := StagingTables.parse_launch(table)) is not None:
            by_launch.setdefault(launch, []).append(table)
    for names in by_launch.values():
        lock_connection.rollback()
        if not any(_is_held(lock_connection, name) for name in names if name.endswith(_REJECTS)):
            _drop(lock_connection, *names)
    lock_connection.rollback()


def _is_held(lock_connection: Connection, rejects: str) -> bool:
    """True if a launch, or a task of a launch, uses a table of rejects: the first one that a launch creates."""
    with lock_connection.cursor() as cursor:
        try:
            cursor.execute(
                sql.SQL("lock table {} in access exclusive mode nowait").format(identifier(rejects))
            )
        except psycopg2.errors.LockNotAvailable:
            return True
        except psycopg2.errors.UndefinedTable:
            return False  # another launch has dropped it
        return False


def _drop(lock_connection: Connection, *tables: str) -> None:
    """End the open transaction, and drop staging tables in another one. If Postgres prevents that, by a lock or a
    lost connection, the next launch drops them."""
    try:
        lock_connection.rollback()
        with lock_connection, lock_connection.cursor() as cursor:
            cursor.execute("set local lock_timeout to %s", (_DROP_LOCK_TIMEOUT,))
            for table in tables:
                cursor.execute(sql.SQL("drop table if exists {}").format(identifier(table)))
    except psycopg2.Error as error:
        logger.warning(
            "staging tables %s remain until the next launch drops them: %s", ", ".join(tables), error
        )
