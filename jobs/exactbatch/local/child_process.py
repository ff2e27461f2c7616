"""Servers as detached processes, which later commands recognize and end without ending any other one, and their TCP
ports on 127.0.0.1.
"""

import os
import random
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import tenacity

from exactbatch.local.stack_error import LocalStackError

HOST = "127.0.0.1"
# Below the ports that Linux gives to outgoing connections (ip_local_port_range, from 32,768): one of those could take
# a server's port between the choice and the start, or while the server restarts. By chance, so that two stacks that
# choose at the same moment differ.
_PORTS: Final = range(20_000, 32_768)
# If the clock is set while a server runs, the start time that psutil computes for it moves.
CLOCK_TOLERANCE_S = 2.0
# This process must reap its children, or they remain as zombies after their end.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


def wait_until(condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.05) -> bool:
    """Return True as soon as the condition is true, and False if it is still false after the timeout."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda is_true: not is_true),
        wait=tenacity.wait_fixed(every_s),
        stop=tenacity.stop_after_delay(timeout_s),
        retry_error_callback=lambda _: False,
    )
    return bool(retrying(condition))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A started process. Its pid alone is not enough, because another process may have it by now."""

    pid: int
    started: float  # seconds since the epoch, as psutil computes them

    def running(self) -> psutil.Process | None:
        """Return the process, or None if it has ended, even if another process has its pid now."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        try:
            process = psutil.Process(self.pid)
            started, status = process.create_time(), process.status()
        except psutil.NoSuchProcess:
            return None
        if status == psutil.STATUS_ZOMBIE or abs(started - self.started) > CLOCK_TOLERANCE_S:
            return None
        return process


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Recorded:
    """Start a process in a new session, so that it outlives this process and its terminal.

    Its output is appended to `log`.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    _children[child.pid] = child
    return Recorded(pid=child.pid, started=psutil.Process(child.pid).create_time())


def wait_until_ended(processes: Sequence[psutil.Process], timeout_s: float) -> bool:
    """Wait until all processes have ended. Return False if some still run after the timeout."""
    return wait_until(lambda: all(map(_ended, processes)), timeout_s, every_s=0.02)


def _ended(process: psutil.Process) -> bool:
    child = _children.get(process.pid)
    if child is not None:
        # Only reaping shows that all threads have ended, which closes their ports.
        return child.poll() is not None
    # A zombie has ended. It waits to be reaped, and the init process of a container may never do that.
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
