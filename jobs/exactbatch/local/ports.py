"""TCP ports on 127.0.0.1."""

import random
import socket
from typing import Final

from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.waiting import wait_until

HOST = "127.0.0.1"
# Below the ports that Linux gives to outgoing connections (ip_local_port_range, from 32,768): one of those could take
# a server's port between the choice and the start, or while the server restarts. By chance, so that two stacks that
# choose at the same moment differ.
_PORTS: Final = range(20_000, 32_768)


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
    if preferred and preferred not in taken and is_free(preferred):
        return preferred
    for port in random.sample(_PORTS, len(_PORTS)):
        if port not in taken and is_free(port):
            return port
    raise LocalStackError(
        f"no port of {HOST} from {_PORTS.start} to {_PORTS.stop - 1} is free. End processes that listen there."
    )
