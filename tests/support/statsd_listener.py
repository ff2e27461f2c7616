"""A StatsD server that only listens."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_END: Final = b"end"
_TIMEOUT: Final = 60.0  # seconds


class StatsdListener:
    """Keeps what it receives by UDP on 127.0.0.1."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._lines: list[str] = []
        self._idle = threading.Event()
        self.port: int = server.getsockname()[1]

    def environment(self) -> dict[str, str]:
        """The settings with which Airflow sends the metrics of exactbatch here."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self.port),
            "AIRFLOW__METRICS__METRICS_ALLOW_LIST": "^exactbatch",
        }

    def listen(self) -> None:
        """Receive until the socket is closed."""
        while data := self._server.recv(65536):
            if data == _END:
                self._idle.set()
            else:
                self._lines += data.decode().split("\n")

    def take(self) -> list[tuple[str, str]]:
        """Return what was sent since the last call, as pairs of a name and a value with its type: ("a.b", "1|c")."""
        self._idle.clear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(_END, ("127.0.0.1", self.port))
        assert self._idle.wait(_TIMEOUT), "expected the listener to receive its own datagram"
        lines, self._lines = self._lines, []
        return [(name, value) for name, _, value in (line.partition(":") for line in lines)]


@contextmanager
def listening() -> Iterator[StatsdListener]:
    """Yield a listener, and close it at the end."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        listener = StatsdListener(server)
        thread = threading.Thread(target=listener.listen, daemon=True)
        thread.start()
        yield listener
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"", ("127.0.0.1", listener.port))  # an empty datagram ends listen()
        thread.join(_TIMEOUT)
