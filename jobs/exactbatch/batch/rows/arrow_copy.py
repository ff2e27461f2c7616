"""COPY of Arrow batches into Postgres through ADBC, on an executor or the driver."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from exactbatch.batch.rows.rejects import PendingRejects
from exactbatch.batch.rows.watchdog import StallTimeout, run_with_stall_timeout
from exactbatch.postgres.connection import Connection, connect
from exactbatch.postgres.session_settings import OWN_PATH

if TYPE_CHECKING:  # not imported by the driver: ADBC imports pandas
    from exactbatch.postgres.arrow import ArrowConnection, ArrowCursor

_APPLICATION: Final = "exactbatch task"  # as pg_stat_activity shows a task
Rows = TypeVar("Rows")  # a batch of them


@dataclass(frozen=True, slots=True)
class PostgresAccess:
    """How a task reaches Postgres.

    dsn: the connection string of the user
    publish_timeout: seconds to wait for a connection or a lock
    statement_timeout: seconds to wait for Postgres without a response
    """

    dsn: str = field(repr=False)
    publish_timeout: float
    statement_timeout: float

    def run(self, work: "Callable[[ArrowConnection, StallTimeout], None]", *, where: str) -> None:
        """Open a connection and run work on it; `where` opens the message of an error.

        Raises the error that the server's SQLSTATE stands for, PostgresUnavailable when Postgres does not respond
        within the timeout, and whatever the work raises.
        """

        from exactbatch.postgres.arrow import connect_arrow

        def connect_and_work(timeout: StallTimeout) -> None:
            with connect_arrow(
                self.dsn, application=_APPLICATION, timeout=self.publish_timeout
            ) as connection:
                work(connection, timeout)

        run_with_stall_timeout(self.statement_timeout, connect_and_work, where=where)

    def run_encoded(self, work: Callable[[Connection, StallTimeout], None], *, where: str) -> None:
        """Do the same on a connection of psycopg2, for rows that are encoded already."""

        def connect_and_work(timeout: StallTimeout) -> None:
            with closing(
                connect(
                    self.dsn, application=_APPLICATION, timeout=self.publish_timeout, statement_timeout=None
                )
            ) as connection:
                work(connection, timeout)

        run_with_stall_timeout(self.statement_timeout, connect_and_work, where=where)


@contextmanager
def on_target_path(cursor: "ArrowCursor") -> Iterator[None]:
    """Write into a target in the block: its triggers, expressions and types find what is on the login's path."""
    cursor.execute(cursor.connection.target_path)
    yield
    cursor.execute(OWN_PATH)  # after an error, the transaction ends


def copy_batches(
    cursor: "ArrowCursor", table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **options: Any
) -> int:
    """COPY batches into a table; return the number of rows sent. `options` are those of adbc_ingest().

    Raises whatever the iterator raises: ADBC would wrap it, and cut its text.
    """
    raised: list[Exception] = []

    def checked() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            raised.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, checked())
    try:
        return int(cursor.adbc_ingest(table, reader, **options))
    except Exception as error:
        if raised:
            raise raised[0] from error
        raise


def copy_in_turns(
    rows: Generator[Rows],
    pending: PendingRejects,
    copy_rows: Callable[[Iterator[Rows]], None],
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
