"""psycopg2 connections that wait for a server no longer than a deadline, and transactions with clear errors.

A cursor may note what statements write into a table, in the order in which they write it, in a temporary table.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg2
import psycopg2.extras
from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INERROR

from exactbatch.errors import PostgresUnavailable
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE
from exactbatch.errors.translation import psycopg2_message, translate
from exactbatch.postgres.deadlines import Deadline, deadlines
from exactbatch.postgres.dsn import NotConnected, open_connection
from exactbatch.postgres.server_version import check_version
from exactbatch.postgres.session_settings import (
    EFFECTIVE_SETTINGS,
    OWN_PATH,
    EffectiveSettings,
    SessionSettings,
    milliseconds,
)

WRITTEN: Final = sql.Identifier("pg_temp", "exactbatch_written")
CREATE_WRITTEN: Final = sql.SQL(
    "create temporary table exactbatch_written (number bigint generated always as identity, "
    "removed boolean not null, key bytea, value bytea) on commit drop"
)
STATEMENT_TIMEOUT: Final = 3600.0  # seconds
# Seconds that the server gets to report that it has cancelled a statement at its statement_timeout.
_GRACE: Final = 2.0
# Triggers and expressions of targets run in it, so that it is no constant text: see Cursor.
CHECK_CONSTRAINTS: Final = sql.SQL("set constraints all immediate")


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Which rows are noted, and what of them. `key` and `value` are expressions over the columns of a row `w`.

    table    schema and name of the table
    columns  the columns to which the expressions refer
    order    expressions that order the rows of one statement
    """

    table: tuple[str, str]
    columns: Sequence[str]
    key: sql.Composable
    value: sql.Composable
    order: sql.Composable

    def noting(
        self, statement: sql.Composable, *, removed: bool, queries: Sequence[sql.Composable] = ()
    ) -> sql.Composable:
        """Return a statement that does the same, notes each row that it writes or deletes, and returns their number.

        `queries` are the queries of its `with`. Rows that they write or delete are not noted.
        An insert or update must write a table without an alias or with the alias t, a delete must name its table t.
        """
        return sql.SQL(
            "with {queries} written as ({statement} returning {columns}), "
            "noted as (insert into {noted} (removed, key, value) "
            "select {removed}, {key}, {value} from written w order by {order} returning 1) "
            "select (select count(*) from written) as number, (select count(*) from noted) as rows"
        ).format(
            queries=sql.SQL("").join(sql.SQL("{}, ").format(query) for query in queries),
            statement=statement,
            columns=sql.SQL(", ").join(
                sql.Identifier(*(["t"] if removed else []), name) for name in self.columns
            ),
            noted=WRITTEN,
            removed=sql.Literal(removed),
            key=self.key,
            value=self.value,
            order=self.order,
        )


psycopg2.extras.register_uuid()  # type: ignore[no-untyped-call]  # an incomplete stub


class Connection(psycopg2.extensions.connection):
    """A connection that connect() has opened.

    It gives up on a server that does not answer within `answer_timeout` seconds. libpq itself would wait for ever:
    keepalives and tcp_user_timeout detect no server that hangs while its kernel, or a proxy in between, still
    acknowledges what it receives.

    answer_timeout: seconds
    hung_up: true once a deadline has passed; the connection is lost then
    pins: the statements that set, at the beginning of each transaction, the settings that apply to it
    target_path: the statement that sets the search path of statements over targets; see Cursor
    left_out: schemas of the login's path that are not in it, each with a role that may create functions there, or has
        done so; None if there are none
    """

    answer_timeout = STATEMENT_TIMEOUT + _GRACE
    hung_up = False
    pins = ""
    target_path = OWN_PATH
    left_out: str | None = None
    _deadline: Deadline | None = None  # of the answer that is waited for
    _path = OWN_PATH  # the statement that has set the search path that is in effect

    if TYPE_CHECKING:

        def cursor(self, *args: Any, **kwargs: Any) -> "Cursor":  # type: ignore[override]  # no other factory is used
            """Return a cursor whose rows are named tuples."""

    @property
    def left_out_remark(self) -> str:
        """A sentence about left_out for a message, after a space; "" if there is none."""
        if self.left_out is None:
            return ""
        return (
            f" Not searched are schemas of the path of {self.info.user!r} in which others may create functions, or "
            f"have done so: {self.left_out}. `exactbatch explain settings` says what to do about them."
        )

    def commit(self) -> None:
        """Commit, and wait for the answer no longer than the deadline."""
        with self.deadline():
            super().commit()

    def rollback(self) -> None:
        """Roll back, and wait for the answer no longer than the deadline.

        A closed connection is already rolled back; raising here would mask the original error.
        """
        if self.closed:
            return
        with self.deadline():
            super().rollback()

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Wait for the server in the block, for `answer_timeout` seconds at most.

        Raises OperationalError if the connection is lost. Where libpq detects this itself, without an SQLSTATE
        from the server, psycopg2 may raise the base class DatabaseError instead.
        """
        try:
            with deadlines.within(self.answer_timeout, self.hang_up) as self._deadline:
                yield
        except psycopg2.DatabaseError as error:
            if type(error) is psycopg2.DatabaseError and error.pgcode is None:
                raise psycopg2.OperationalError(str(error)) from error
            raise
        finally:
            self._deadline = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the server wait in the block, in which a COPY reads what it sends next: the time does not count, and
        the wait for the server begins again after it.

        Raises OperationalError if the deadline has passed: a server that answers after all gets no more.
        """
        if self.hung_up:
            raise psycopg2.OperationalError("the connection was closed")
        assert self._deadline is not None
        with deadlines.paused(self._deadline):
            yield

    def hang_up(self) -> None:
        """Wake libpq, which may wait on its socket in another thread: it sees the end of the stream at once.

        A duplicate of the file descriptor is closed here, and the socket only shut down: libpq owns it.
        """
        self.hung_up = True
        # Where the connection is closed already, nobody waits.
        with (
            suppress(OSError, psycopg2.InterfaceError),
            socket.socket(fileno=os.dup(self.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)


class Cursor(psycopg2.extras.NamedTupleCursor):
    """A cursor of a Connection. Rows are named tuples, typed `Any`: their fields depend on the statement.

    A statement that is a constant text finds only Postgres's own functions, operators and types (OWN_PATH). One that is
    composed (`sql.Composable`) names a table of a target or one made like it, and finds those of the login's path, too:
    its triggers, expressions and types may need them.

    written_rows: what sinks note of the rows that they write; None: nothing
    most_refused: how many records with rows that a target refuses a search may find; 0: none is made
    searches_again: true if these become rejects and the others are written again, which finds what they hide
    """

    written_rows: WrittenRows | None = None
    most_refused: int = 100
    searches_again: bool = False

    if TYPE_CHECKING:
        connection: Connection

        def fetchone(self) -> Any:
            """Return the next row, or None."""

        def fetchall(self) -> list[Any]:
            """Return all remaining rows."""

        def __next__(self) -> Any: ...

    def execute(self, query: str | bytes | sql.Composable, vars: Any = None) -> None:
        """Execute a statement; if it is the first of its transaction, pin the settings before it."""
        with self._prepared(query) as path:
            if path:  # in one message, which takes no longer
                path = path.replace("%", "%%") if vars is not None else path
                if isinstance(query, sql.Composable):
                    query = sql.SQL(path) + query
                else:
                    query = path + query if isinstance(query, str) else path.encode() + query
            super().execute(query, vars)  # type: ignore[no-untyped-call]  # as above

    def copy_expert(self, sql: str | bytes | sql.Composable, file: Any, size: int = 8192) -> None:
        """Run a COPY; if it is the first statement of its transaction, pin the settings before it."""
        with self._prepared(sql) as path:
            if path:
                super().execute(path)  # type: ignore[no-untyped-call]  # as above
            super().copy_expert(sql, file, size)

    @contextmanager
    def _prepared(self, query: str | bytes | sql.Composable) -> Iterator[str]:
        """Yield the start of a query that sets its search path, "" if that is in effect, in a transaction with the
        settings; in the block, wait for the server no longer than the deadline."""
        connection = self.connection
        with connection.deadline():
            if not connection.autocommit and connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
                super().execute(connection.pins)  # type: ignore[no-untyped-call]  # as above
                connection._path = OWN_PATH
            path = connection.target_path if isinstance(query, sql.Composable) else OWN_PATH
            try:
                yield f"{path}; " if path != connection._path else ""
                connection._path = path
            finally:
                # The next statement rolls back to a savepoint, which was set on this path, being a constant text.
                if connection.info.transaction_status == TRANSACTION_STATUS_INERROR:
                    connection._path = OWN_PATH


def connect(
    dsn: str,
    *,
    application: str,
    timeout: float = 60.0,
    statement_timeout: float = STATEMENT_TIMEOUT,
    for_copies: bool = False,
) -> Connection:
    """Open a psycopg2 connection with the settings of exactbatch, and verify that they took effect.

    `timeout`, in seconds, limits how long a statement waits for a lock, how long the server lets a transaction
    sit idle before it ends the connection, and how long sent data may stay unacknowledged. `statement_timeout`,
    in seconds, limits how long a statement may take: the server cancels it then, and the client hangs up if the
    server does not report that. With `for_copies`, the server cancels none, because a COPY lasts as long as it takes to
    read what it copies: only the waits for the server are limited.

    Raises ConfigurationError if the server is too old, if it refuses the login, the password or the database, or if a
    server, login or pooler prevents a setting from taking effect. Raises PostgresUnavailable if the server cannot be
    reached or has no free session.
    """
    settings = SessionSettings(
        lock_timeout=milliseconds(timeout),
        statement_timeout=0 if for_copies else milliseconds(statement_timeout),
        idle_in_transaction=milliseconds(timeout),
    )

    def open_(complete: str) -> Connection:
        try:
            return psycopg2.connect(complete, connection_factory=Connection, cursor_factory=Cursor)
        except psycopg2.OperationalError as error:
            raise NotConnected(psycopg2_message(error)) from None

    connection = open_connection(open_, dsn, settings, application=application, timeout=timeout)
    connection.answer_timeout = statement_timeout if for_copies else statement_timeout + _GRACE
    try:
        with clear_errors(connection):
            _verify(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def _verify(connection: Connection, settings: SessionSettings) -> None:
    """Raise ConfigurationError unless a transaction has all settings; pin them in every later one."""
    version = connection.server_version
    check_version(version)
    connection.pins = settings.statements(version)
    with connection.cursor() as cursor:
        cursor.execute(EFFECTIVE_SETTINGS)
        effective = EffectiveSettings.of(cursor.fetchall())
    connection.rollback()
    effective.check(settings.all(version))
    connection.pins = settings.statements(version, effective)
    connection.target_path, connection.left_out = effective.target_path, effective.left_out


@contextmanager
def transaction(connection: Connection) -> Iterator[Cursor]:
    """Yield a cursor inside one transaction: committed at the end, rolled back on any error.

    Raises the error that sqlstates.MEANINGS assigns to the server's answer: ConfigurationError for a missing
    privilege, StatementRefused if no retry can help, and PostgresUnavailable for a lost connection or for a
    transaction that the server ended (a lock timeout, a deadlock, another timeout, no space).
    If the connection breaks during the commit, the outcome is unknown: ask the ledger.
    """
    with clear_errors(connection), connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def clear_errors(connection: Connection, where: str = "") -> Iterator[None]:
    """Raise the errors that transaction() raises, without beginning a transaction. Messages begin with `where`."""
    try:
        yield
    except psycopg2.Error as error:
        if connection.hung_up:
            raise PostgresUnavailable(
                f"{where}{': ' if where else ''}Postgres did not respond within {connection.answer_timeout:g} s: it "
                f"neither accepted rows nor answered, so the connection was closed. Check the server, the network, any "
                f"proxy between them, and what blocks the statement (pg_stat_activity); statement_timeout sets how "
                f"long to wait. The next try finds in the ledger whether the transaction was committed."
            ) from error
        if not where and error.pgcode == INSUFFICIENT_PRIVILEGE:
            where = f"login {connection.info.user!r}"
        if (own := translate(error, where)) is None:
            raise
        raise own from error
