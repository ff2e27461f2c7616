"""Servers as detached processes, which later commands recognize and end without ending any other process."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from exactbatch.local.waiting import wait_until

# If the clock is set while a server runs, the start time that psutil computes for it moves.
CLOCK_TOLERANCE_S = 2.0

# This process must reap its children, or they remain as zombies after their end.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


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
