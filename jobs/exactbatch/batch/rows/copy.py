"""COPY of rows into Postgres, on an executor or the driver: every row that a batch writes goes through here."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pgpq
import pyarrow as pa
from psycopg2 import sql

from exactbatch.batch.rows.rejected import PendingRejects
from exactbatch.errors import StagedRowsDiffer
from exactbatch.errors.translation import translate_errors
from exactbatch.kafka.records import Int64s
from exactbatch.postgres.connection import Connection, Cursor, clear_errors, connect

_APPLICATION: Final = "exactbatch task"  # as pg_stat_activity shows a task
_MESSAGE_BYTES: Final = (
    16 * 1024 * 1024
)  # libpq buffers a whole message, and a server takes no more than 1 GB
# Before and after the rows of a binary COPY; the signature comes with no flags and no header extension.
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_TIMESTAMPTZ: Final = (1184).to_bytes(4)  # its OID, in src/include/catalog/pg_type.dat
_NO_OFFSETS: Final = np.array([], np.int64)
Rows = TypeVar("Rows")  # a batch of them


class EncodedRows(NamedTuple):
    """Rows of a COPY, how many they are, and the offsets of their records; none for rows that are not of a range."""

    data: bytes
    rows: int
    offsets: Int64s = _NO_OFFSETS


class Copied(NamedTuple):
    """How many rows a COPY has sent, and how many of them the server has stored."""

    sent: int
    stored: int


@dataclass(frozen=True, slots=True)
class PostgresAccess:
    """How a task reaches Postgres.

    dsn: the connection string of the user
    lock_timeout: seconds to wait for a connection or a lock
    statement_timeout: seconds to wait for Postgres without a response
    """

    dsn: str = field(repr=False)
    lock_timeout: float
    statement_timeout: float

    @contextmanager
    def connection(self, *, where: str) -> Iterator[Connection]:
        """Yield a connection, which is closed at the end of the block; `where` opens the message of an error.

        Raises the error that the server's SQLSTATE stands for, PostgresUnavailable when Postgres does not respond
        within the timeout, and whatever the block raises.
        """
        with (
            translate_errors(where),
            closing(
                connect(
                    self.dsn,
                    application=_APPLICATION,
                    timeout=self.lock_timeout,
                    statement_timeout=self.statement_timeout,
                    for_copies=True,
                )
            ) as connection,
            clear_errors(connection, where),
        ):
            yield connection


class ArrowEncoder:
    """Encodes batches with the columns of `schema`, whatever the order of theirs."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._zoned = [at for at, field in enumerate(schema) if _has_zone(field.type)]
        types = [pa.binary() if at in self._zoned else field.type for at, field in enumerate(schema)]
        self._encoded = pa.schema(list(zip(schema.names, types, strict=True)))

    def encode(self, batch: pa.RecordBatch, offsets: Int64s = _NO_OFFSETS) -> EncodedRows:
        """Return the rows of a batch. Raises ValueError if its columns have other types than the schema."""
        batch = batch.select(self.schema.names)
        for at in self._zoned:
            batch = batch.set_column(at, self._encoded.field(at), _with_zone(batch.column(at)))
        return EncodedRows(_encode(batch, self._encoded), len(batch), offsets)


def _encode(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    # It keeps bytes of small batches to itself until its end: so each batch has an encoder, 0.1 ms of 30 columns.
    encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
    encoder.write_header()
    data: bytes = encoder.write_batch(batch)
    rest = encoder.finish()
    return data + rest[: -len(_TRAILER)] if len(rest) > len(_TRAILER) else data


def _has_zone(type_: pa.DataType) -> bool:
    return (
        pa.types.is_list(type_)
        and pa.types.is_timestamp(type_.value_type)
        and type_.value_type.tz is not None
    )


def _with_zone(arrays: pa.ListArray) -> pa.BinaryArray:
    """Return the fields that a COPY has for arrays of timestamptz: pgpq gives the elements the type timestamp.

    array_send() in Postgres's src/backend/utils/adt/arrayfuncs.c writes the number of dimensions, the flags and the OID
    of the type of the elements, 4 bytes each, before everything else.
    """
    data = _encode(pa.record_batch([arrays], ["a"]), pa.schema([("a", arrays.type)]))
    fields: list[bytes | None] = []
    at = 0
    while at < len(data):
        at += 2  # the number of fields of the row
        length = int.from_bytes(data[at : at + 4], signed=True)
        at += 4
        fields.append(None if length < 0 else data[at : at + 8] + _TIMESTAMPTZ + data[at + 12 : at + length])
        at += max(length, 0)
    return pa.array(fields, pa.binary())


def copy_batches(
    cursor: Cursor, table: sql.Composable, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> int:
    """COPY batches with the columns of `schema` into a table; return how many rows the server has stored.

    Raises what copy_encoded() raises.
    """
    return copy_encoded(cursor, table, schema.names, map(ArrowEncoder(schema).encode, batches))


def copy_encoded(
    cursor: Cursor, table: sql.Composable, names: Sequence[str], encoded: Iterator[EncodedRows]
) -> int:
    """COPY rows with the columns `names` into a table; return how many the server has stored.

    Raises StagedRowsDiffer if they are more or fewer than those encoded, and whatever the iterator raises.
    """
    sent, stored = send_encoded(cursor, table, names, encoded)
    if stored != sent:
        raise StagedRowsDiffer(
            f"table {table.as_string(cursor)}: {sent} rows were sent, and Postgres stored {stored}. Nothing was "
            f"written; the retry reads the same range again."
        )
    return stored


def send_encoded(
    cursor: Cursor, table: sql.Composable, names: Sequence[str], encoded: Iterator[EncodedRows]
) -> Copied:
    """COPY rows as copy_encoded() does, and leave it to the caller to compare the counts.

    Raises the errors of psycopg2, and whatever the iterator raises.
    """
    stream = _CopyStream(encoded, cursor.connection)
    statement = sql.SQL("copy {} ({}) from stdin (format binary)").format(
        table, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    try:
        cursor.copy_expert(statement, stream)
    except Exception as error:
        if stream.raised is not None:
            raise stream.raised from error
        raise
    return Copied(stream.rows, int(cursor.rowcount))


class _CopyStream:
    """Encoded rows as the file that psycopg2 reads.

    rows: how many it has given
    raised: what producing them has raised; psycopg2 reports only the server's answer to that
    """

    def __init__(self, encoded: Iterator[EncodedRows], connection: Connection) -> None:
        self.rows = 0
        self._connection = connection
        self.raised: Exception | None = None
        self._messages = self._in_messages(encoded)

    def read(self, size: int = -1) -> bytes:  # noqa: ARG002 - any number of bytes is right
        """Return the next bytes; none at the end."""
        try:
            with self._connection.paused():
                return next(self._messages, b"")
        except Exception as error:
            self.raised = error
            raise

    def _in_messages(self, encoded: Iterator[EncodedRows]) -> Iterator[bytes]:
        yield _SIGNATURE
        for each in encoded:
            self.rows += each.rows
            data = each.data
            # An empty message would end the COPY: no rows are no message.
            for start in range(0, len(data), _MESSAGE_BYTES):
                yield data if len(data) <= _MESSAGE_BYTES else data[start : start + _MESSAGE_BYTES]
        yield _TRAILER


def copy_in_turns(
    rows: Generator[Rows],
    pending: PendingRejects,
    copy_rows: Callable[[Iterator[Rows]], object],
    copy_rejects: Callable[[list[pa.RecordBatch]], None],
) -> None:
    """Copy rows and, whenever the pending rejects that come with them are full, the rejects, on one connection.

    Closes `rows`, and with them the consumer that reads them, also after an error.
    """
    ended = False

    def until_full() -> Iterator[Rows]:
        nonlocal ended
        for batch in rows:
            yield batch
            if pending.is_full:
                return
        ended = True

    with closing(rows):
        while not ended:
            copy_rows(until_full())
            if batches := pending.take():
                copy_rejects(batches)
