"""The direct way of a batch: each task reads, decodes and stages its range in one pass, outside the JVM."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.batch.spark_errors import cause, setting_refused, settings_of
from exactbatch.batch.staging import ChangesOf, StagedBatch, StageTask, StagingTables, dump, load, stage
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, TasksFailed
from exactbatch.formats import with_registry
from exactbatch.offsets import OffsetRange, deal, split
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection
from exactbatch.settings import Settings


class HasRange(Protocol):
    """A task over a range."""

    @property
    def range(self) -> OffsetRange:
        """Its range."""
        ...


Task = TypeVar("Task", bound=HasRange)
Outcome = TypeVar("Outcome")

# Offsets: a piece of a range that is smaller than this is not worth a task of its own.
_SMALLEST_PIECE: Final = 100_000


class Direct:
    """Stages what the records decode to."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        self._spark, self._tasks = spark, tasks
        self._most = pipeline.max_connections
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage(self, _connection: Connection) -> StagedBatch:
        """Stage every range on the executors; return what the attempts did that Spark accepted.

        Raises TasksFailed, and what a task found that no retry can mend.
        """

        return StagedBatch.of(on_executors(self._spark, self._tasks, stage, most=self._most, what="stage"))


def on_executors(
    spark: SparkSession,
    tasks: Sequence[Task],
    do: Callable[[Task, int], Outcome | ExactbatchError],
    *,
    most: int,
    what: str,
) -> list[Outcome]:
    """Do each task on an executor, at most so many at a time, and return the outcomes. Raises TasksFailed,
    ConfigurationError where a setting of Spark is at fault, and the first error that one has returned."""

    def run(hands: Iterable[Sequence[Task]]) -> Iterable[bytes]:  # on an executor
        for hand in hands:
            for task in hand:
                yield dump(do(task, attempt_id()))

    try:
        hands = dealt(tasks, most)
        outcomes = spark.sparkContext.parallelize(hands, len(hands)).mapPartitions(run).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise tasks_failed(spark, error, what) from error
    return loaded(outcomes)


def tasks_failed(spark: SparkSession, error: PySparkException | Py4JJavaError, what: str) -> ExactbatchError:
    """The error for a job whose tasks were to do something with their ranges."""
    return setting_refused(error, settings_of(spark)) or TasksFailed(
        f"expected every task to {what} its range, found: {cause(error)}. The next try reads the same "
        f"ranges; the log of the executors has the trace."
    )


def dealt(tasks: Sequence[Task], most: int) -> list[list[Task]]:
    """What each of at most so many Spark tasks does, one after the other."""
    return [[tasks[index] for index in hand] for hand in deal([len(each.range) for each in tasks], most)]


def stage_tasks(
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    tables: StagingTables,
    settings: Settings,
    parallelism: int,
    cluster_id: str | None = None,
) -> list[StageTask]:
    """One task for each range, or for each piece of a large one.

    What a transform gets is cut in the same way on any cluster.
    """
    parts = pipeline.max_connections
    if not pipeline.is_transformed:
        parts = min(parts, parallelism)
    first_offsets = {(each.topic, each.partition, each.from_offset) for each in ranges}
    value, key = with_registry(pipeline.value, settings.kafka), with_registry(pipeline.key, settings.kafka)
    return [
        StageTask(
            range=piece,
            # The epoch is known at the start of a range only: a later piece may begin in a newer one.
            leader_epoch=epochs.get((piece.topic, piece.partition))
            if (piece.topic, piece.partition, piece.from_offset) in first_offsets
            else None,
            tables=tables,
            kafka=settings.kafka,
            postgres=settings.postgres,
            value=value,
            columns=pipeline.sink.staged_columns(pipeline.value.columns),
            changes=ChangesOf(_decoded_key(pipeline), key) if pipeline.sink.keeps_deletes else None,
            # Of a share, the most that there can be: no range has more records than offsets.
            max_rejects=pipeline.rejects_allowed(sum(map(len, ranges))),
            read_timeout=pipeline.read_timeout,
            publish_timeout=pipeline.publish_timeout,
            statement_timeout=pipeline.statement_timeout,
            cluster_id=cluster_id,
        )
        for piece in split(ranges, parts=parts, smallest=_SMALLEST_PIECE)
    ]


def _decoded_key(pipeline: Pipeline) -> tuple[str, ...]:
    """The columns of the sink's key that decoding gives; a transform may make others."""
    there = {column.name for column in pipeline.value.columns}
    return tuple(name for name in pipeline.sink.key if name in there)


def attempt_id() -> int:
    """The Spark task attempt that this process works for."""
    context = TaskContext.get()
    assert context is not None
    return context.taskAttemptId()


def loaded(outcomes: Iterable[bytes]) -> list[Any]:
    """What tasks have returned. Raises the first error among it."""
    done = []
    for outcome in map(load, outcomes):
        if isinstance(outcome, ExactbatchError):
            raise outcome
        done.append(outcome)
    return done
