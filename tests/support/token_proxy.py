"""In front of Postgres: a login is a token in the place of a password, as at RDS, Cloud SQL and Azure."""

import base64
import hashlib
import hmac
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from psycopg2.extensions import make_dsn, parse_dsn

from support.logins import password_of
from support.postgres_wire import ENCRYPTED, copy, read_packet

_CLEARTEXT, _SASL, _CONTINUE = 3, 10, 11


@dataclass
class TokenProxy:
    """`dsn` logs in through the proxy; `logins` are the tokens that were accepted, and `refused` the others."""

    dsn: str
    logins: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@contextmanager
def token_proxy(dsn: str, provider: str, is_valid: Callable[[str], bool]) -> Iterator[TokenProxy]:
    """Listen, and log in to the server of `dsn`, with its password, each client whose token is valid."""
    server = parse_dsn(dsn)

    def serve(client: socket.socket) -> None:
        with suppress(OSError, struct.error), closing(client):
            while struct.unpack("!i", (packet := read_packet(client))[4:8])[0] in ENCRYPTED:
                client.sendall(b"N")
            client.sendall(_message(b"R", struct.pack("!i", _CLEARTEXT)))
            token = _read_message(client)[1][:-1].decode()
            if not is_valid(token):
                proxy.refused.append(token)
                text = f'password authentication failed for user "{server["user"]}"'
                client.sendall(_message(b"E", f"SFATAL\0VFATAL\0C28P01\0M{text}\0\0".encode()))
                return
            with closing(socket.create_connection((server["host"], int(server["port"])))) as upstream:
                upstream.sendall(packet)
                _log_in(upstream, password_of(dsn))
                proxy.logins.append(token)
                client.sendall(_message(b"R", struct.pack("!i", 0)))
                threading.Thread(target=copy, args=(upstream, client), daemon=True).start()
                copy(client, upstream)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        port = listener.getsockname()[1]
        proxy = TokenProxy(make_dsn(dsn, host="127.0.0.1", port=port, password=f"token:{provider}"))
        yield proxy


def _log_in(upstream: socket.socket, password: str) -> None:
    """Log in by SCRAM-SHA-256 (RFC 5802), and read until the server has accepted it."""
    nonce = base64.b64encode(os.urandom(18)).decode()
    first = f"n=,r={nonce}"
    _, body = _read_message(upstream)
    assert struct.unpack("!i", body[:4])[0] == _SASL
    initial = f"n,,{first}".encode()
    upstream.sendall(_message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(initial)) + initial))
    _, body = _read_message(upstream)
    assert struct.unpack("!i", body[:4])[0] == _CONTINUE
    given = body[4:].decode()
    parts = dict(part.split("=", 1) for part in given.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    unproven = f"c=biws,r={parts['r']}"
    signed = f"{first},{given},{unproven}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    upstream.sendall(_message(b"p", f"{unproven},p={proof}".encode()))
    while struct.unpack("!i", _read_message(upstream)[1][:4])[0] != 0:
        pass


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _read_message(stream: socket.socket) -> tuple[bytes, bytes]:
    head = stream.recv(5, socket.MSG_WAITALL)
    return head[:1], stream.recv(struct.unpack("!i", head[1:])[0] - 4, socket.MSG_WAITALL)
