"""Kafka and Postgres behind proxies, in the kinds that people have: with passwords, with tokens that live for seconds,
with a pooler that refuses startup options, and with a Kafka whose topics have no IDs.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from unittest.mock import patch

from psycopg2.extensions import make_dsn

from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST
from exactbatch.settings import Settings
from exactbatch.tokens import Token
from exactbatch.tokens.oidc import request_oidc_token
from support.faults.proxy import Proxy, proxied_broker
from support.kafka_versions import WITHOUT_IDS, use_release
from support.postgres_wire import has_options, listening_gate, open_upstream, refuse
from support.token_broker import allowed_address, build_listener
from support.token_proxy import token_proxy
from support.token_server import token_server

# The login at the server of tokens, of the provider below.
_VARIABLE: Final = "EXACTBATCH_TEST_TOKENS"
_LIFETIME, _LEEWAY = 30.0, 5.0  # seconds


class Kind(StrEnum):
    """What servers there are."""

    PASSWORDS = "passwords"
    TOKENS = "tokens"
    NO_OPTIONS = "no-options"
    NO_IDS = "no-ids"


@dataclass(frozen=True)
class Servers:
    """Servers that run, and the network in front of each.

    Attributes:
        kind: what servers they are
        networks: by the name of what is behind them; "Kafka" and "Postgres" are always there
        login: Kafka client properties of the listener behind the proxy
        password: the provider of Postgres's password, None for that of the connection string
        environment: variables that Python workers of Spark need
    """

    stack: LocalStack
    kind: Kind
    networks: Mapping[str, Proxy]
    login: Mapping[str, Any] = field(default_factory=dict)
    password: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def kafka(self) -> Proxy:
        """The network in front of the broker."""
        return self.networks["Kafka"]

    @property
    def postgres(self) -> Proxy:
        """The network in front of Postgres."""
        return self.networks["Postgres"]

    def through(self, dsn: str) -> Settings:
        """Return the settings that reach the broker, and a database of the stack, through the proxies."""
        password = {} if self.password is None else {"password": self.password}
        return Settings(
            kafka={"bootstrap.servers": self.kafka.address, **self.login},
            postgres=make_dsn(dsn, port=self.postgres.port, **password),
        )


@contextmanager
def started_servers(stack: LocalStack, kind: Kind) -> Iterator[Servers]:
    """Start the servers of a stack. The caller stops and deletes them."""
    with ExitStack() as until:
        stack.postgres.configure({}, None, anywhere=True)
        stack.postgres.start()
        if kind is Kind.TOKENS:
            yield until.enter_context(_with_tokens(stack))
            return
        if kind is Kind.NO_IDS:
            use_release(stack, WITHOUT_IDS)
        port = stack.postgres.port
        if kind is Kind.NO_OPTIONS:
            port = until.enter_context(
                listening_gate(stack.postgres_dsn, _without_options(stack.postgres_dsn))
            )
        kafka = until.enter_context(proxied_broker(stack.broker))
        postgres = until.enter_context(Proxy((HOST, port), postgres=True))
        yield Servers(stack, kind, {"Kafka": kafka, "Postgres": postgres})


@contextmanager
def _with_tokens(stack: LocalStack) -> Iterator[Servers]:
    with token_server() as server, Proxy(server.listens_at) as tokens, ExitStack() as until:
        until.enter_context(allowed_address(server))
        kafka = until.enter_context(proxied_broker(stack.broker, "SASL_PLAINTEXT", build_listener(server)))
        server.address = f"http://{tokens.address}"  # the broker asks past the proxy
        server.lifetime, server.leeway = _LIFETIME, _LEEWAY
        environment = {_VARIABLE: json.dumps(server.properties)}
        until.enter_context(patch.dict(os.environ, environment))
        provider = f"{request_login_token.__module__}:{request_login_token.__name__}"
        gate = until.enter_context(token_proxy(stack.postgres_dsn, provider, server.is_valid))
        postgres = until.enter_context(Proxy((HOST, gate.port), postgres=True))
        networks = {"Kafka": kafka, "Postgres": postgres, "the server of tokens": tokens}
        yield Servers(stack, Kind.TOKENS, networks, server.properties, f"token:{provider}", environment)


def request_login_token(_connection: Mapping[str, Any]) -> Token:
    """Request a token for Postgres: a provider as a user writes one."""
    return request_oidc_token(json.loads(os.environ[_VARIABLE]) | {"sasl.oauthbearer.scope": "logins"})


def _without_options(dsn: str) -> Callable[[socket.socket, bytes], socket.socket | None]:
    def admit(client: socket.socket, packet: bytes) -> socket.socket | None:
        if has_options(packet):
            refuse(client, "0A000", "command-line options are not supported")
            return None
        return open_upstream(dsn, packet)

    return admit
