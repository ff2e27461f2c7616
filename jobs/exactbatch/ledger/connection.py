"""Connections to Postgres that cannot hold a pipeline for ever, and transactions with clear errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg2
import psycopg2.errors
import psycopg2.extras

from exactbatch.errors import ConfigurationError, PostgresUnavailable

CONNECT_TIMEOUT: Final = 10  # seconds
# A peer that vanished without a word is noticed after about idle + interval × count seconds.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
# An idle transaction that the server has ended is none of the operational errors.
_BROKEN: Final = (
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
    psycopg2.errors.IdleInTransactionSessionTimeout,
)

psycopg2.extras.register_uuid()


def connect(dsn: str, *, application: str, timeout: float = 60.0) -> Any:
    """Open a psycopg2 connection.

    `timeout`, in seconds, is how long a statement waits for a lock, how long the server lets a transaction
    sit idle before it ends the connection, and how long sent data may stay unacknowledged.

    Raises PostgresUnavailable, and ConfigurationError for a text that is no connection string.
    """
    ms = max(1, round(timeout * 1000))
    try:
        return psycopg2.connect(
            dsn,
            application_name=application,
            connect_timeout=CONNECT_TIMEOUT,
            tcp_user_timeout=ms,
            cursor_factory=psycopg2.extras.NamedTupleCursor,
            options=f"-c lock_timeout={ms} -c idle_in_transaction_session_timeout={ms} "
            f"-c default_transaction_isolation=read\\ committed -c timezone=UTC",
            **_KEEPALIVES,
        )
    except psycopg2.ProgrammingError:
        # libpq quotes what it could not parse, which may be a part of the password.
        raise ConfigurationError(
            "expected a connection string that libpq accepts, found one that it cannot parse (not shown: it may "
            "hold a password). Write host=… port=… dbname=… user=… password='…', or a URL with special "
            "characters in percent-encoding."
        ) from None
    except psycopg2.OperationalError as error:
        raise PostgresUnavailable(
            f"expected Postgres to accept a connection, found: {_text(error)}. Check the connection string "
            f"(EXACTBATCH_POSTGRES, or Airflow's postgres_default) and that the server is up."
        ) from None


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """Yield a cursor inside one transaction: committed at the end, rolled back on any error.

    Raises PostgresUnavailable where the connection broke or a lock was not granted in time. When that
    happens during the commit, the outcome is unknown: ask the ledger.
    """
    try:
        with connection, connection.cursor() as cursor:
            yield cursor
    except psycopg2.errors.LockNotAvailable as error:
        raise PostgresUnavailable(
            f"expected a lock within the publish_timeout, found another transaction that holds it: "
            f"{_text(error)}. Try again; pg_locks and pg_stat_activity show who holds it."
        ) from error
    except _BROKEN as error:
        raise PostgresUnavailable(
            f"expected the connection to Postgres to last through the transaction, found: {_text(error)}. "
            f"The next try finds in the ledger whether it was committed."
        ) from error


def _text(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
