"""Run tasks over offset ranges on the executors of a Spark driver."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import InheritableThread, SparkContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.batch.spark.python_daemon import load_compiled_code
from exactbatch.batch.spark.spark_errors import cause, setting_refused, settings_of
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import Outcome, Task, distribute, loaded, run_share
from exactbatch.code_identity import code_identity, other_code
from exactbatch.errors import ExactbatchError, TasksFailed

_INTERVAL: Final = 0.1  # seconds between two looks at which tasks have finished
_CANCELLED_WITHIN: Final = 30.0  # seconds in which Spark reports that a cancelled job has ended


def on_executors(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Sequence[Task], int], Sequence[Outcome | ExactbatchError]],
    *,
    limit: int,
    verb: str,
    finished: Callable[[list[Outcome]], None] | None = None,
) -> list[Outcome]:
    """Run `work` over groups of tasks and their Spark task attempt, at most `limit` at a time; return the outcomes.

    `finished` is called several times a second while Spark works, with the outcomes of the Spark tasks that Spark
    has accepted since the last call; it need not have received all outcomes at the end. What it raises, and an
    error among the outcomes, cancels the other tasks.

    `verb` says in an error what a task does with its range. Raises the first error that a task has returned,
    TasksFailed, and ConfigurationError if a Spark setting is at fault.
    """
    context, identity = spark.sparkContext, code_identity()
    load_compiled_code(context, tasks)
    accepted = None if finished is None else AcceptedOutcomes(context)

    def run(shares: Iterable[Sequence[Task]]) -> Iterable[bytes]:  # on an executor
        if (refused := other_code(identity)) is not None:
            yield dump(refused)
            return
        for share in shares:
            for outcome in run_share(work, share):
                if accepted is not None:
                    accepted.add(outcome)
                yield outcome

    try:
        shares = distribute(tasks, limit)
        job = context.parallelize(shares, len(shares)).mapPartitions(run)
        outcomes = collect_outcomes(context, job.collect, accepted, finished)
    except (PySparkException, Py4JJavaError) as error:
        raise tasks_failed(spark, error, verb) from error
    return loaded(outcomes)


class _Lists(AccumulatorParam[list[bytes]]):
    """Accumulates lists."""

    def zero(self, value: list[bytes]) -> list[bytes]:  # noqa: ARG002
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:
        return value1 + value2  # not in place: another thread may be reading value1


class AcceptedOutcomes:
    """The outcomes of the Spark tasks that Spark has accepted so far."""

    def __init__(self, context: SparkContext) -> None:
        # Spark adds to an accumulator what a task attempt has added, as soon as it accepts the attempt, and only once.
        self._accumulator = context.accumulator([], _Lists())

    def add(self, outcome: bytes) -> None:
        """Add an outcome of this Spark task, on an executor."""
        self._accumulator.add([outcome])

    def after(self, count: int) -> list[bytes]:
        """Return the outcomes after the first `count`, on the driver."""
        return self._accumulator.value[count:]


def collect_outcomes(
    context: SparkContext,
    collect: Callable[[], list[bytes]],
    accepted: AcceptedOutcomes | None,
    finished: Callable[[list[Any]], None] | None,
) -> list[bytes]:
    """Collect the outcomes of a Spark job; with `finished`, collect in another thread, and report in this one which
    outcomes Spark has accepted meanwhile.

    Raises what collect() and `finished` raise, and the first error among the accepted outcomes. These two cancel the
    job.
    """
    if accepted is None or finished is None:
        return collect()
    collected: Future[list[bytes]] = Future()
    tag = f"exactbatch-{uuid.uuid4().hex}"

    def run() -> None:
        try:
            context.addJobTag(tag)
            collected.set_result(collect())
        except BaseException as error:
            collected.set_exception(error)  # raised where the result is awaited

    # It inherits the job group, by which launch_timeout() cancels the job.
    InheritableThread(target=run, name="spark job", daemon=True).start()
    reported = 0
    try:
        while not wait([collected], _INTERVAL).done:
            outcomes = accepted.after(reported)
            reported += len(outcomes)
            finished(loaded(outcomes))
    except BaseException:
        with suppress(Py4JError, OSError):  # the JVM may be gone
            context.cancelJobsWithTag(tag)
        wait([collected], _CANCELLED_WITHIN)
        raise
    return collected.result()


def tasks_failed(spark: SparkSession, error: PySparkException | Py4JJavaError, verb: str) -> ExactbatchError:
    """Return the error for a Spark job some of whose tasks failed."""
    return setting_refused(error, settings_of(spark)) or TasksFailed(
        f"a task failed to {verb} its range: {cause(error)}. The next try reads the same ranges; the log of the "
        f"executors has the traceback."
    )
