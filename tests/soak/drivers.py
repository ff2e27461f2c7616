"""The soak's drivers: processes that do one batch after another, and can be killed and stopped."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from exactbatch.settings import Settings
from support.environment import JOBS, TESTS
from support.faults.drivers import spark_options

# What Spark starts its daemon for, whatever module that is.
_WORKER: Final = "pyspark.worker"


class Driver:
    """A process that does one batch after another."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.doomed = False  # once a fault will end it
        reading, writing = os.pipe()
        path = os.pathsep.join(map(str, (JOBS, TESTS)))
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "soak.driver", str(writing)],
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "PYSPARK_SUBMIT_ARGS": spark_options("--conf spark.ui.showConsoleProgress=false"),
                    # What a killed JVM leaves behind goes with the stack.
                    "SPARK_LOCAL_DIRS": str(log.parent),
                    **settings.as_environment(),
                },
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=(writing,),
                start_new_session=True,
                text=True,
            )
        os.close(writing)
        self._outcomes, self._buffer = reading, b""
        self._descendants: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        """The driver's process."""
        return self._process.pid

    def order(self, pipeline: str, batch_id: int, actions: dict[str, str]) -> None:
        """Tell it to process a batch."""
        assert self._process.stdin is not None
        order = {"pipeline": pipeline, "batch_id": batch_id, "failpoints": actions}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def outcome(self, timeout: float) -> dict[str, Any] | None:
        """Return its next outcome; None if there is none yet; {"died": status} once it has ended."""
        if b"\n" not in self._buffer:
            if not select.select([self._outcomes], [], [], timeout)[0]:
                return None
            read = os.read(self._outcomes, 65536)
            if not read:
                return {"died": self._process.wait()}
            self._buffer += read
            if b"\n" not in self._buffer:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    @property
    def is_stopped(self) -> bool:
        """True if SIGSTOP holds it."""
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def children(self) -> list[psutil.Process]:
        """Its JVM, and the Python workers of that."""
        with suppress(psutil.NoSuchProcess):
            self._descendants |= set(psutil.Process(self.pid).children(recursive=True))
        return [each for each in self._descendants if each.is_running()]

    def workers(self) -> list[psutil.Process]:
        """The Python workers, not the daemons that fork them."""
        found = []
        for each in self.children():
            with suppress(psutil.NoSuchProcess):
                parent = each.parent()
                if _WORKER in each.cmdline() and parent and _WORKER in parent.cmdline():
                    found.append(each)
        return found

    def kill(self) -> None:
        """SIGKILL for the driver alone: its JVM and workers find out by themselves."""
        self.children()
        self.doomed = True
        self._process.kill()

    def show_stacks(self) -> None:
        """Let it write to its log where it is."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(1)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and whatever it started."""
        self.children()
        self._process.kill()
        for each in self._descendants:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        os.close(self._outcomes)
