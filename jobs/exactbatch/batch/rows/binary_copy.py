"""COPY of encoded rows into Postgres through psycopg2."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from psycopg2 import sql

from exactbatch.compiled.row_frame import SIGNATURE, TRAILER
from exactbatch.errors import StagedRowsDiffer
from exactbatch.postgres.connection import Cursor

_MESSAGE_BYTES: Final = (
    16 * 1024 * 1024
)  # libpq buffers a whole message, and a server takes no more than 1 GB


class EncodedRows(NamedTuple):
    """Rows of a COPY, and how many they are."""

    data: bytes
    rows: int


class Copied(NamedTuple):
    """How many rows a COPY has sent, and how many of them the server has stored, if that is reported."""

    sent: int
    stored: int


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
    stream = _CopyStream(encoded)
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

    def __init__(self, encoded: Iterator[EncodedRows]) -> None:
        self.rows = 0
        self.raised: Exception | None = None
        self._messages = self._in_messages(encoded)

    def read(self, size: int = -1) -> bytes:  # noqa: ARG002 - any number of bytes is right
        """Return the next bytes; none at the end."""
        try:
            return next(self._messages, b"")
        except Exception as error:
            self.raised = error
            raise

    def _in_messages(self, encoded: Iterator[EncodedRows]) -> Iterator[bytes]:
        yield SIGNATURE
        for data, rows in encoded:
            self.rows += rows
            # An empty message would end the COPY: no rows are no message.
            for start in range(0, len(data), _MESSAGE_BYTES):
                yield data if len(data) <= _MESSAGE_BYTES else data[start : start + _MESSAGE_BYTES]
        yield TRAILER
