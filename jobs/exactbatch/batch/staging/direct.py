"""Stage decoded records as they are: each task reads, decodes and copies its range in one pass, outside the
JVM."""

from collections.abc import Sequence
from dataclasses import replace

from exactbatch.batch.staging.engine import Executors
from exactbatch.batch.staging.shares import spark_tasks_for
from exactbatch.batch.staging.stage import stage
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.batch.staging.task import StagedBatch, StageTask
from exactbatch.columns import Column
from exactbatch.pipeline import Pipeline


class DirectStager:
    """The Stager of a pipeline without a transform."""

    def __init__(self, executors: Executors, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        self._executors, self._tasks = executors, tasks
        self._limit = spark_tasks_for(tasks, pipeline.tuning.max_connections, executors.parallelism)
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage_into(self, tables: StagingTables) -> None:
        """Let all tasks stage into these tables, from now on."""
        self._tasks = [replace(task, tables=tables) for task in self._tasks]

    def stage(self) -> StagedBatch:
        """See Stager. Raises TasksFailed, and the terminal error of a task."""
        return StagedBatch.of(self._executors.run(self._tasks, stage, limit=self._limit, verb="stage"))
