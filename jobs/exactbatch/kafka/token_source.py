"""Give both Kafka clients the tokens of one provider."""

from collections.abc import Mapping
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from exactbatch.errors import TokenUnavailable
from exactbatch.kafka.properties import TOKEN_METHOD, uses_tokens
from exactbatch.tokens.providers import get_token


class TokenSource(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """The tokens of a connection: librdkafka calls the object, and kafka-python its methods, whenever they log in."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """Request the first token. Raises ConfigurationError and TokenUnavailable."""
        super().__init__()
        self._name, self._properties = str(properties[TOKEN_METHOD]), dict(properties)
        get_token(self._name, self._properties)

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return a token, when it expires, in seconds since 1970, no principal, and the extensions.

        librdkafka calls it in a thread of its own, at the start and after 80 % of each token's lifetime.
        """
        token = get_token(self._name, self._properties)
        return token.value, token.expires_at, "", dict(token.extensions)

    def token(self) -> str:
        """Return a token for a new connection."""
        return get_token(self._name, self._properties).value

    def extensions(self) -> dict[str, str]:
        """Return the extensions that Kafka gets beside the token."""
        return dict(get_token(self._name, self._properties).extensions)


def find_token_failure(properties: Mapping[str, Any]) -> TokenUnavailable | None:
    """Return the error of a provider that has no token now for a connection that logs in with tokens; None for any
    other connection.

    A connection that outlives its token ends if there is no new one, and librdkafka only says that brokers are down.
    """
    try:
        find_token_source(properties)
    except TokenUnavailable as error:
        return error
    return None


def find_token_source(properties: Mapping[str, Any]) -> TokenSource | None:
    """Return the source of a connection's tokens; None if it logs in without them. Raises as TokenSource does."""
    return TokenSource(properties) if uses_tokens(properties) else None
