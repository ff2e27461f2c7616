"""Watch over the Spark jobs of a batch, so that one that gets no slot of the cluster does not wait for ever."""

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from exactbatch.errors import ExactbatchError, TasksFailed

log = logging.getLogger(__name__)

_LOOKS: Final = 20  # in one timeout
_MOST_BETWEEN: Final = 5.0  # seconds between two looks
# What PySpark sets by setJobGroup(), and what is there before has to be put back.
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def watched(spark: SparkSession, timeout: float, where: str) -> Iterator[None]:
    """Cancel the jobs that this thread starts in here once they have waited `timeout` seconds for Spark to run a
    task. Raises TasksFailed then; `where` comes first in its message, and names the jobs in Spark's UI."""
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    group = f"exactbatch-{uuid.uuid4().hex}"
    context.setJobGroup(group, where)
    watch = _Watch(context, group, timeout)
    thread = threading.Thread(target=watch.run, name="jobs", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if watch.gave_up.is_set():
            raise _no_slot(where, timeout) from error
        raise
    finally:
        watch.ended.set()
        with suppress(Py4JError, OSError):  # where the JVM is gone
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type] # None removes it


class _Watch:
    """Looks again and again whether jobs of a group run."""

    def __init__(self, context: Any, group: str, timeout: float) -> None:
        self._context, self._group, self._timeout = context, group, timeout
        self.ended, self.gave_up = threading.Event(), threading.Event()

    def run(self) -> None:
        """Until the jobs are done, or have waited for too long."""
        seen, since = _Progress(), time.monotonic()
        while not self.ended.wait(min(self._timeout / _LOOKS, _MOST_BETWEEN)):
            try:
                now = self._progress()
                if not now.jobs or now.running or now != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > self._timeout:
                    self.gave_up.set()
                    self._context.cancelJobGroup(self._group)
                    return
            except (Py4JError, OSError) as error:
                log.debug("the JVM does not answer: %s", error)
                return

    def _progress(self) -> "_Progress":
        tracker = self._context.statusTracker()
        jobs = set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(self._group))
        infos = [tracker.getJobInfo(each) for each in jobs]
        stages = [
            tracker.getStageInfo(stage) for info in infos if info is not None for stage in info.stageIds
        ]
        there = [each for each in stages if each is not None]
        done = tuple((each.stageId, each.numCompletedTasks, each.numFailedTasks) for each in there)
        return _Progress(tuple(sorted(jobs)), done, sum(each.numActiveTasks for each in there))


@dataclass(frozen=True)
class _Progress:
    """Which jobs there are, what they have done, and how many of their tasks run."""

    jobs: tuple[int, ...] = ()
    done: tuple[tuple[int, int, int], ...] = ()
    running: int = 0


def _no_slot(where: str, timeout: float) -> ExactbatchError:
    return TasksFailed(
        f"{where}: Spark has run no task for {timeout:g} s, though a job waits: the cluster gives it no executor. "
        f"Nothing more was written. Are workers up, with free cores and as much memory as spark.executor.memory "
        f"and spark.executor.cores ask for? Does another application hold them (spark.cores.max, the queue of "
        f"YARN)? launch_timeout sets how long to wait. Try again: the same ranges are processed."
    )
