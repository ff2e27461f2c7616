"""Connection strings: what the client adds to a user's own, and what the errors of connecting mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.sqlstates import connection_error
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.session_settings import (
    SessionSettings,
    milliseconds,
    names_startup_options,
    startup_options_refused,
)

CONNECT_TIMEOUT: Final = 10  # seconds
_ANSWER: Final = "FATAL: "  # libpq's messages have it if a server has answered
# Detects a peer that vanished silently after about idle + interval × count seconds.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


def complete_dsn(dsn: str, settings: SessionSettings, *, application: str, timeout: float) -> str:
    """A connection string with everything that the client sets.

    `timeout`, in seconds, is how long sent data may stay unacknowledged. The settings come after the server
    options that the string already has, because the last one counts.
    """
    own = parse_dsn(dsn).get("options", "")
    return make_dsn(
        dsn,
        application_name=application,
        client_encoding="UTF8",
        connect_timeout=CONNECT_TIMEOUT,
        tcp_user_timeout=milliseconds(timeout),
        options=f"{own} {settings.options()}".strip(),
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


def refused_connection(message: str, dsn: str) -> ExactbatchError:
    """Return the error for libpq's message about a connection that was not established.

    libpq does not tell the SQLSTATE, and each server words a refusal in its own way: whether it refuses the startup
    options shows when it takes the user's own connection string, which has none of exactbatch's.
    """
    if names_startup_options(message):
        return startup_options_refused(message)
    error = connection_error(message)
    if _ANSWER in message and error.sqlstate is None and _connects(dsn):
        return startup_options_refused(message)
    return error


def _connects(dsn: str) -> bool:
    try:
        psycopg2.connect(dsn, connect_timeout=CONNECT_TIMEOUT).close()
    except psycopg2.Error:
        return False
    return True
