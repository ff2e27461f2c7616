"""Share the tasks of a batch among Spark tasks, whose outcomes return to the driver, through the interface of an
engine: the Spark driver of this process, or a Spark Connect server.
"""

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

from exactbatch.batch.staging.outcomes import dump, load
from exactbatch.batch.staging.stager import Stager
from exactbatch.batch.staging.task import StageTask
from exactbatch.errors import ExactbatchError
from exactbatch.offsets import OffsetRange, fill_bins, group_small
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection

# Offsets: ranges of up to _SMALL are read together, up to _TOGETHER, because their records are held meanwhile.
_SMALL: Final = 10_000
_TOGETHER: Final = 50_000
_WORTH_A_TASK: Final = 100_000  # offsets
_FOR_EACH_SLOT: Final = 4  # tasks: some take longer than others


class HasRange(Protocol):
    """A task over an offset range."""

    @property
    def range(self) -> OffsetRange:
        """The range."""
        ...


Task = TypeVar("Task", bound=HasRange)
Outcome = TypeVar("Outcome")


def count_spark_tasks(tasks: Sequence[HasRange], most: int, parallelism: int) -> int:
    """Return among how many Spark tasks to share the tasks of a batch, at most `most`.

    A few for each slot of Spark, and more only for more offsets: each connects to Kafka and to Postgres, which takes
    longer than to read a few thousand records.
    """
    offsets = sum(len(task.range) for task in tasks)
    return min(most, max(_FOR_EACH_SLOT * parallelism, math.ceil(offsets / _WORTH_A_TASK)))


def distribute(tasks: Sequence[Task], limit: int) -> list[list[Task]]:
    """Return what each of at most `limit` Spark tasks does; their sizes are similar."""
    return [
        [tasks[index] for index in bin_] for bin_ in fill_bins([len(task.range) for task in tasks], limit)
    ]


def run_share(work: Callable[[Sequence[Task], int], Any], share: Sequence[Task]) -> Iterator[bytes]:
    """Run one Spark task's share of a batch, on an executor; yield the outcomes of each group."""
    for group in grouped(share):
        yield dump(work(group, attempt_id()))
    freeze_modules()


@cache
def freeze_modules() -> None:
    """Exempt the objects of imported modules from garbage collection.

    Spark's worker collects garbage after every task: with these objects, that takes up to 0.1 s.
    """
    gc.freeze()


def grouped(share: Sequence[Task]) -> list[list[Task]]:
    """Return the tasks of a share in groups: those over small ranges of different partitions are read together."""
    groups = group_small([task.range for task in share], small=_SMALL, together=_TOGETHER)
    return [[share[index] for index in group] for group in groups]


def attempt_id() -> int:
    """Return the Spark task attempt that this process works for."""
    return int(_task_context().taskAttemptId())


def partition_id() -> int:
    """Return the number of the partition that this Spark task computes."""
    return int(_task_context().partitionId())


def _task_context() -> Any:
    from pyspark import TaskContext  # not for those who decode without Spark

    context = TaskContext.get()
    assert context is not None
    return context


def loaded(outcomes: Iterable[bytes]) -> list[Any]:
    """Return the outcomes that tasks have returned, one by one or in lists. Raises the first error among them."""
    results = []
    for outcome in chain.from_iterable(map(load, outcomes)):
        if isinstance(outcome, ExactbatchError):
            raise outcome
        results.append(outcome)
    return results


class Executors(Protocol):
    """Spark's executors, as one batch uses them."""

    @property
    def application_id(self) -> str | None:
        """The ID of the Spark application; None if it is not known."""
        ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Sequence[Task], int], Sequence[Outcome | ExactbatchError]],
        *,
        limit: int,
        verb: str,
    ) -> list[Outcome]:
        """Run `work` over groups of tasks and their Spark task attempt, at most `limit` at a time; return the outcomes.

        An error among the outcomes ends no other task: with commit="partition", these commit.

        `verb` says in an error what a task does with its range. Raises the first error that a task has returned,
        TasksFailed, and ConfigurationError if a setting of Spark is at fault.
        """
        ...

    def transform(self, connection: Connection, pipeline: Pipeline, tasks: Sequence[StageTask]) -> Stager:
        """Return the Stager of a pipeline with a transform. Raises TransformRefused and ConfigurationError."""
        ...


class Engine(Protocol):
    """Spark, for any number of batches."""

    def executors(self, pipeline: Pipeline, where: str) -> AbstractContextManager[Executors]:
        """Prepare Spark for one batch; `where` names the batch in messages and on Spark's pages.

        Jobs that Spark does not run within the pipeline's launch_timeout are cancelled. Raises TasksFailed then,
        ConfigurationError if the pipeline or a setting does not fit the engine, and TasksFailed if Spark is gone.
        """
        ...
