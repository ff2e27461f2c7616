"""Stage decoded records as they are: each task reads, decodes and copies its range in one pass, outside the
JVM."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from exactbatch.batch.executors import on_executors
from exactbatch.batch.stage import stage
from exactbatch.batch.task import StagedBatch, StageTask
from exactbatch.columns import Column
from exactbatch.pipeline import Pipeline


class DirectStager:
    """The Stager of a pipeline without a transform."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        self._spark, self._tasks, self._limit = spark, tasks, pipeline.max_connections
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage(self) -> StagedBatch:
        """Stage every range; return what the task attempts did that Spark accepted.

        Raises TasksFailed, and the terminal error of a task.
        """
        return StagedBatch.of(on_executors(self._spark, self._tasks, stage, limit=self._limit, verb="stage"))
