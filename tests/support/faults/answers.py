"""A proxy that answers one statement of a Postgres client with an error, as the server would.

    with Answers((HOST, port)) as answers:
        answers.refuse(7, "40001")     # the eighth statement from now on, of whatever connection
        …
        answers.asked                  # what clients have sent, in its order

A statement is a query, what lies before a Sync of the extended protocol, or the end of a COPY. The server never
sees one that is refused: its transaction is open still, and the client takes it back as one that has failed.
"""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from exactbatch.local.child_process import HOST
from support.faults.proxy import Messages

SAID: Final = "an answer of the test"
_CHUNK: Final = 64 * 1024
_NUL: Final = b"\0"
_READY: Final = b"Z\0\0\0\x05"  # ReadyForQuery, before the status


@dataclass(frozen=True)
class Asked:
    """A statement, and the application_name of its connection."""

    application: str
    text: str


def error_response(sqlstate: str, severity: str = "ERROR") -> bytes:
    """An ErrorResponse: fields of a letter and a text (https://www.postgresql.org/docs/current/protocol-error-fields.html)."""
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": SAID}
    payload = b"".join(name.encode() + text.encode() + _NUL for name, text in fields.items()) + _NUL
    return _message(b"E", payload)


class Answers:
    """Forwards connections to a Postgres, and answers the statement that refuse() names by itself."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.asked: list[Asked] = []
        self.refused: Asked | None = None
        self._server = server
        self._lock = threading.Lock()
        self._refuse: tuple[int, str] | None = None
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "Answers":
        threading.Thread(target=self._accept, name="answers", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def refuse(self, number: int | None, sqlstate: str = "") -> None:
        """Answer the statement with this number, counted from now, with an error; None for none."""
        with self._lock:
            self.asked, self.refused = [], None
            self._refuse = None if number is None else (number, sqlstate)

    def answer(self, asked: Asked) -> str | None:
        """Count a statement; the SQLSTATE to answer it with, or None to forward it."""
        with self._lock:
            self.asked.append(asked)
            if self._refuse is None or self._refuse[0] != len(self.asked) - 1:
                return None
            self.refused = asked
            return self._refuse[1]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                link = _Link(self, client, server)
                for pump in (link.to_server, link.to_client):
                    threading.Thread(target=pump, name="answers", daemon=True).start()


@dataclass(eq=False)
class _Link:
    """One connection of a client."""

    answers: Answers
    client: socket.socket
    server: socket.socket
    application: str = ""
    # Of the transaction, as the server last told.
    status: bytes = b"I"
    # What clients are to get instead of the server's next answer, up to the ReadyForQuery at its end.
    instead: bytes | None = None
    group: list[bytes] = field(default_factory=list)
    ended: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def to_server(self) -> None:
        messages = Messages()
        with suppress(OSError):
            while data := self.client.recv(_CHUNK):
                for type_, payload in messages.feed(data):
                    self._from_client(type_, payload)
        self._close()

    def _from_client(self, type_: bytes, payload: bytes) -> None:
        message = _message(type_, payload)
        if type_ == b"":
            words = payload[4:].split(_NUL)
            settings = dict(zip(words[::2], words[1::2], strict=False))
            self.application = settings.get(b"application_name", b"").decode()
            self.server.sendall(message)
        elif type_ == b"Q":
            self._statement(payload.rstrip(_NUL).decode(), message)
        elif type_ == b"c":
            sqlstate = self.answers.answer(Asked(self.application, "end of COPY"))
            if sqlstate is not None:
                self.instead = error_response(sqlstate)
                message = _message(b"f", b"refused" + _NUL)  # CopyFail
            self.server.sendall(message)
        elif type_ in b"PBDECFH":
            self.group.append(message)
        elif type_ == b"S" and self.group:
            text = " ".join(_text(each) for each in self.group)
            forwarded, self.group = b"".join(self.group) + message, []
            self._statement(text, forwarded)
        else:
            self.server.sendall(message)

    def _statement(self, text: str, forwarded: bytes) -> None:
        sqlstate = self.answers.answer(Asked(self.application, text))
        if sqlstate is None:
            self.server.sendall(forwarded)
        elif text.lstrip().upper().startswith("COMMIT"):
            # A COMMIT that fails has rolled the transaction back.
            self.instead = error_response(sqlstate)
            self.server.sendall(_message(b"Q", b"ROLLBACK" + _NUL))
        else:
            failed = b"I" if self.status == b"I" else b"E"
            self.client.sendall(error_response(sqlstate) + _message(b"Z", failed))

    def to_client(self) -> None:
        messages = Messages()
        messages.in_session = True  # a server's messages have a type from the first on
        with suppress(OSError):
            while data := self.server.recv(_CHUNK):
                if self.instead is not None:
                    # What is replaced begins with a chunk: the client has the whole answer before it.
                    data = b"".join(self._from_server(*each) for each in messages.feed(data))
                elif data[-6:-1] == _READY:
                    self.status = data[-1:]
                self.client.sendall(data)
        self._close()

    def _from_server(self, type_: bytes, payload: bytes) -> bytes:
        if type_ == b"Z":
            self.status = payload
        if self.instead is None:
            return _message(type_, payload)
        if type_ != b"Z":
            return b""
        answer, self.instead = self.instead, None
        return answer + _message(type_, payload)

    def _close(self) -> None:
        """End both directions; the second one to end closes the sockets."""
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self.ended += 1
            if self.ended == 2:
                self.client.close()
                self.server.close()


def _message(type_: bytes, payload: bytes) -> bytes:
    return type_ + struct.pack("!i", len(payload) + 4) + payload


def _text(message: bytes) -> str:
    """The statement of a Parse, and the letter of any other message."""
    if message[:1] == b"P":
        return message[5:].split(_NUL)[1].decode()
    return message[:1].decode()
