"""Connection strings: what the client adds to a user's own, and what the errors of connecting mean."""

from collections.abc import Callable
from contextlib import closing
from typing import Final, TypeVar

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch.errors import ConfigurationError, ExactbatchError, TokenUnavailable
from exactbatch.errors.sqlstates import connection_error
from exactbatch.postgres.server_version import OLDEST, too_old
from exactbatch.postgres.session_settings import (
    SessionSettings,
    milliseconds,
    names_startup_options,
    startup_options_refused,
    unknown_parameter,
)
from exactbatch.tokens.providers import forget_token, get_token
from exactbatch.tokens.token import LOOPBACK

CONNECT_TIMEOUT: Final = 10  # seconds
# A password that begins with it names a provider of tokens, in exactbatch.tokens.providers.
TOKEN: Final = "token:"
_BAD_LOGIN: Final = ("28000", "28P01")  # SQLSTATEs of a server that does not accept a login or a password
_ANSWER: Final = "FATAL: "  # libpq's messages have it if a server has answered
# Detects a peer that vanished silently after about idle + interval × count seconds.
_KEEPALIVES: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
# The servers and poolers that have refused startup options in this process, as in _address().
_without_options = set[tuple[str | None, ...]]()
C = TypeVar("C")


class NotConnected(Exception):
    """A connection was not established; its text is libpq's message."""


def open_connection(
    open_: Callable[[str], C], dsn: str, settings: SessionSettings, *, application: str, timeout: float
) -> C:
    """Open a connection with everything that the client adds to a user's own connection string.

    `open_` gets the complete string, and raises NotConnected or psycopg2's errors; `timeout`, in seconds, is how long
    sent data may stay unacknowledged. The settings come after the server options that the string already has, because
    the last one counts. A server or pooler that refuses them gets the string's own options alone, and none of
    PGOPTIONS, until this process ends: transactions set the settings.

    Raises ConfigurationError, PostgresUnavailable or TokenUnavailable.
    """
    own = _parse(dsn).get("options", "")
    while True:
        sent = "" if _address(dsn) in _without_options else settings.options()
        complete = make_dsn(
            _with_token(dsn),
            application_name=application,
            client_encoding="UTF8",
            connect_timeout=CONNECT_TIMEOUT,
            tcp_user_timeout=milliseconds(timeout),
            options=f"{own} {sent}".strip(),
            **_KEEPALIVES,
        )
        try:
            return open_(complete)
        except NotConnected as error:
            if (refusal := refused_connection(str(error), dsn, with_options=bool(sent))) is not None:
                raise refusal from None
            _without_options.add(_address(dsn))


def _parse(dsn: str) -> dict[str, str]:
    """Parse a user's own connection string. Raises ConfigurationError."""
    try:
        return parse_dsn(dsn)
    except psycopg2.ProgrammingError:
        # libpq quotes the part that it could not parse, which may be a part of the password.
        raise ConfigurationError(
            "expected EXACTBATCH_POSTGRES to be a libpq connection string, as 'host=… dbname=…', found one that "
            "does not parse (not shown: it may hold a password). Quote a value that has spaces, as "
            "password='a b', and percent-encode special characters in a URL."
        ) from None


def refused_connection(message: str, dsn: str, *, with_options: bool) -> ExactbatchError | None:
    """Return the error for libpq's message about a connection that was not established; `with_options` says whether
    exactbatch's options were sent.

    None if the server or pooler refuses startup options, and has got some of exactbatch's: PgBouncer does so by
    default, and RDS Proxy always. libpq does not tell the SQLSTATE, and each server words a refusal in its own way:
    whether it is about the options shows when it takes the user's own connection string, which has none of
    exactbatch's. An old server does not know all options.
    """
    if names_startup_options(message):
        return None if with_options else startup_options_refused(message)
    error, parameter = connection_error(message), unknown_parameter(message)
    provider = find_provider_name(dsn)
    if provider is not None and error.sqlstate in _BAD_LOGIN:
        forget_token(provider, _parse(dsn))
        return TokenUnavailable(
            f"Postgres does not accept the token of the provider {provider!r}: {message}. Check that the login may log "
            f"in with tokens, the identity for which the provider requests them, and the clocks of all machines."
        )
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
    return None if with_options and version is not None else error


def find_provider_name(dsn: str) -> str | None:
    """Return the name of the provider of tokens with which a connection string logs in; None for a password."""
    password = _parse(dsn).get("password", "")
    return password.removeprefix(TOKEN) if password.startswith(TOKEN) else None


def _with_token(dsn: str) -> str:
    """Return a connection string with a token in the place of its password, if that names a provider.

    The server gets it as it is, so that it has to prove that it is the one of the connection string.
    """
    provider = find_provider_name(dsn)
    if provider is None:
        return dsn
    parts = _parse(dsn)
    host, mode = parts.get("hostaddr") or parts.get("host", ""), parts.get("sslmode")
    if mode != "verify-full" and not host.startswith("/") and host not in LOOPBACK:
        raise ConfigurationError(
            f"the connection to Postgres logs in with tokens, and has sslmode={mode}: whoever answers for {host!r} "
            f"would get one. Set sslmode=verify-full, and sslrootcert to the authority of the server."
        )
    return make_dsn(dsn, password=get_token(provider, parts).value)


def _address(dsn: str) -> tuple[str | None, ...]:
    """Return what decides who answers: the host, the port, the database and the login of a connection string."""
    parts = parse_dsn(dsn)
    return tuple(parts.get(name) for name in ("host", "hostaddr", "port", "dbname", "user", "service"))


def _version(dsn: str) -> int | None:
    """Return the version of the server behind the user's own connection string; None if it refuses that, too."""
    try:
        with closing(psycopg2.connect(_with_token(dsn), connect_timeout=CONNECT_TIMEOUT)) as connection:
            return int(connection.server_version)
    except psycopg2.Error:
        return None
