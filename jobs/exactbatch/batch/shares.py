"""How the tasks of a batch are shared among Spark tasks, and what these return to the driver."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from pyspark import TaskContext

from exactbatch.batch.task import dump, load
from exactbatch.errors import ExactbatchError
from exactbatch.offsets import OffsetRange, fill_bins


class HasRange(Protocol):
    """A task over an offset range."""

    @property
    def range(self) -> OffsetRange:
        """The range."""
        ...


Task = TypeVar("Task", bound=HasRange)
Outcome = TypeVar("Outcome")


def distribute(tasks: Sequence[Task], limit: int) -> list[list[Task]]:
    """Return what each of at most `limit` Spark tasks does, one after the other; their sizes are similar."""
    return [
        [tasks[index] for index in bin_] for bin_ in fill_bins([len(task.range) for task in tasks], limit)
    ]


def run_share(work: Callable[[Task, int], Any], share: Sequence[Task]) -> Iterator[bytes]:
    """Run one Spark task's share of a batch, on an executor; yield each outcome."""
    for task in share:
        yield dump(work(task, attempt_id()))


def attempt_id() -> int:
    """Return the Spark task attempt that this process works for."""
    context = TaskContext.get()
    assert context is not None
    return context.taskAttemptId()


def partition_id() -> int:
    """Return the number of the partition that this Spark task computes."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def loaded(outcomes: Iterable[bytes]) -> list[Any]:
    """Return the outcomes that tasks have returned. Raises the first error among them."""
    results = []
    for outcome in map(load, outcomes):
        if isinstance(outcome, ExactbatchError):
            raise outcome
        results.append(outcome)
    return results
