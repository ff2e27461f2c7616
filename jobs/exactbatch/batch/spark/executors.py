"""Run tasks over offset ranges on the executors of a Spark driver."""

from collections.abc import Callable, Iterable, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.batch.spark.python_daemon import load_compiled_code
from exactbatch.batch.spark.spark_errors import cause, find_refused_setting, read_settings
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import Outcome, Task, distribute, loaded, run_share
from exactbatch.code_identity import code_identity, other_code
from exactbatch.errors import ExactbatchError, TasksFailed


def on_executors(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Sequence[Task], int], Sequence[Outcome | ExactbatchError]],
    *,
    limit: int,
    verb: str,
) -> list[Outcome]:
    """Run `work` over groups of tasks and their Spark task attempt, at most `limit` at a time; return the outcomes.

    `verb` says in an error what a task does with its range. Raises the first error that a task has returned,
    TasksFailed, and ConfigurationError if a Spark setting is at fault.
    """
    context, identity = spark.sparkContext, code_identity()
    load_compiled_code(context, tasks)

    def run(shares: Iterable[Sequence[Task]]) -> Iterable[bytes]:  # on an executor
        if (refused := other_code(identity)) is not None:
            yield dump(refused)
            return
        for share in shares:
            yield from run_share(work, share)

    try:
        shares = distribute(tasks, limit)
        outcomes = context.parallelize(shares, len(shares)).mapPartitions(run).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise tasks_failed(spark, error, verb) from error
    return loaded(outcomes)


def tasks_failed(spark: SparkSession, error: PySparkException | Py4JJavaError, verb: str) -> ExactbatchError:
    """Return the error for a Spark job some of whose tasks failed."""
    return find_refused_setting(error, read_settings(spark)) or TasksFailed(
        f"a task failed to {verb} its range: {cause(error)}. The next try reads the same ranges; the log of the "
        f"executors has the traceback."
    )
