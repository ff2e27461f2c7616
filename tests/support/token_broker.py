"""A broker with a listener that takes tokens of a server, and no passwords."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST, find_port
from support.faults.proxy import Proxy
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
        stack.broker.configure({}, None, anywhere=True)
        ports = stack.broker.ports
        port = find_port(None, frozenset(ports.values()))
        client = f"CLIENT://{HOST}:{ports['client']}"
        with Proxy((HOST, port)) as network:
            listener = "listener.name.tokens"
            stack.broker.configure(
                {},
                {
                    "listeners": f"{client},TOKENS://{HOST}:{port},CONTROLLER://{HOST}:{ports['controller']}",
                    "advertised.listeners": f"{client},TOKENS://{network.address}",
                    "listener.security.protocol.map": (
                        "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,TOKENS:SASL_PLAINTEXT"
                    ),
                    f"{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
                    f"{listener}.oauthbearer.sasl.jaas.config": _LOGIN,
                    f"{listener}.oauthbearer.sasl.server.callback.handler.class": _HANDLER,
                    f"{listener}.oauthbearer.connections.max.reauth.ms": "3600000",
                    # By default, Kafka 4.1 chose a validator here that does not check the audience.
                    "sasl.oauthbearer.jwt.validator.class": _VALIDATOR,
                    "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
                    "sasl.oauthbearer.expected.audience": AUDIENCE,
                    "sasl.oauthbearer.expected.issuer": ISSUER,
                },
            )
            allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={server.keys_url}"
            with patch.dict(os.environ, {"KAFKA_OPTS": allowed}):
                stack.broker.start()
            yield TokenBroker(stack, network, server)
    finally:
        stack.down(delete=True)
