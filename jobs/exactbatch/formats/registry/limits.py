"""What an answer of a schema registry may take: its bytes and its time, from the connection to the last byte.

The timeout of httpx is for each read, so that a server that sends a byte now and then would hold a task for ever.
"""

import threading
import time
from ssl import SSLContext
from typing import Any, Final

MOST_BYTES: Final = 16 * 1024 * 1024


class _Limits(threading.local):
    """Those of the request that this thread sends: when it ends, on the monotonic clock, and the bytes left."""

    ends = float("inf")
    bytes_left = MOST_BYTES


def limit_answers(session: Any, seconds: float) -> None:
    """Limit each request of an httpx client to `seconds` in total, and each answer to MOST_BYTES.

    A request then raises TimeoutError, and ValueError for an answer that is larger, or compressed although that was
    not asked for.
    """
    limits = _Limits()

    def begin(_request: Any) -> None:
        limits.ends, limits.bytes_left = time.monotonic() + seconds, MOST_BYTES

    def refuse_compressed(response: Any) -> None:
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise ValueError(f"expected an answer without compression, found {encoding[:20]!r}")

    session.headers["accept-encoding"] = "identity"
    session.event_hooks = {"request": [begin], "response": [refuse_compressed]}
    # httpx has no public way to give a transport a network backend, and one that is given replaces those of proxies.
    for transport in (session._transport, *session._mounts.values()):
        if transport is not None:
            transport._pool._network_backend = _Backend(transport._pool._network_backend, limits, seconds)


class _Limited:
    """What has a limited time."""

    def __init__(self, inner: Any, limits: _Limits, seconds: float) -> None:
        self._inner, self._limits, self._seconds = inner, limits, seconds

    def _left(self, timeout: float | None) -> float:
        left = self._limits.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {self._seconds:g} s")
        return left if timeout is None else min(left, timeout)


class _Backend(_Limited):
    """Opens connections, as a network backend of httpcore does."""

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> "_Stream":
        stream = self._inner.connect_tcp(host, port, timeout=self._left(timeout), **options)
        return _Stream(stream, self._limits, self._seconds)


class _Stream(_Limited):
    """A connection, as a network stream of httpcore is."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._inner.read(max_bytes, timeout=self._left(timeout))
        self._limits.bytes_left -= len(data)
        if self._limits.bytes_left < 0:
            raise ValueError(f"expected an answer of at most {MOST_BYTES // 1024**2} MiB, found a larger one")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout=self._left(timeout))

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_Stream":
        stream = self._inner.start_tls(
            ssl_context, server_hostname=server_hostname, timeout=self._left(timeout)
        )
        return _Stream(stream, self._limits, self._seconds)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
