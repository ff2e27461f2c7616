"""Give up on a job if the cluster runs none of its tasks within the pipeline's launch_timeout."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import ExactbatchError, TasksFailed

_CHECKS: Final = 20  # within one timeout
_LONGEST_INTERVAL: Final = 5.0  # seconds between two checks


@dataclass(frozen=True)
class Progress:
    """The active jobs; for each of their stages its ID and how many tasks have completed and failed; the number of
    running tasks."""

    jobs: tuple[int | str, ...] = ()
    done: tuple[tuple[int, int, int], ...] = ()
    running: int = 0


@contextmanager
def cancel_waiting_jobs(
    progress: Callable[[], Progress | None], cancel: Callable[[], None], timeout: float, where: str
) -> Iterator[None]:
    """Call `cancel` once the jobs of the block have waited `timeout` seconds for Spark to run a task.

    Another thread asks for their progress; None ends it. Raises TasksFailed if an error ends the block after that;
    `where` opens the message.
    """
    watch = Watch(progress, cancel, timeout)
    thread = threading.Thread(target=watch.run, name="launch timeout", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if watch.gave_up.is_set():
            raise _no_executor(where, timeout) from error
        raise
    finally:
        watch.ended.set()


class Watch:
    """Checks at intervals whether jobs make progress."""

    def __init__(
        self, progress: Callable[[], Progress | None], cancel: Callable[[], None], timeout: float
    ) -> None:
        self._progress, self._cancel, self._timeout = progress, cancel, timeout
        self.ended, self.gave_up = threading.Event(), threading.Event()

    def run(self) -> None:
        """Check until `ended` is set, or until the jobs have waited too long and are cancelled."""
        last, since = Progress(), time.monotonic()
        while not self.ended.wait(min(self._timeout / _CHECKS, _LONGEST_INTERVAL)):
            now = self._progress()
            if now is None:
                return
            if not now.jobs or now.running or now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > self._timeout:
                self.gave_up.set()
                self._cancel()
                return


def _no_executor(where: str, timeout: float) -> ExactbatchError:
    return TasksFailed(
        f"{where}: Spark has run no task for {timeout:g} s, though a job is waiting: the cluster gives it no "
        f"executor. Nothing more was written. Are workers up, with free cores and as much memory as "
        f"spark.executor.memory and spark.executor.cores request? Does another application hold them "
        f"(spark.cores.max, the YARN queue)? launch_timeout sets how long to wait. Try again: the same ranges are "
        f"processed."
    )
