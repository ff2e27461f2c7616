"""Cancel the Spark jobs of a batch that the cluster does not run within the pipeline's launch_timeout."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from exactbatch.batch.spark.waiting_jobs import Progress, cancel_waiting_jobs

logger = logging.getLogger(__name__)

# The properties that PySpark's setJobGroup() sets; their earlier values have to be restored.
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


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
