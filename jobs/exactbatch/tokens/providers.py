"""Find a provider of tokens by its name, and keep each token for as long as it is good.

A provider is a function that gets the properties of a connection and returns a Token: one of exactbatch's own, by its
name, or `module:function`. Each process calls it, the driver and every Python worker of an executor, so that only the
name of a provider travels, and no token.
"""

import importlib
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from exactbatch.errors import ConfigurationError, ExactbatchError, TokenUnavailable
from exactbatch.tokens.token import Provider, Token

# Each is imported where it is used: only what a connection names costs time and needs its packages.
OWN: Final[Mapping[str, str]] = {
    "oidc": "exactbatch.tokens.oidc:request_oidc_token",
    "aws_msk_iam": "exactbatch.tokens.clouds:request_msk_token",
    "aws_rds_iam": "exactbatch.tokens.clouds:request_rds_token",
    "azure": "exactbatch.tokens.clouds:request_azure_token",
    "gcp": "exactbatch.tokens.clouds:request_google_token",
}
# A token is renewed after this share of its lifetime, as Kafka's Java client does by default
# (sasl.login.refresh.window.factor), so that a request for a new one has the rest of it.
_RENEWED_AFTER: Final = 0.8
# Seconds that a provider gets for a token: all logins of the process wait for it.
_TIMEOUT: Final = 30.0

_lock = threading.Lock()
_tokens: dict[tuple[Any, ...], tuple[Token, float]] = {}  # with the time from which a new one is requested


def find_provider(name: str) -> Provider:
    """Return the provider of this name. Imports its module. Raises ConfigurationError if there is none."""
    module, colon, function = OWN.get(name, name).partition(":")
    if not colon:
        raise ConfigurationError(
            f"there is no provider of tokens {name!r}. Use {', '.join(OWN)}, or a function of your own as "
            f"'module:function'."
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"the provider of tokens {name!r} cannot be imported here: {error}. Correct its name, or install its "
            f"module where the driver and the executors find it."
        ) from error
    if not callable(found):
        raise ConfigurationError(f"the provider of tokens {name!r} is no function. Correct its name.")
    return found  # type: ignore[no-any-return]  # whatever it returns is checked


def get_token(name: str, connection: Mapping[str, Any]) -> Token:
    """Return a token for a connection, the one of the last call if it has enough of its lifetime left.

    Raises ConfigurationError for an unknown provider, and TokenUnavailable if the provider fails, or returns no token
    or one that has expired.
    """
    key = _key(name, connection)
    with _lock:
        token, renewed_at = _tokens.get(key, (None, 0.0))
        if token is not None and time.time() < renewed_at:
            return token
        token = _request(name, connection)
        now = time.time()
        if token.expires_at <= now:
            raise TokenUnavailable(
                f"the provider {name!r} returned a token that expired {now - token.expires_at:.0f} s ago. Check the "
                f"clock of this machine, and that the provider requests a new token each time."
            )
        _tokens[key] = token, now + _RENEWED_AFTER * (token.expires_at - now)
        return token


def forget_token(name: str, connection: Mapping[str, Any]) -> None:
    """Request a new token for this connection the next time, because its server has refused one."""
    with _lock:
        _tokens.pop(_key(name, connection), None)


def _key(name: str, connection: Mapping[str, Any]) -> tuple[Any, ...]:
    return (name, *sorted((key, repr(value)) for key, value in connection.items()))


def _request(name: str, connection: Mapping[str, Any]) -> Token:
    provider = find_provider(name)
    try:
        token = _ask(provider, connection)
    except ExactbatchError:
        raise
    except Exception as error:  # whatever a library of a cloud raises
        raise TokenUnavailable(
            f"the provider {name!r} returned no token: {type(error).__name__}: {error}. Check that its server can be "
            f"reached from this machine, and the identity that the machine has there."
        ) from error
    if not isinstance(token, Token):
        raise TokenUnavailable(
            f"expected the provider {name!r} to return an exactbatch.tokens.Token, found {type(token).__name__}. "
            f"Correct the function."
        )
    return token


def _ask(provider: Provider, connection: Mapping[str, Any]) -> Any:
    """Return what a provider returns, and raise what it raises, or TimeoutError: its thread is left to the end of the
    process then."""
    returned, raised = list[Any](), list[BaseException]()

    def ask() -> None:
        try:
            returned.append(provider(connection))
        except BaseException as error:
            raised.append(error)

    asking = threading.Thread(target=ask, name="provider of tokens", daemon=True)
    asking.start()
    asking.join(_TIMEOUT)
    if raised:
        raise raised[0]
    if not returned:
        raise TimeoutError(f"no answer within {_TIMEOUT:g} s")
    return returned[0]
