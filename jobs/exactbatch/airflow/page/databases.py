"""The page's connections to the ledgers' databases: few, with short waits, kept for the next request; and what the page
reads of Airflow's connections.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg2
from airflow.models.connection import Connection as AirflowConnection

from exactbatch.airflow.connections import postgres_dsn
from exactbatch.airflow.versions import AirflowNotFoundException
from exactbatch.errors import ConfigurationError, ExactbatchError, PostgresUnavailable
from exactbatch.ledger import check_schema
from exactbatch.postgres.connection import Connection, connect
from exactbatch.postgres.deadlines import deadlines

_TIMEOUT: Final = 5.0  # seconds until Postgres must answer a connection
_STATEMENT_TIMEOUT: Final = 10.0  # seconds
_IDLE: Final = 60.0  # seconds for which an idle connection is kept
_SPARE: Final = 4  # idle connections to one database


def airflow_connection(conn_id: str) -> AirflowConnection:
    """Return a connection of Airflow. Raises ConfigurationError if it does not exist."""
    try:
        return AirflowConnection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"Airflow's API server finds no connection {conn_id!r}. Create it, or give the API server the "
            f"environment and the secrets backend that tasks have."
        ) from None


def describe_error(error: BaseException) -> str:
    """Return a message for the page."""
    return str(error) if isinstance(error, ExactbatchError) else f"{type(error).__name__}"


def _time_is_over() -> PostgresUnavailable:
    return PostgresUnavailable(
        "the request exceeded the page's time limit, so its connection to Postgres was closed. Ask again later, or for "
        "less: fewer offsets, or fewer batches."
    )


class Databases:
    """Connections to the databases of ledgers, by the ID of Airflow's connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, Connection]]] = {}

    @contextmanager
    def connection(self, conn_id: str, ends_at: float) -> Iterator[Connection]:
        """Yield a connection that only reads, and whose statements may take ten seconds.

        It is kept for the next request. At `ends_at`, a time of the monotonic clock, it is closed, whatever it does
        then: many short statements end as one long one does.

        Raises ConfigurationError for an incomplete connection, NotRegistered without a ledger of this version, and
        PostgresUnavailable, also at `ends_at`.
        """
        dsn = postgres_dsn(airflow_connection(conn_id))
        if (left := ends_at - time.monotonic()) <= 0:
            raise _time_is_over()
        connection = self._take(dsn)
        if connection is None:
            connection = connect(
                dsn, application="exactbatch page", timeout=_TIMEOUT, statement_timeout=_STATEMENT_TIMEOUT
            )
            try:
                connection.rollback()
                connection.set_session(readonly=True)
                check_schema(connection)
            except BaseException:
                connection.close()
                raise
        try:
            with deadlines.within(left, connection.hang_up):
                yield connection
        except BaseException as error:
            if isinstance(error, PostgresUnavailable) and time.monotonic() >= ends_at:
                connection.close()
                raise _time_is_over() from error
            if connection.closed:
                self._close_idle(dsn)
            connection.close()
            raise
        with suppress(psycopg2.Error):
            connection.rollback()
        self._give_back(dsn, connection)

    def _take(self, dsn: str) -> Connection | None:
        """Return an idle connection, if any, and close those to all databases that nobody has used for long."""
        now = time.monotonic()
        with self._lock:
            old = [each for idle in self._idle.values() for at, each in idle if now - at > _IDLE]
            kept = {
                name: [(at, each) for at, each in idle if now - at <= _IDLE]
                for name, idle in self._idle.items()
            }
            self._idle = {name: idle for name, idle in kept.items() if idle}
            found = self._idle[dsn].pop()[1] if dsn in self._idle else None
        for each in old:
            each.close()
        return None if found is None or found.closed else found

    def _close_idle(self, dsn: str) -> None:
        """Close the idle connections to a server that has lost one: if it has restarted, each would fail a request."""
        with self._lock:
            lost = self._idle.pop(dsn, [])
        for _, each in lost:
            each.close()

    def _give_back(self, dsn: str, connection: Connection) -> None:
        with self._lock:
            idle = self._idle.setdefault(dsn, [])
            if not connection.closed and len(idle) < _SPARE:
                idle.append((time.monotonic(), connection))
                return
        connection.close()
