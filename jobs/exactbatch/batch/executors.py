"""Run tasks over offset ranges on Spark's executors, and collect what they return."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.batch.spark_errors import cause, setting_refused, settings_of
from exactbatch.batch.task import dump, load
from exactbatch.errors import ExactbatchError, TasksFailed
from exactbatch.offsets import OffsetRange, fill_bins


class HasRange(Protocol):
    """A task over an offset range."""

    @property
    def range(self) -> OffsetRange:
        """The range."""
        ...


Task = TypeVar("Task", bound=HasRange)
Outcome = TypeVar("Outcome")


def on_executors(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Task, int], Outcome | ExactbatchError],
    *,
    limit: int,
    verb: str,
) -> list[Outcome]:
    """Run `work` over each task and its Spark task attempt, at most `limit` at a time; return the outcomes.

    `verb` says in an error what a task does with its range. Raises the first error that a task has returned,
    TasksFailed, and ConfigurationError if a Spark setting is at fault.
    """

    def run(bins: Iterable[Sequence[Task]]) -> Iterable[bytes]:  # on an executor
        for bin_ in bins:
            for task in bin_:
                yield dump(work(task, attempt_id()))

    try:
        bins = distribute(tasks, limit)
        outcomes = spark.sparkContext.parallelize(bins, len(bins)).mapPartitions(run).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise tasks_failed(spark, error, verb) from error
    return loaded(outcomes)


def distribute(tasks: Sequence[Task], limit: int) -> list[list[Task]]:
    """Return what each of at most `limit` Spark tasks does, one after the other; their sizes are similar."""
    return [
        [tasks[index] for index in bin_] for bin_ in fill_bins([len(task.range) for task in tasks], limit)
    ]


def attempt_id() -> int:
    """Return the Spark task attempt that this process works for."""
    context = TaskContext.get()
    assert context is not None
    return context.taskAttemptId()


def loaded(outcomes: Iterable[bytes]) -> list[Any]:
    """Return the outcomes that tasks have returned. Raises the first error among them."""
    results = []
    for outcome in map(load, outcomes):
        if isinstance(outcome, ExactbatchError):
            raise outcome
        results.append(outcome)
    return results


def tasks_failed(spark: SparkSession, error: PySparkException | Py4JJavaError, verb: str) -> ExactbatchError:
    """Return the error for a Spark job some of whose tasks failed."""
    return setting_refused(error, settings_of(spark)) or TasksFailed(
        f"a task failed to {verb} its range: {cause(error)}. The next try reads the same ranges; the log of the "
        f"executors has the traceback."
    )
