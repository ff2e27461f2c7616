"""The direct way of a batch: each task reads, decodes and stages its range in one pass, outside the JVM."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, TasksFailed
from exactbatch.ledger import with_timeouts
from exactbatch.offsets import OffsetRange, split
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.staging import ChangesOf, StagedBatch, StageTask, StagingTables, dump, load, stage
from exactbatch.values import connected

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# Offsets: a piece of a range that is smaller than this is not worth a task of its own.
_SMALLEST_PIECE: Final = 100_000


class Direct:
    """Stages what the records decode to."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        self._spark, self._tasks = spark, tasks
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage(self, _connection: Any) -> StagedBatch:
        """Stage every range on the executors; return what the attempts did that Spark accepted.

        Raises TasksFailed, and what a task found that no retry can mend.
        """

        return StagedBatch.of(on_executors(self._spark, self._tasks, stage, what="stage"))


def on_executors(
    spark: SparkSession,
    tasks: Sequence[Task],
    do: Callable[[Task, int], Outcome | ExactbatchError],
    *,
    what: str,
) -> list[Outcome]:
    """Do each task on an executor, and return the outcomes. Raises TasksFailed, and the first error that one
    has returned."""

    def run(mine: Iterable[Task]) -> Iterable[bytes]:  # on an executor
        for task in mine:
            yield dump(do(task, attempt_id()))

    try:
        outcomes = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(run).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise TasksFailed(
            f"expected every task to {what} its range, found: {cause(error)}. The next try reads the same "
            f"ranges; the log of the executors has the trace."
        ) from error
    return loaded(outcomes)


def stage_tasks(
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    tables: StagingTables,
    settings: Settings,
    parallelism: int,
) -> list[StageTask]:
    """One task for each range, or for each piece of a large one."""
    first_offsets = {(each.topic, each.partition, each.from_offset) for each in ranges}
    postgres = with_timeouts(
        settings.postgres, application="exactbatch task", timeout=pipeline.publish_timeout
    )
    value, key = connected(pipeline.value, settings.kafka), connected(pipeline.key, settings.kafka)
    return [
        StageTask(
            range=piece,
            # The epoch is known at the start of a range only: a later piece may begin in a newer one.
            leader_epoch=epochs.get((piece.topic, piece.partition))
            if (piece.topic, piece.partition, piece.from_offset) in first_offsets
            else None,
            tables=tables,
            kafka=settings.kafka,
            postgres=postgres,
            value=value,
            columns=pipeline.sink.staged_columns(pipeline.value.columns),
            changes=ChangesOf(_decoded_key(pipeline), key) if pipeline.sink.keeps_deletes else None,
            # Of a share, the most that there can be: no range has more records than offsets.
            max_rejects=pipeline.rejects_allowed(sum(map(len, ranges))),
            read_timeout=pipeline.read_timeout,
            statement_timeout=pipeline.statement_timeout,
        )
        for piece in split(ranges, parts=parallelism, smallest=_SMALLEST_PIECE)
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


def cause(error: PySparkException | Py4JJavaError) -> str:
    """What a task raised, without the trace around it; for a worker that died, what Spark says of it."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage()).splitlines()[0]
    lines = str(error).splitlines()
    trace = [number for number, line in enumerate(lines) if line.startswith((" ", "\t"))]
    after = [line.strip() for line in lines[trace[-1] + 1 if trace else 0 :] if line.strip()]
    return "; ".join(after or lines[:1])
