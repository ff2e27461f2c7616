"""What stand-ins before Postgres share: startup packets, and bytes passed on until one side ends."""

import socket
import struct
from contextlib import suppress
from typing import Final

ENCRYPTED: Final = {80877103, 80877104}  # requests for TLS and GSS


def read_packet(stream: socket.socket) -> bytes:
    """A packet of the start-up phase: its length, itself included, and the rest."""
    head = stream.recv(4, socket.MSG_WAITALL)
    return head + stream.recv(struct.unpack("!i", head)[0] - 4, socket.MSG_WAITALL)


def copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what arrives, and the end of the stream."""
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
