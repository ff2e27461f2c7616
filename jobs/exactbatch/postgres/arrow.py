"""ADBC connections with the settings of session_settings, for executors and the auditor."""

from typing import Any

import adbc_driver_postgresql
from adbc_driver_manager import AdbcConnection, AdbcStatement, dbapi

from exactbatch.postgres.session_settings import FOUND, Found, SessionSettings


class ArrowConnection(dbapi.Connection):
    """A dbapi connection that sets its settings in each transaction. ADBC begins the next as soon as one ends."""

    _pins = ""
    _pinned = True

    def begin_with(self, pins: str) -> None:
        """Begin a new transaction by these statements, and each from now on."""
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

    def cursor(self, **arguments: Any) -> Any:
        """As dbapi's own."""
        if not self._pinned:
            self._pin()
        return super().cursor(**arguments)

    def commit(self) -> None:
        """As dbapi's own."""
        super().commit()
        self._pinned = False  # not at once: what fails now would look like a commit that has failed

    def rollback(self) -> None:
        """As dbapi's own; cursors that are open go on with the settings."""
        super().rollback()
        self._pin()


def open_arrow(dsn: str, settings: SessionSettings) -> ArrowConnection:
    """Connect, set and verify. Raises ConfigurationError, and ADBC's own errors."""
    connection = _connected(dsn)
    try:
        version = _server_version(connection)
        connection.begin_with(settings.statements(version))
        with connection.cursor() as cursor:
            cursor.execute(FOUND)
            found = Found.of(cursor.fetchall())
        found.check(settings.all(version))
        connection.begin_with(settings.statements(version, found))
    except BaseException:
        connection.close()
        raise
    return connection


def _server_version(connection: ArrowConnection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('server_version_num')")
        return int(cursor.fetchone()[0])


def _connected(dsn: str) -> ArrowConnection:
    database = adbc_driver_postgresql.connect(dsn)
    connection: Any = None
    try:
        connection = AdbcConnection(database)
        return ArrowConnection(database, connection)
    except BaseException:
        if connection is not None:
            connection.close()
        database.close()
        raise
