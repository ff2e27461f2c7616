"""Connections to Postgres that cannot hold a pipeline for ever, and transactions with clear errors."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg2
import psycopg2.extras
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, make_dsn, parse_dsn

from exactbatch.errors import ConfigurationError, PostgresUnavailable
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE, not_let_in
from exactbatch.errors.translation import adbc_said, own_error, psycopg2_said
from exactbatch.postgres.session_settings import FOUND, Found, SessionSettings, refused_option

CONNECT_TIMEOUT: Final = 10  # seconds
STATEMENT_TIMEOUT: Final = 3600.0  # seconds
# Seconds that the server gets to tell that it has ended a statement for its statement_timeout.
_GRACE: Final = 2.0
# A peer that vanished without a word is noticed after about idle + interval × count seconds.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
psycopg2.extras.register_uuid()


class _Connection(psycopg2.extensions.connection):  # type: ignore[misc]  # psycopg2 ships no types
    """Hangs up on a server that does not answer a statement in time.

    TCP does not notice such a server: its kernel, or a proxy in between, still acknowledges what it gets.
    """

    answer_timeout = STATEMENT_TIMEOUT + _GRACE  # seconds
    hung_up = False
    pins = ""  # statements that set, at the beginning of each transaction, what counts in it

    def commit(self) -> None:
        """As psycopg2's own."""
        with self.answered():
            super().commit()

    def rollback(self) -> None:
        """As psycopg2's own; a connection that has ended is rolled back by that, and an error of this would hide
        the one that tells why."""
        if self.closed:
            return
        with self.answered():
            super().rollback()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Wait for the server in here, no longer than answer_timeout.

        A lost connection is an OperationalError: where libpq finds out by itself, without an SQLSTATE from the
        server, psycopg2 may raise the class above it.
        """
        timer = threading.Timer(self.answer_timeout, self._hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg2.DatabaseError as error:
            if type(error) is psycopg2.DatabaseError and error.pgcode is None:
                raise psycopg2.OperationalError(str(error)) from error
            raise
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        self.hung_up = True
        # libpq waits on this socket, which belongs to it: it is ended, not closed, and libpq notices at once.
        with socket.socket(fileno=os.dup(self.fileno())) as found, suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


class _Cursor(psycopg2.extras.NamedTupleCursor):  # type: ignore[misc]  # psycopg2 ships no types
    def execute(self, query: Any, vars: Any = None) -> None:
        connection = self.connection
        with connection.answered():
            if not connection.autocommit and connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
                super().execute(connection.pins)
            super().execute(query, vars)


def connect(
    dsn: str, *, application: str, timeout: float = 60.0, statement_timeout: float = STATEMENT_TIMEOUT
) -> Any:
    """Open a psycopg2 connection with the settings of exactbatch, and ask the server whether they took effect.

    `timeout`, in seconds, is how long a statement waits for a lock, how long the server lets a transaction
    sit idle before it ends the connection, and how long sent data may stay unacknowledged. `statement_timeout`,
    in seconds, is how long a statement may take: the server ends it then, and the client hangs up when the
    server does not say so.

    Raises ConfigurationError where the server refuses the login, the password or the database, or where a server,
    login or pooler does not let the settings take effect, and PostgresUnavailable where it cannot be reached or
    has no session left to give.
    """
    settings = SessionSettings(
        lock_timeout=_milliseconds(timeout),
        statement_timeout=_milliseconds(statement_timeout),
        idle_in_transaction=_milliseconds(timeout),
    )
    with _connection_errors():
        connection = psycopg2.connect(
            _with_settings(dsn, settings, application=application, timeout=timeout),
            connection_factory=_Connection,
            cursor_factory=_Cursor,
        )
    connection.answer_timeout = statement_timeout + _GRACE
    try:
        with clear_errors(connection):
            _verify(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_arrow(
    dsn: str,
    *,
    application: str,
    timeout: float = 60.0,
    statement_timeout: float = 0,
    read_only: bool = False,
) -> Any:
    """Open an ADBC dbapi connection with the settings of exactbatch, and ask the server whether they took effect.

    `dsn` is the user's own connection string; the times are as in connect(). Without a `statement_timeout` the
    server sets no limit: a COPY lasts as long as it takes to read what it copies, and patience.py watches over the
    server alone. `read_only` is for a connection that only reads, but for temporary tables, and may sit in its
    transaction for as long as something else takes: nobody waits for what it holds.

    Raises as connect() does; statements raise ADBC's own errors.
    """
    # Not at the top: a DAG file that is parsed has no use for it.
    from adbc_driver_manager import Error as AdbcError

    from exactbatch.postgres.arrow import open_arrow

    settings = SessionSettings(
        lock_timeout=_milliseconds(timeout),
        statement_timeout=_milliseconds(statement_timeout) if statement_timeout else 0,
        idle_in_transaction=0 if read_only else _milliseconds(timeout),
        read_only=read_only,
    )
    with _connection_errors():
        complete = _with_settings(dsn, settings, application=application, timeout=timeout)
        try:
            return open_arrow(complete, settings)
        except AdbcError as error:
            if (refusal := refused_option(adbc_said(error)) or own_error(error)) is None:
                raise
            raise refusal from None


def _verify(connection: Any, settings: SessionSettings) -> None:
    """Raise ConfigurationError unless a transaction has all settings; from here on every one does."""
    version = connection.server_version
    connection.pins = settings.statements(version)
    with connection.cursor() as cursor:
        cursor.execute(FOUND)
        found = Found.of(cursor.fetchall())
    connection.rollback()
    found.check(settings.all(version))
    connection.pins = settings.statements(version, found)


def _with_settings(dsn: str, settings: SessionSettings, *, application: str, timeout: float) -> str:
    """A connection string with all that the client sets, whose connection notices, after `timeout` seconds, that
    its server has vanished. Server options that the string has already come first: the last one counts."""
    own = parse_dsn(dsn).get("options", "")
    return str(
        make_dsn(
            dsn,
            application_name=application,
            client_encoding="UTF8",
            connect_timeout=CONNECT_TIMEOUT,
            tcp_user_timeout=_milliseconds(timeout),
            options=f"{own} {settings.options()}".strip(),
            **_KEEPALIVES,
        )
    )


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except psycopg2.OperationalError as error:
        said = psycopg2_said(error)
        raise refused_option(said) or not_let_in(said) from None
    except psycopg2.ProgrammingError:
        # libpq quotes what it could not parse, which may be a part of the password.
        raise ConfigurationError(
            "expected EXACTBATCH_POSTGRES to be a libpq connection string, as 'host=… dbname=…', found one that "
            "does not parse (not shown: it may hold a password). Quote a value that has spaces, as "
            "password='a b', and percent-encode special characters in a URL."
        ) from None


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """Yield a cursor inside one transaction: committed at the end, rolled back on any error.

    Raises what sqlstates.MEANINGS says of the server's answer: ConfigurationError where a privilege is missing,
    StatementRefused where no retry helps, and PostgresUnavailable where the connection was lost, or where the
    server ended the transaction: a lock was not granted in time, a deadlock, a timeout, no room.
    When the connection breaks during the commit, the outcome is unknown: ask the ledger.
    """
    with clear_errors(connection), connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def clear_errors(connection: Any) -> Iterator[None]:
    """Raise what transaction() raises, without a transaction of its own."""
    try:
        yield
    except psycopg2.Error as error:
        if connection.hung_up:
            raise PostgresUnavailable(
                f"expected Postgres to answer within {connection.answer_timeout:g} s, found that it said nothing: "
                f"the connection was given up. Check the server, and the network and proxies before it. The next "
                f"try finds in the ledger whether the transaction was committed."
            ) from error
        login = f"login {connection.info.user!r}" if error.pgcode == INSUFFICIENT_PRIVILEGE else ""
        if (own := own_error(error, login)) is None:
            raise
        raise own from error


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
