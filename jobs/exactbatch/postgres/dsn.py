"""Connection strings: what the client adds to a user's own, and what the errors of connecting mean."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.sqlstates import connection_error
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.server_version import OLDEST, too_old
from exactbatch.postgres.session_settings import (
    SessionSettings,
    milliseconds,
    names_startup_options,
    startup_options_refused,
    unknown_parameter,
)

CONNECT_TIMEOUT: Final = 10  # seconds
_ANSWER: Final = "FATAL: "  # libpq's messages have it if a server has answered
# Detects a peer that vanished silently after about idle + interval × count seconds.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
# The servers and poolers that have refused startup options in this process, as in _address().
_without_options = set[tuple[str | None, ...]]()


def complete_dsn(dsn: str, settings: SessionSettings, *, application: str, timeout: float) -> str:
    """A connection string with everything that the client sets.

    `timeout`, in seconds, is how long sent data may stay unacknowledged. The settings come after the server
    options that the string already has, because the last one counts. A server or pooler that has refused them gets
    the string's own options alone, and none of PGOPTIONS: transactions set the settings.
    """
    own = parse_dsn(dsn).get("options", "")
    sent = "" if _address(dsn) in _without_options else settings.options()
    return make_dsn(
        dsn,
        application_name=application,
        client_encoding="UTF8",
        connect_timeout=CONNECT_TIMEOUT,
        tcp_user_timeout=milliseconds(timeout),
        options=f"{own} {sent}".strip(),
        **_KEEPALIVES,
    )


@contextmanager
def connecting_errors(dsn: str) -> Iterator[None]:
    """Raise ConfigurationError or PostgresUnavailable instead of psycopg2's errors of connecting.

    `dsn` is the user's own connection string.
    """
    try:
        yield
    except psycopg2.OperationalError as error:
        raise refused_connection(psycopg2_message(error), dsn) from None
    except psycopg2.ProgrammingError:
        # libpq quotes the part that it could not parse, which may be a part of the password.
        raise ConfigurationError(
            "expected EXACTBATCH_POSTGRES to be a libpq connection string, as 'host=… dbname=…', found one that "
            "does not parse (not shown: it may hold a password). Quote a value that has spaces, as "
            "password='a b', and percent-encode special characters in a URL."
        ) from None


def drop_refused_options(message: str, dsn: str) -> bool:
    """Send no startup options any more if libpq's message says that a server or pooler refuses them; return whether so.

    PgBouncer does so by default, and RDS Proxy always. libpq does not tell the SQLSTATE, and each server words a
    refusal in its own way: whether it is about the options shows when it takes the user's own connection string, which
    has none of exactbatch's.
    """
    address = _address(dsn)
    if address in _without_options:
        return False
    if not names_startup_options(message):
        if unknown_parameter(message) is not None or _ANSWER not in message:
            return False
        if connection_error(message).sqlstate is not None:
            return False
        version = _version(dsn)
        if version is None or too_old(version) is not None:
            return False
    _without_options.add(address)
    return True


def refused_connection(message: str, dsn: str) -> ExactbatchError:
    """Return the error for libpq's message about a connection that was not established.

    An old server does not know all options of exactbatch.
    """
    if names_startup_options(message):
        return startup_options_refused(message)
    error, parameter = connection_error(message), unknown_parameter(message)
    if parameter is None and (_ANSWER not in message or error.sqlstate is not None):
        return error
    version = _version(dsn)
    if version is not None and (old := too_old(version)) is not None:
        return old
    if parameter is not None:
        return ConfigurationError(
            f"the server has no configuration parameter {parameter!r} ({message}). Remove it from the options of the "
            f"connection string and from PGOPTIONS. If it is in neither, exactbatch sets it: use a server that has "
            f"all parameters of Postgres {OLDEST // 10000}, in `exactbatch explain settings`."
        )
    return error


def _address(dsn: str) -> tuple[str | None, ...]:
    """Return what decides who answers: the host, the port, the database and the login of a connection string."""
    parts = parse_dsn(dsn)
    return tuple(parts.get(name) for name in ("host", "hostaddr", "port", "dbname", "user", "service"))


def _version(dsn: str) -> int | None:
    """Return the version of the server behind the user's own connection string; None if it refuses that, too."""
    try:
        with closing(psycopg2.connect(dsn, connect_timeout=CONNECT_TIMEOUT)) as connection:
            return int(connection.server_version)
    except psycopg2.Error:
        return None
