"""Stand-ins for what is in front of Postgres: each sees the startup packet of a client, and admits or refuses it."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

from psycopg2.extensions import parse_dsn

_ENCRYPTED: Final = (80877103, 80877104)  # requests for TLS and GSS
_CANCEL: Final = 80877102  # has no answer and no login
Admit = Callable[[socket.socket, bytes], socket.socket | None]
"""Takes a client and its startup packet; returns a connection to the server, or None for a client that was refused."""


@contextmanager
def listening_gate(dsn: str, admit: Admit) -> Iterator[int]:
    """Yield the port of a gate to the server of `dsn`."""

    def serve(client: socket.socket) -> None:
        with suppress(OSError, struct.error), closing(client):
            while (code := struct.unpack("!i", (packet := read_packet(client))[4:8])[0]) in _ENCRYPTED:
                client.sendall(b"N")
            upstream = open_upstream(dsn, packet) if code == _CANCEL else admit(client, packet)
            if upstream is not None:
                with closing(upstream):
                    threading.Thread(target=_copy, args=(upstream, client), daemon=True).start()
                    _copy(client, upstream)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


def open_upstream(dsn: str, packet: bytes) -> socket.socket:
    """Connect to the server of `dsn`, and pass on a startup packet."""
    server = parse_dsn(dsn)
    upstream = socket.create_connection((server["host"], int(server["port"])))
    upstream.sendall(packet)
    return upstream


def has_options(packet: bytes) -> bool:
    """True for a startup packet with `options`."""
    return b"\0options\0" in packet


def refuse(client: socket.socket, code: str, text: str) -> None:
    """Answer with an error, as Postgres does before it ends a connection."""
    client.sendall(as_message(b"E", f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()))


def as_message(kind: bytes, body: bytes) -> bytes:
    """A message of the protocol, whose length counts itself."""
    return kind + struct.pack("!i", len(body) + 4) + body


def read_message(stream: socket.socket) -> tuple[bytes, bytes]:
    """The type and the body of the next message."""
    head = stream.recv(5, socket.MSG_WAITALL)
    return head[:1], stream.recv(struct.unpack("!i", head[1:])[0] - 4, socket.MSG_WAITALL)


def read_packet(stream: socket.socket) -> bytes:
    """A packet of the start-up phase: its length, itself included, and the rest."""
    head = stream.recv(4, socket.MSG_WAITALL)
    return head + stream.recv(struct.unpack("!i", head)[0] - 4, socket.MSG_WAITALL)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what arrives, and the end of the stream."""
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):  # also after a reset
        sink.shutdown(socket.SHUT_WR)
