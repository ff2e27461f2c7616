"""Give up on the Spark jobs of a batch that the cluster does not run within the pipeline's launch_timeout."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from exactbatch.errors import ExactbatchError, TasksFailed

_CHECKS: Final = 20  # within one timeout
_LONGEST_INTERVAL: Final = 5.0  # seconds between two checks
logger = logging.getLogger(__name__)
# The properties that PySpark's setJobGroup() sets; their earlier values have to be restored.
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


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


@contextmanager
def launch_timeout(spark: SparkSession, timeout: float, where: str) -> Iterator[None]:
    """Cancel the jobs that this thread starts in the block once they have waited `timeout` seconds for Spark to
    run a task. Raises TasksFailed then; `where` opens its message, and names the jobs in Spark's UI."""
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    jobs = JobGroup(context, f"exactbatch-{uuid.uuid4().hex}")
    context.setJobGroup(jobs.name, where)
    try:
        with cancel_waiting_jobs(jobs.progress, jobs.cancel, timeout, where):
            yield
    finally:
        with suppress(Py4JError, OSError):  # the JVM may be gone
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type] # None removes it


class JobGroup:
    """The jobs of a group."""

    def __init__(self, context: Any, name: str) -> None:
        self._context, self.name = context, name

    def progress(self) -> Progress | None:
        """Return what Spark has done for the group; None if the JVM does not answer."""
        try:
            return self._progress()
        except (Py4JError, OSError) as error:
            logger.debug("the JVM does not answer: %s", error)
            return None

    def cancel(self) -> None:
        """Cancel the jobs of the group."""
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(self.name)

    def _progress(self) -> Progress:
        tracker = self._context.statusTracker()
        jobs = set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(self.name))
        infos = [tracker.getJobInfo(job) for job in jobs]
        stages = [
            stage
            for info in infos
            if info is not None
            for id_ in info.stageIds
            if (stage := tracker.getStageInfo(id_)) is not None
        ]
        done = tuple((stage.stageId, stage.numCompletedTasks, stage.numFailedTasks) for stage in stages)
        return Progress(tuple(sorted(jobs)), done, sum(stage.numActiveTasks for stage in stages))
