"""ADBC connections, which send and receive Arrow batches, for the auditor."""

from typing import TYPE_CHECKING, Any, Final

import adbc_driver_postgresql
from adbc_driver_manager import AdbcConnection, AdbcStatement, dbapi
from adbc_driver_manager import Error as AdbcError

from exactbatch.errors.translation import adbc_message, is_not_connected, translate
from exactbatch.postgres.dsn import NotConnected, open_connection
from exactbatch.postgres.server_version import check_version
from exactbatch.postgres.session_settings import (
    EFFECTIVE_SETTINGS,
    OWN_PATH,
    EffectiveSettings,
    SessionSettings,
    milliseconds,
    names_startup_options,
)

# Makes the driver use its own table of Postgres's types. By default, it reads the server's types when it connects, and
# with them the columns of all tables: 1 to 2 s with 5,000 tables of 30 columns (apache/arrow-adbc, issue 1755).
_BUILT_IN_TYPES: Final[dict[str, str]] = {"adbc.postgresql.type_resolver_mode": "builtin"}

if TYPE_CHECKING:

    class ArrowCursor(dbapi.Cursor):
        """A cursor of an ArrowConnection. Rows are tuples, typed `Any`: their fields depend on the statement."""

        connection: "ArrowConnection"

        def fetchone(self) -> Any:
            """Return the next row, or None."""

        def fetchall(self) -> list[Any]:
            """Return all remaining rows."""
else:
    ArrowCursor = dbapi.Cursor


class ArrowConnection(dbapi.Connection):
    """A dbapi connection that sets its settings in each transaction. ADBC begins the next as soon as one ends.

    Its statements find only Postgres's own functions, operators and types, unless `target_path` has been executed in
    the transaction.
    """

    target_path = OWN_PATH
    _pins = ""
    _pinned = True

    def begin_with(self, pins: str) -> None:
        """Begin a new transaction with these statements, and every later one, too."""
        self._pins = pins
        self.rollback()

    def _pin(self) -> None:
        statement = AdbcStatement(self._conn)
        try:
            statement.set_sql_query(self._pins)
            statement.execute_update()  # unlike a query, this may be several statements
        finally:
            statement.close()
        self._pinned = True

    def cursor(self, **arguments: Any) -> ArrowCursor:
        """Return a cursor of dbapi, in a transaction with the settings."""
        if not self._pinned:
            self._pin()
        return super().cursor(**arguments)  # type: ignore[return-value]  # ArrowCursor only narrows its types

    def commit(self) -> None:
        """Commit; the next cursor sets the settings of the next transaction."""
        super().commit()
        self._pinned = False  # pin later: an error now would look like a commit that failed

    def rollback(self) -> None:
        """Roll back, and set the settings of the next transaction. Open cursors run with them."""
        super().rollback()
        self._pin()


def connect_arrow(
    dsn: str,
    *,
    application: str,
    timeout: float = 60.0,
    read_only: bool = False,
) -> ArrowConnection:
    """Open an ADBC connection with the settings of exactbatch, and verify that they took effect.

    `dsn` is the user's own connection string; `timeout` is as in connect(), and statements may take any time. With
    `read_only` the connection writes only temporary tables, and its transaction may sit idle for as long as other work
    takes: nothing waits for its locks.

    The results of queries must have types of Postgres: a query casts values of a type that a user has defined.

    Raises as connect() does; statements raise ADBC's own errors.
    """
    settings = SessionSettings(
        lock_timeout=milliseconds(timeout),
        statement_timeout=0,
        idle_in_transaction=0 if read_only else milliseconds(timeout),
        read_only=read_only,
    )

    def open_(complete: str) -> ArrowConnection:
        try:
            return _open(complete, settings)
        except AdbcError as error:
            message = adbc_message(error)
            if is_not_connected(error) or names_startup_options(message):
                raise NotConnected(message) from None
            if (refusal := translate(error)) is None:
                raise
            raise refusal from None

    return open_connection(open_, dsn, settings, application=application, timeout=timeout)


def _open(dsn: str, settings: SessionSettings) -> ArrowConnection:
    connection = _connect(dsn)
    try:
        version = _server_version(connection)
        check_version(version)
        connection.begin_with(settings.statements(version))
        with connection.cursor() as cursor:
            cursor.execute(EFFECTIVE_SETTINGS)
            effective = EffectiveSettings.of(cursor.fetchall())
        effective.check(settings.all(version))
        connection.begin_with(settings.statements(version, effective))
        connection.target_path = effective.target_path
    except BaseException:
        connection.close()
        raise
    return connection


def _server_version(connection: ArrowConnection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('server_version_num')")
        return int(cursor.fetchone()[0])


def _connect(dsn: str) -> ArrowConnection:
    database = adbc_driver_postgresql.connect(dsn, db_kwargs=_BUILT_IN_TYPES)
    connection = None
    try:
        connection = AdbcConnection(database)
        return ArrowConnection(database, connection)
    except BaseException:
        if connection is not None:
            connection.close()
        database.close()
        raise
