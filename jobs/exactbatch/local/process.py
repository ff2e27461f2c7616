"""Servers as detached processes: started once, recognised later, ended without hitting another."""

import os
import pwd
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

# A clock that is set while a server runs moves the time that psutil computes for its start.
CLOCK_TOLERANCE_S = 2.0

# This process must reap its own children, or they stay as zombies when they end.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A process that was started. A pid alone may belong to another by now, so its start is kept too."""

    pid: int
    started: float  # seconds since the epoch, as psutil says

    def running(self) -> psutil.Process | None:
        """The process, or None when it has ended or when its pid belongs to another one."""
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
    user: pwd.struct_passwd | None = None,
) -> Recorded:
    """Start a process in a session of its own, so that it outlives this one and its terminal.

    Its output is appended to `log`. With `user`, which needs root, it runs as that user.
    """
    as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    with log.open("ab") as output:
        child = subprocess.Popen(  # type: ignore[call-overload]
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **as_user,
        )
    _children[child.pid] = child
    return Recorded(pid=child.pid, started=psutil.Process(child.pid).create_time())


def wait_until_ended(processes: Sequence[psutil.Process], timeout_s: float) -> bool:
    """Wait until all have ended; False when some still run after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not all(_ended(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _ended(process: psutil.Process) -> bool:
    child = _children.get(process.pid)
    if child is not None:
        # Only reaping tells that all threads have ended, and with them the open ports.
        return child.poll() is not None
    # A zombie has ended: it only waits to be reaped, which a container's init may never do.
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
