"""Compare the units of an audit: in this process, or on the executors of a Spark cluster.

Every worker opens its own connections and joins the same snapshot, so all of them see the same rows.
"""

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from exactbatch.audit.audit_result import Compared
from exactbatch.audit.snapshot import Snapshot, join_snapshot
from exactbatch.audit.unit_comparison import AuditedLog, compare_unit
from exactbatch.audit.units import WINDOW, Unit
from exactbatch.audit.values import ExpectedValues
from exactbatch.code_identity import code_identity, other_code
from exactbatch.errors import ExactbatchError, TasksFailed
from exactbatch.errors.translation import translate_errors
from exactbatch.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.2  # seconds between two looks at the progress of a Spark job
# A worker costs two connections and a consumer for each partition: that pays from about this many offsets on.
_OFFSETS_PER_WORKER: Final = 250_000
_UNITS_PER_WORKER: Final = 16  # the most: without an index, each reads the whole table

_GROUP: Final = "spark.jobGroup.id"

Progress = Callable[[int], None]


def local_workers(offsets: int) -> int:
    """Return how many workers compare this many offsets in one process: at most one for each core."""
    return max(1, min(len(os.sched_getaffinity(0)), offsets // _OFFSETS_PER_WORKER))


def spark_parts(spark: "SparkSession", pipeline: Pipeline, offsets: int) -> int:
    """Return into how many units to divide this many offsets for the executors: few windows in each."""
    workers = max(1, min(spark.sparkContext.defaultParallelism, _most_tasks(pipeline)))
    return workers * max(1, min(_UNITS_PER_WORKER, offsets // (workers * WINDOW)))


def _most_tasks(pipeline: Pipeline) -> int:
    """Return how many Spark tasks may run at the same time; each has two connections."""
    return max(1, pipeline.tuning.max_connections // 2)


def compare_here(
    audited: AuditedLog,
    units: Sequence[Unit],
    snapshot: Snapshot,
    *,
    expected: ExpectedValues | None,
    window: int,
    progress: Progress,
) -> list[Compared]:
    """Compare the units one after the other, over the connections of `snapshot`."""
    return [compare_unit(audited, unit, snapshot, expected, window, progress) for unit in units]


def compare_in_threads(
    audited: AuditedLog,
    units: Sequence[Unit],
    name: str,
    *,
    workers: int,
    values: bool,
    window: int,
    progress: Progress,
) -> list[Compared]:
    """Compare the units in threads of this process, in the snapshot of this name. Most of the work releases the GIL.

    `progress` is called in this thread. Raises the first error of a worker; the others stop at their next window.
    """
    done: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    failed = Event()

    def count(offsets: int) -> None:
        done.put(offsets)
        if failed.is_set():
            raise TasksFailed("Another worker of this audit has failed.")

    def work(unit: Unit) -> Compared:
        try:
            return _compare_joined(audited, unit, name, values=values, window=window, progress=count)
        except BaseException:
            failed.set()
            raise
        finally:
            done.put(None)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, unit) for unit in units]
        running = len(futures)
        try:
            while running:
                offsets = done.get()
                if offsets is None:
                    running -= 1
                else:
                    progress(offsets)
        except BaseException:
            failed.set()
            raise
    errors = [error for future in futures if (error := future.exception()) is not None]
    # An error that only reports another one comes second.
    for error in sorted(errors, key=lambda error: isinstance(error, TasksFailed)):
        raise error
    return [future.result() for future in futures]


def compare_on_executors(
    spark: "SparkSession",
    audited: AuditedLog,
    units: Sequence[Unit],
    name: str,
    *,
    values: bool,
    window: int,
    progress: Progress,
) -> list[Compared]:
    """Compare each unit in a Spark task, in the snapshot of this name.

    Spark repeats a task that fails or whose executor is lost; a task writes nothing. `progress` is called in another
    thread when tasks have ended. Raises the first error that no retry can help, and TasksFailed.
    """
    context, identity = spark.sparkContext, code_identity()

    def compare(tasks: Iterable[Unit]) -> Iterator[Compared | ExactbatchError]:  # on an executor
        if (refused := other_code(identity)) is not None:
            yield refused
            return
        for unit in tasks:
            try:
                with translate_errors():
                    yield _compare_joined(
                        audited, unit, name, values=values, window=window, progress=lambda _offsets: None
                    )
            except ExactbatchError as error:
                if error.retryable:
                    raise
                yield error

    # Where Spark could run more tasks than may run at the same time, each of them compares several units.
    slots, most = context.defaultParallelism, _most_tasks(audited.pipeline)
    count = len(units) if slots <= most else min(len(units), most)
    tasks = context.parallelize(units, count).mapPartitions(compare)
    with _watched(spark, count, sum(map(len, units)), progress):
        outcomes = tasks.collect()
    results: list[Compared] = []
    for outcome in outcomes:
        if isinstance(outcome, ExactbatchError):
            raise outcome
        results.append(outcome)
    return results


@contextmanager
def _watched(spark: "SparkSession", tasks: int, offsets: int, progress: Progress) -> Iterator[None]:
    """Report, from another thread, the share of the offsets that equals the share of the tasks that have ended."""
    from py4j.protocol import Py4JError  # only an audit with Spark imports its packages

    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    own_group = context.getLocalProperty(_GROUP) is None
    if own_group:
        context.setJobGroup(f"exactbatch audit {uuid4()}", "exactbatch audit")
    group = context.getLocalProperty(_GROUP)
    ended, reported = Event(), 0

    def report(finished: int) -> None:
        nonlocal reported
        reached = max(reported, offsets * min(finished, tasks) // tasks)
        progress(reached - reported)
        reported = reached

    def finished() -> int:
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return max((stage.numCompletedTasks for stage in stages if stage is not None), default=0)

    def watch() -> None:
        with suppress(Py4JError, OSError):  # the JVM may be gone: collect() then raises the error
            while not ended.wait(_POLL_S):
                report(finished())

    watcher = Thread(target=watch, name="exactbatch audit progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if own_group:
            context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]  # None removes it
    report(tasks)


def _compare_joined(
    audited: AuditedLog, unit: Unit, name: str, *, values: bool, window: int, progress: Progress
) -> Compared:
    """Compare a unit over connections of its own, in the snapshot of this name."""
    with join_snapshot(audited.settings.postgres, name) as snapshot:
        expected = (
            ExpectedValues(snapshot, audited.pipeline, audited.writer, audited.settings.kafka)
            if values
            else None
        )
        return compare_unit(audited, unit, snapshot, expected, window, progress)
