"""Insert the rows of Spark tasks that have finished while others still stage, in the transaction of publish().

Nothing is visible to others before that transaction commits, and it locks the pipeline and checks all that publish()
checks after the last row has been inserted. Until then it holds no lock on the ledger. On the target it holds the
lock of any INSERT, which excludes changes to the definition. So as not to hold up a session that wants to make one,
and others behind it, the driver takes its inserts back when somebody waits for it, and inserts all rows at the end.

The transaction stays open for as long as tasks stage. The driver sends a statement every second or so: a driver that
hangs sends none, and Postgres ends its transaction after the pipeline's publish_timeout.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import psycopg2
import psycopg2.errors

from exactbatch.batch.publishing.fences import check_publishable, lock_target
from exactbatch.batch.publishing.insert_rows import insert_rows
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.batch.staging.uncastable import may_reject, rules_of
from exactbatch.columns import Column
from exactbatch.errors import PostgresUnavailable, StagedRowsDiffer, TargetMismatch
from exactbatch.errors.sqlstates import is_of_a_row
from exactbatch.ledger import Batch, Ledger
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.catalog import Fact
from exactbatch.postgres.connection import Connection, Cursor, clear_errors, connect

logger = logging.getLogger(__name__)

_LONGEST_INTERVAL: Final = 1.0  # seconds between two statements of a transaction that waits for tasks
# A transaction that is idle ends after the publish_timeout: this many statements are sent meanwhile.
_STATEMENTS: Final = 4
_IS_WAITED_FOR: Final = (
    "select exists (select from pg_locks w "
    "where not w.granted and pg_backend_pid() = any (pg_blocking_pids(w.pid)))"
)


class EarlyInserts:
    """The inserts of one advance before all of its rows are staged.

    They use a separate connection: what else the driver does meanwhile has transactions of its own.
    """

    def __init__(
        self,
        dsn: str,
        pipeline: Pipeline,
        batch: Batch,
        *,
        tables: StagingTables,
        columns: Sequence[Column],
        seen: Sequence[Fact],
        max_rejects: int,
    ) -> None:
        """Insert rows of a planned advance that are staged in parts. Nothing is sent before the first rows come.

        `columns` and `seen` are those of publish(). `max_rejects` is the most rejects that the batch may have.
        """
        self._dsn, self._pipeline, self._batch, self._tables = dsn, pipeline, batch, tables
        self._columns, self._seen, self._max_rejects = columns, seen, max_rejects
        self._interval = min(_LONGEST_INTERVAL, pipeline.publish_timeout / _STATEMENTS)
        self._last_statement = 0.0
        self._rejected = 0
        self._ended = False
        self._rows: dict[int, int] = {}
        self._transaction_id: str | None = None
        self.connection: Connection | None = None

    def add(self, staged: StagedBatch) -> None:
        """Insert the rows of task attempts that Spark has accepted; called at intervals, with none if there are none.

        Leaves to the end of the batch what may hold a value that the target cannot, everything if the target refuses a
        row, and everything after more rejects than the batch may have.

        Raises what insert_rows(), check_publishable() and lock_target() raise.
        """
        self._rejected += staged.rejected
        if staged.attempts and not self._ended and (connection := self._connection()) is not None:
            with clear_errors(connection), connection.cursor() as cursor:
                cursor.most_refused = 0  # the last insert of the batch looks for all of them
                self._insert(cursor, staged)
        if self._transaction_id is not None and time.monotonic() - self._last_statement >= self._interval:
            self._give_way_if_waited_for()

    def rest_of(self, staged: StagedBatch) -> StagedBatch:
        """Return what is not inserted yet of a batch that is staged.

        Raises StagedRowsDiffer unless the inserted rows are those of attempts that Spark has accepted in the end.
        """
        if not self._rows:
            return staged
        for attempt, rows in self._rows.items():
            if staged.rows.get(attempt) != rows:
                raise StagedRowsDiffer(
                    f"batch {self._batch.batch_id}: Spark first accepted task attempt {attempt} with {rows} "
                    f"rows, and later reported a different attempt or a different number of rows. Nothing was "
                    f"written; try again.",
                    batch_id=self._batch.batch_id,
                )
        return staged.of_attempts([attempt for attempt in staged.attempts if attempt not in self._rows])

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the transaction from being ended as idle in the block, which does not use it.

        The block must end by timeouts of its own.
        """
        connection = self.connection
        if connection is None or self._transaction_id is None:
            yield
            return
        ended = threading.Event()

        def send_statements() -> None:
            # The next statement of publish() raises the error of a connection that is lost.
            with suppress(psycopg2.Error), connection.cursor() as cursor:
                while not ended.wait(self._interval):
                    cursor.execute("select")

        thread = threading.Thread(target=send_statements, name="open transaction", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def publishing(self, cursor: Cursor) -> int:
        """Return how many rows are inserted already in the cursor's transaction.

        Raises StagedRowsDiffer if they were inserted in another one, which has then been rolled back.
        """
        if not self._rows:
            return 0
        cursor.execute("select pg_current_xact_id_if_assigned()::text")
        if cursor.fetchone()[0] != self._transaction_id:
            raise StagedRowsDiffer(
                f"batch {self._batch.batch_id}: the transaction in which {sum(self._rows.values())} rows were inserted "
                f"while others were staged has ended. Nothing was written; try again.",
                batch_id=self._batch.batch_id,
            )
        return sum(self._rows.values())

    def begin_again(self) -> None:
        """Insert all rows at the end: the transaction in which some were inserted has been rolled back."""
        self._rows.clear()
        self._transaction_id, self._ended = None, True

    def close(self) -> None:
        """Roll back, unless the batch is published, and close the connection."""
        if self.connection is not None:
            with suppress(psycopg2.Error):
                self.connection.rollback()
            self.connection.close()

    def _connection(self) -> Connection | None:
        """Connect, unless that is done; None if the server has no session to spare: the batch can do without."""
        if self.connection is None:
            try:
                self.connection = connect(
                    self._dsn,
                    application="exactbatch publish",
                    timeout=self._pipeline.publish_timeout,
                    statement_timeout=self._pipeline.statement_timeout,
                )
            except PostgresUnavailable as error:
                logger.warning("no rows are inserted before all are staged: %s", error)
                self._ended = True
        return self.connection

    def _insert(self, cursor: Cursor, staged: StagedBatch) -> None:
        for part, of_part in staged.by_part():
            if self._rejected > self._max_rejects:
                self._ended = True  # the batch will fail: more rows would only be rolled back
            if self._ended or (self._transaction_id is None and not self._begin(cursor)):
                return
            rules = rules_of(cursor, self._pipeline, self._columns, self._batch.batch_id)
            if not may_reject(cursor, rules, self._tables.of_part(part), of_part):
                try:
                    insert_rows(cursor, self._pipeline.sink, self._tables, of_part, self._columns)
                except TargetMismatch as error:
                    if not is_of_a_row(error.sqlstate):
                        raise
                    self._end("the target refuses a row")
                    return
                self._rows.update(of_part.rows)
            self._last_statement = time.monotonic()

    def _begin(self, cursor: Cursor) -> bool:
        """Begin the transaction; False if the batch is committed, or if the target is locked by others."""
        ledger = Ledger(cursor.connection)
        batch = ledger.batch(self._batch.batch_id, self._batch.plan_id)
        check_publishable(ledger, self._pipeline, batch)
        if batch.status == "committed":
            self._end("another launch has committed the batch")
            return False
        ledger.bind(self._pipeline)
        try:
            lock_target(cursor, self._pipeline.sink, self._seen, wait=False)
        except psycopg2.errors.LockNotAvailable:
            self._end("another session locks the target")
            return False
        cursor.execute("select pg_current_xact_id()::text")
        self._transaction_id = cursor.fetchone()[0]
        return True

    def _give_way_if_waited_for(self) -> None:
        assert self.connection is not None
        with clear_errors(self.connection), self.connection.cursor() as cursor:
            cursor.execute(_IS_WAITED_FOR)
            self._last_statement = time.monotonic()
            if cursor.fetchone()[0]:
                self._end("another session waits for a lock on the target")

    def _end(self, why: str) -> None:
        """Roll back; all rows are then inserted when the batch is staged."""
        assert self.connection is not None
        self.connection.rollback()
        rows = sum(self._rows.values())
        self.begin_again()
        logger.info(
            "batch %s: %s: rolled back %s inserted rows; all rows will be inserted after staging",
            self._batch.batch_id,
            why,
            rows,
        )
