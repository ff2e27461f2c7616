"""The soak's forwarders: processes that send results, are killed and stopped, and replaced."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Final

from exactbatch import failpoints
from soak.history import Failed
from soak.work import Work
from support.environment import JOBS, TESTS

MOMENTS: Final = sorted(
    name for name in failpoints.FAILPOINTS if name.startswith("forward.") and name != "forward.after_outbox"
)


class Forwarder:
    """A thread that keeps one process of `soak.forwarder` alive until stop()."""

    def __init__(self, work: Work, number: int) -> None:
        self.number = number
        self.is_busy = False
        self._work = work
        self._chance = random.Random(f"{work.seed} forwarder {number}")
        self._stopping = threading.Event()
        self._is_doomed = self._is_armed = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._guarded, name=f"forwarder {number}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the process."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()
        if self._thread.ident is not None:
            self._thread.join(30)

    def kill(self, *, arm: bool) -> None:
        """Kill the process; with `arm`, the next one kills itself at a named moment, too."""
        self._is_doomed, self._is_armed = True, arm
        assert self._process is not None
        self._process.kill()

    def hold(self, seconds: float) -> None:
        """Stop the process for some time, in which another one may take over."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def _guarded(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run()
        except BaseException as error:
            self._work.failed(error)

    def _run(self) -> None:
        """Start a process, and take what it tells for what it is until it ends."""
        moment = self._chance.choice(MOMENTS) if self._is_armed else None
        self._is_doomed = self._is_armed = False
        with (self._work.folder / f"forwarder-{self.number}.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "soak.forwarder"],
                env={
                    **os.environ,
                    **self._work.settings.as_environment(),
                    "PYTHONPATH": os.pathsep.join(map(str, (JOBS, TESTS))),
                    "EXACTBATCH_FAILPOINTS": f"{moment}=kill" if moment else "",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if self._stopping.is_set():
            process.kill()
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                # A line of which a part is missing is the last one of a killed process.
                if line.endswith("\n"):
                    self._take(json.loads(line))
        self.is_busy = False
        if self._stopping.is_set() or self._is_doomed:
            return
        if moment is None or process.returncode != -signal.SIGKILL:
            raise AssertionError(
                f"expected forwarder {self.number} to live, it ended with {process.returncode}"
            )
        self._work.count_fault("forwarder killed at a named moment")

    def _take(self, told: dict[str, Any]) -> None:
        self.is_busy = "begins" in told
        name = told.get("error")
        if name is None:
            return
        with self._work.lock:
            self._work.errors[f"{name} of a forwarder"] += 1
            if name != "Fenced":  # two of them fence each other all the time
                self._work.history.append(Failed(time.monotonic(), -1, f"{name} of a forwarder"))
        if not told["retryable"] and name != "Fenced":
            raise AssertionError(f"forwarder {self.number}: {name}: {told['message']}")
