"""TCP ports on 127.0.0.1."""

import errno
import socket

from exactbatch.local.errors import LocalStackError
from exactbatch.local.waiting import wait_until

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Return True if a server could listen on the port now."""
    if accepts(port):
        return False
    with socket.socket() as probe:
        # The servers set this, too: a port counts as free while old connections to it linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def becomes_free(port: int, timeout_s: float) -> bool:
    """Wait until the port is free. Return False if it is still taken after the timeout."""
    return wait_until(lambda: is_free(port), timeout_s)


def accepts(port: int) -> bool:
    """Return True if a process accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def find_port(preferred: int | None, taken: frozenset[int] = frozenset()) -> int:
    """Return the preferred port if it is free, or else any free port, but never one of `taken`.

    Raises LocalStackError if the machine has no free port.
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
                    f"no port on {HOST} is free ({reason}). End processes that listen there."
                ) from error
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port
    raise LocalStackError(f"no port on {HOST} is free. End processes that listen there.")
