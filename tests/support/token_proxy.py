"""In front of Postgres: a login is a token in the place of a password, as at RDS, Cloud SQL and Azure."""

import base64
import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg2.extensions import make_dsn, parse_dsn

from support.logins import password_of
from support.postgres_wire import as_message, listening_gate, open_upstream, read_message, refuse

_CLEARTEXT, _SASL, _CONTINUE = 3, 10, 11


@dataclass
class TokenProxy:
    """`dsn` logs in through the proxy; `logins` are the tokens that were accepted, and `refused` the others."""

    dsn: str
    port: int
    logins: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@contextmanager
def token_proxy(dsn: str, provider: str, is_valid: Callable[[str], bool]) -> Iterator[TokenProxy]:
    """Listen, and log in to the server of `dsn`, with its password, each client whose token is valid."""

    def admit(client: socket.socket, packet: bytes) -> socket.socket | None:
        client.sendall(as_message(b"R", struct.pack("!i", _CLEARTEXT)))
        token = read_message(client)[1][:-1].decode()
        if not is_valid(token):
            proxy.refused.append(token)
            refuse(client, "28P01", f'password authentication failed for user "{parse_dsn(dsn)["user"]}"')
            return None
        upstream = open_upstream(dsn, packet)
        _log_in(upstream, password_of(dsn))
        proxy.logins.append(token)
        client.sendall(as_message(b"R", struct.pack("!i", 0)))
        return upstream

    with listening_gate(dsn, admit) as port:
        through = make_dsn(dsn, host="127.0.0.1", port=port, password=f"token:{provider}")
        proxy = TokenProxy(through, port)
        yield proxy


def _log_in(upstream: socket.socket, password: str) -> None:
    """Log in by SCRAM-SHA-256 (RFC 5802), and read until the server has accepted it."""
    nonce = base64.b64encode(os.urandom(18)).decode()
    first = f"n=,r={nonce}"
    kind, body = read_message(upstream)
    if kind != b"R":
        raise ConnectionRefusedError("Postgres starts or stops")
    assert struct.unpack("!i", body[:4])[0] == _SASL
    initial = f"n,,{first}".encode()
    upstream.sendall(as_message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(initial)) + initial))
    _, body = read_message(upstream)
    assert struct.unpack("!i", body[:4])[0] == _CONTINUE
    given = body[4:].decode()
    parts = dict(part.split("=", 1) for part in given.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    unproven = f"c=biws,r={parts['r']}"
    signed = f"{first},{given},{unproven}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    upstream.sendall(as_message(b"p", f"{unproven},p={proof}".encode()))
    while struct.unpack("!i", read_message(upstream)[1][:4])[0] != 0:
        pass
