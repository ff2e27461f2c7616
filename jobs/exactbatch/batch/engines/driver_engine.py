"""The engine of spark-submit and of `exactbatch run`: the Spark driver of this process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from exactbatch.batch.spark.executors import on_executors
from exactbatch.batch.spark.python_daemon import load_compiled_code
from exactbatch.batch.spark.spark_session import batch_session, jvm_errors
from exactbatch.batch.spark.waiting_jobs import launch_timeout
from exactbatch.batch.staging.shares import Outcome, Task
from exactbatch.batch.staging.stager import Stager
from exactbatch.batch.staging.task import StageTask
from exactbatch.batch.transform.transform_stager import TransformStager
from exactbatch.errors import ExactbatchError
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection


class DriverEngine:
    """The Engine over a Spark session of this process."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextmanager
    def executors(self, pipeline: Pipeline, where: str) -> "Iterator[DriverExecutors]":
        """Prepare a session for one batch."""
        with (
            jvm_errors(),
            launch_timeout(self._spark, pipeline.tuning.launch_seconds, where),
            batch_session(self._spark, pipeline) as session,
        ):
            # Where jobs are scheduled fairly, each pipeline has its share; a thread's pool stays until its next batch.
            session.sparkContext.setLocalProperty("spark.scheduler.pool", pipeline.name)
            yield DriverExecutors(session)


class DriverExecutors:
    """The Executors of a session of this process."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def application_id(self) -> str | None:
        """The ID of the Spark application of this process."""
        return str(self._session.sparkContext.applicationId)

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        return int(self._session.sparkContext.defaultParallelism)

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Sequence[Task], int], Sequence[Outcome | ExactbatchError]],
        *,
        limit: int,
        verb: str,
    ) -> list[Outcome]:
        """Run the tasks as an RDD. Raises the errors of on_executors()."""
        return on_executors(self._session, tasks, work, limit=limit, verb=verb)

    def transform(self, connection: Connection, pipeline: Pipeline, tasks: Sequence[StageTask]) -> Stager:
        """Plan and check the transform. Raises the errors of TransformStager."""
        load_compiled_code(self._session.sparkContext, tasks)
        return TransformStager(self._session, connection, pipeline, tasks)
