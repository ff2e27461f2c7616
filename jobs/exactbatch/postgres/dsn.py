"""Connection strings: what the client adds to a user's own, and what the errors of connecting mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch.errors import ConfigurationError
from exactbatch.errors.sqlstates import connection_error
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.session_settings import SessionSettings, milliseconds, startup_option_refused

CONNECT_TIMEOUT: Final = 10  # seconds
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
def connecting_errors() -> Iterator[None]:
    """Raise ConfigurationError or PostgresUnavailable instead of psycopg2's errors of connecting."""
    try:
        yield
    except psycopg2.OperationalError as error:
        message = psycopg2_message(error)
        raise startup_option_refused(message) or connection_error(message) from None
    except psycopg2.ProgrammingError:
        # libpq quotes the part that it could not parse, which may be a part of the password.
        raise ConfigurationError(
            "expected EXACTBATCH_POSTGRES to be a libpq connection string, as 'host=… dbname=…', found one that "
            "does not parse (not shown: it may hold a password). Quote a value that has spaces, as "
            "password='a b', and percent-encode special characters in a URL."
        ) from None
