"""The driver of a batch: read → decode → stage on executors, then publish."""

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg2
import psycopg2.errors
from psycopg2 import sql
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.errors import ExactbatchError, TasksFailed, TooManyRejects
from exactbatch.failpoints import failpoint
from exactbatch.kafka_log import KafkaLog
from exactbatch.ledger import Batch, Ledger, check_schema, connect, transaction, with_timeouts
from exactbatch.offsets import OffsetRange, split
from exactbatch.pipeline import Pipeline
from exactbatch.publish import Published, check_publishable, check_topic_ids, publish
from exactbatch.settings import Settings
from exactbatch.staging import (
    ChangesOf,
    Staged,
    StageTask,
    StagingTables,
    create_tables,
    dump,
    identifier,
    load,
    stage,
)

log = logging.getLogger(__name__)

# Offsets: a piece of a range that is smaller than this is not worth a task of its own.
_SMALLEST_PIECE: Final = 100_000
_DROP_LOCK_TIMEOUT: Final = "2s"
_REJECTS_SHOWN: Final = 5


def process_batch(spark: SparkSession, pipeline: Pipeline, batch_id: int, settings: Settings) -> Published:
    """Process a planned batch: stage its ranges on executors and publish them in one transaction.

    A batch that is committed already is left as it is. Raises any ExactbatchError; its `retryable` tells
    whether the same batch may succeed when it is tried again.
    """
    connection = connect(settings.postgres, application="exactbatch", timeout=pipeline.publish_timeout)
    try:
        check_schema(connection)
        batch, ranges, epochs = _load(connection, pipeline, batch_id)
        if batch.status == "committed":
            log.info("batch %s is committed already: nothing to do", batch_id)
            return Published(batch, wrote=False)
        kafka = KafkaLog(settings.kafka)
        topics = sorted({each.topic for each in ranges})
        check_topic_ids(ranges, kafka.topic_ids(topics))
        with transaction(connection) as cursor:
            pipeline.sink.prepare(cursor, pipeline.value.columns)
        with _launch(connection, settings, pipeline, batch_id) as tables:
            failpoint("job.before_stage")
            staged = _stage(spark, pipeline, ranges, epochs, tables, settings)
            failpoint("job.after_stage")
            _check_rejects(connection, pipeline, tables, staged)
            return publish(
                connection,
                pipeline,
                tables=tables,
                staged=staged,
                # Asked after the last record was read: if the ids are the plan's now, they were all along.
                topic_ids=kafka.topic_ids(topics),
            )
    finally:
        connection.close()


def _load(
    connection: Any, pipeline: Pipeline, batch_id: int
) -> tuple[Batch, tuple[OffsetRange, ...], Mapping[tuple[str, int], int | None]]:
    """The batch, its ranges, and the leader epoch up to which each partition's log was processed."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        batch = ledger.batch(batch_id)
        check_publishable(ledger, pipeline, batch)
        ranges, stored = ledger.ranges(batch_id), ledger.stored_offsets(pipeline)
        # A replay reads the log as it is now: what was cut off and written anew is what it shall hold.
        epochs = {(e.topic, e.partition): e.leader_epoch for e in stored if batch.kind == "advance"}
        return batch, ranges, epochs


@contextmanager
def _launch(
    connection: Any, settings: Settings, pipeline: Pipeline, batch_id: int
) -> Iterator[StagingTables]:
    """Staging tables of this launch alone, dropped at the end whatever happens.

    The launch is a session advisory lock on a connection of its own: as long as it is held, no other launch
    takes these tables for leftovers.
    """
    tables = StagingTables(batch_id, secrets.randbits(62))
    holder = connect(settings.postgres, application="exactbatch launch", timeout=pipeline.publish_timeout)
    holder.autocommit = True
    try:
        ledger = Ledger(holder)
        ledger.try_lock_launch(tables.launch)
        _drop_leftovers(holder, ledger)
        with transaction(connection) as cursor:
            create_tables(cursor, tables, pipeline.sink.staged_columns(pipeline.value.columns))
        yield tables
    finally:
        _drop(holder, tables.rows, tables.rejects)
        holder.close()


def _drop_leftovers(holder: Any, ledger: Ledger) -> None:
    """Drop the tables of launches whose session is gone."""
    by_launch: dict[int, list[str]] = {}
    for table in ledger.staging_tables():
        if (launch := StagingTables.launch_of(table)) is not None:
            by_launch.setdefault(launch, []).append(table)
    for launch, names in by_launch.items():
        if ledger.try_lock_launch(launch):
            try:
                _drop(holder, *names)
            finally:
                ledger.unlock_launch(launch)


def _drop(holder: Any, *tables: str) -> None:
    """Drop staging tables; what a lock or a broken connection prevents is left to the next launch."""
    try:
        with holder.cursor() as cursor:
            cursor.execute(f"set lock_timeout = '{_DROP_LOCK_TIMEOUT}'")
            for table in tables:
                cursor.execute(sql.SQL("drop table if exists {}").format(identifier(table)))
    except (psycopg2.errors.LockNotAvailable, psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        log.warning("staging tables %s stay until the next launch drops them: %s", ", ".join(tables), error)


def _stage(
    spark: SparkSession,
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    tables: StagingTables,
    settings: Settings,
) -> list[Staged]:
    """Stage every range on the executors; return the outcome of each attempt that Spark accepted."""
    first_offsets = {(each.topic, each.partition, each.from_offset) for each in ranges}
    postgres = with_timeouts(
        settings.postgres, application="exactbatch task", timeout=pipeline.publish_timeout
    )
    tasks = [
        StageTask(
            range=piece,
            # The epoch is known at the start of a range only: a later piece may begin in a newer one.
            leader_epoch=epochs.get((piece.topic, piece.partition))
            if (piece.topic, piece.partition, piece.from_offset) in first_offsets
            else None,
            tables=tables,
            kafka=settings.kafka,
            postgres=postgres,
            value=pipeline.value,
            columns=pipeline.sink.staged_columns(pipeline.value.columns),
            changes=ChangesOf(pipeline.sink.key, pipeline.key) if pipeline.sink.keeps_deletes else None,
            # Of a share, the most that there can be: no range has more records than offsets.
            max_rejects=pipeline.rejects_allowed(sum(map(len, ranges))),
            read_timeout=pipeline.read_timeout,
        )
        for piece in split(ranges, parts=spark.sparkContext.defaultParallelism, smallest=_SMALLEST_PIECE)
    ]

    def run(mine: Iterable[StageTask]) -> Iterable[bytes]:  # on an executor
        context = TaskContext.get()
        assert context is not None
        for task in mine:
            yield dump(stage(task, context.taskAttemptId()))

    try:
        outcomes = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(run).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise TasksFailed(
            f"expected every task to stage its range, found: {_cause(error)}. The next try reads the same "
            f"ranges; the log of the executors has the trace."
        ) from error
    staged = []
    for outcome in map(load, outcomes):
        if isinstance(outcome, ExactbatchError):
            raise outcome
        staged.append(outcome)
    return staged


def _check_rejects(
    connection: Any, pipeline: Pipeline, tables: StagingTables, staged: Sequence[Staged]
) -> None:
    """Raise TooManyRejects, naming the first bad records, when there are more than the pipeline allows."""
    rejects = sum(each.rejects for each in staged)
    allowed = pipeline.rejects_allowed(sum(each.records for each in staged))
    if rejects <= allowed:
        return
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL(
                'select topic, partition, "offset", reason from {} where task_attempt = any(%s) '
                'order by topic, partition, "offset" limit %s'
            ).format(identifier(tables.rejects)),
            ([each.attempt for each in staged], _REJECTS_SHOWN),
        )
        shown = [f"{r.topic}[{r.partition}] offset {r.offset}: {r.reason}" for r in cursor.fetchall()]
    raise TooManyRejects(
        f"batch {tables.batch_id} of pipeline {pipeline.name!r}: expected at most {allowed} "
        f"records that do not decode, found {rejects} or more. Nothing was written. The first: "
        f"{'; '.join(shown)}. Correct the pipeline's value format, or raise max_rejects to keep such records "
        f"in exactbatch.rejected_record."
    )


def _cause(error: PySparkException | Py4JJavaError) -> str:
    """What a task raised, without the trace around it; for a worker that died, what Spark says of it."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage()).splitlines()[0]
    lines = str(error).splitlines()
    trace = [number for number, line in enumerate(lines) if line.startswith((" ", "\t"))]
    after = [line.strip() for line in lines[trace[-1] + 1 if trace else 0 :] if line.strip()]
    return "; ".join(after or lines[:1])
