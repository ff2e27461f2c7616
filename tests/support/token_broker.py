"""A broker with a listener that takes tokens of a server, and no passwords."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from exactbatch.local import LocalStack
from support.faults.proxy import Proxy, proxied_broker
from support.token_server import AUDIENCE, ISSUER, TokenServer

_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_VALIDATOR: Final = "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"
_LOGIN: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


class TokenBroker:
    """Client properties for the listeners of a broker, and the network in front of the one that takes tokens."""

    def __init__(self, stack: LocalStack, network: Proxy, server: TokenServer) -> None:
        self.stack, self.network, self._server = stack, network, server

    @property
    def plain(self) -> dict[str, Any]:
        """Client properties of the listener with a password, for what the tests prepare."""
        return dict(self.stack.kafka_properties)

    @property
    def by_token(self) -> dict[str, Any]:
        """Client properties of the listener that takes tokens."""
        return {"bootstrap.servers": self.network.address, **self._server.properties}


@contextmanager
def token_broker(home: Path, name: str, server: TokenServer) -> Iterator[TokenBroker]:
    """Run a separate broker with such a listener. It ends connections whose token has expired (KIP-368)."""
    stack = LocalStack(home, name=name)
    try:
        with (
            allowed_address(server),
            proxied_broker(stack.broker, "SASL_PLAINTEXT", build_listener(server)) as network,
        ):
            yield TokenBroker(stack, network, server)
    finally:
        stack.down(delete=True)


def build_listener(server: TokenServer) -> dict[str, str]:
    """Return the settings of a broker whose listener PROXIED takes tokens of a server."""
    listener = "listener.name.proxied"
    return {
        f"{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{listener}.oauthbearer.sasl.jaas.config": _LOGIN,
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": _HANDLER,
        f"{listener}.oauthbearer.connections.max.reauth.ms": "3600000",
        # By default, Kafka 4.1 chose a validator here that does not check the audience.
        "sasl.oauthbearer.jwt.validator.class": _VALIDATOR,
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


@contextmanager
def allowed_address(server: TokenServer) -> Iterator[None]:
    """Let brokers that start meanwhile ask a server for its keys."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={server.keys_url}"
    with patch.dict(os.environ, {"KAFKA_OPTS": allowed}):
        yield
