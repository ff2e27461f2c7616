"""TCP ports on 127.0.0.1."""

import errno
import socket
import time

from exactbatch.local.errors import LocalStackError

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    if accepts(port):
        return False
    with socket.socket() as probe:
        # As the servers do: a port whose old connections still linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def becomes_free(port: int, timeout_s: float) -> bool:
    """Wait until the port is free; False when it is still taken after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def accepts(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def find_port(preferred: int | None, taken: frozenset[int] = frozenset()) -> int:
    """The preferred port when it is free, else any free one; never one of `taken`.

    Raises LocalStackError when the machine has no free port.
    """
    if preferred is not None and preferred not in taken and is_free(preferred):
        return preferred
    for _ in range(20):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, 0))
            except OSError as error:
                reason = errno.errorcode.get(error.errno or 0, str(error))
                raise LocalStackError(
                    f"expected a free port on {HOST}, found none ({reason}): end what listens there"
                ) from error
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port
    raise LocalStackError(f"expected a free port on {HOST}, found only taken ones: end what listens there")
