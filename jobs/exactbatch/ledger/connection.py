"""Connections to Postgres that cannot hold a pipeline for ever, and transactions with clear errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg2
import psycopg2.errors
import psycopg2.extras
from psycopg2.extensions import make_dsn, parse_dsn

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

    Raises PostgresUnavailable.
    """
    options = session_options(timeout)
    try:
        return psycopg2.connect(
            with_timeouts(dsn, application=application, timeout=timeout, options=options),
            cursor_factory=psycopg2.extras.NamedTupleCursor,
        )
    except psycopg2.OperationalError as error:
        raise PostgresUnavailable(
            f"expected Postgres to accept a connection, found: {_text(error)}. Check the connection string "
            f"(EXACTBATCH_POSTGRES, or Airflow's postgres_default) and that the server is up."
        ) from None
    except psycopg2.ProgrammingError:
        # libpq quotes what it could not parse, which may be a part of the password.
        raise ConfigurationError(
            "expected EXACTBATCH_POSTGRES to be a libpq connection string, as 'host=… dbname=…', found one that "
            "does not parse (not shown: it may hold a password). Quote a value that has spaces, as "
            "password='a b', and percent-encode special characters in a URL."
        ) from None


def session_options(timeout: float) -> str:
    """Server options of a session that writes into the ledger: it waits for a lock, and sits idle in its
    transaction, for `timeout` seconds at most."""
    ms = _milliseconds(timeout)
    return (
        f"-c lock_timeout={ms} -c idle_in_transaction_session_timeout={ms} "
        f"-c default_transaction_isolation=read\\ committed -c timezone=UTC"
    )


def with_timeouts(dsn: str, *, application: str, timeout: float, options: str = "") -> str:
    """A connection string whose connection notices, after `timeout` seconds, that its server has vanished.

    Server options that the string has already are kept.
    """
    own = parse_dsn(dsn).get("options", "")
    return str(
        make_dsn(
            dsn,
            application_name=application,
            connect_timeout=CONNECT_TIMEOUT,
            tcp_user_timeout=_milliseconds(timeout),
            options=f"{own} {options}".strip(),
            **_KEEPALIVES,
        )
    )


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """Yield a cursor inside one transaction: committed at the end, rolled back on any error.

    Raises ConfigurationError where a privilege is missing, and PostgresUnavailable where the connection broke or
    a lock was not granted in time. When that happens during the commit, the outcome is unknown: ask the ledger.
    """
    with clear_errors(connection), connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def clear_errors(connection: Any) -> Iterator[None]:
    """Raise what transaction() raises, for statements that need no transaction."""
    try:
        yield
    except psycopg2.errors.LockNotAvailable as error:
        raise PostgresUnavailable(
            f"expected a lock within the publish_timeout, found another transaction that holds it: "
            f"{_text(error)}. Try again; pg_locks and pg_stat_activity show who holds it."
        ) from error
    except psycopg2.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"expected the login {connection.info.user!r} to have the privileges of its role, found: "
            f"{_text(error)}. docs/roles.sql grants what each role needs; those on targets are yours to grant."
        ) from error
    except _BROKEN as error:
        raise PostgresUnavailable(
            f"expected the connection to Postgres to last through the transaction, found: {_text(error)}. "
            f"The next try finds in the ledger whether it was committed."
        ) from error


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _text(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
