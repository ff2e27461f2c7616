"""The driver of a batch: read → decode → stage on executors, then publish; or each range by itself."""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import psycopg2
from psycopg2 import sql
from pyspark.sql import SparkSession

from exactbatch.batch.direct import Direct, on_executors, stage_tasks
from exactbatch.batch.launch_timeout import watched
from exactbatch.batch.partition_commit import RangeTask, commit_batch, commit_range
from exactbatch.batch.publish import (
    Published,
    check_publishable,
    check_shared,
    check_topic_ids,
    facts_of,
    publish,
)
from exactbatch.batch.session import batch_session, end_of_jvm_told
from exactbatch.batch.staging import StagedBatch, StagingTables, create_rejects, create_rows, identifier
from exactbatch.batch.transform import Transformed
from exactbatch.batch.uncastable import sift
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, Fenced, TargetMismatch, TooManyRejects
from exactbatch.errors.translation import own_errors
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, check_schema, ledger_session
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, clear_errors, transaction
from exactbatch.settings import Settings
from exactbatch.sinks import Aggregate, Append

log = logging.getLogger(__name__)

_DROP_LOCK_TIMEOUT: Final = "2s"
_REJECTS_SHOWN: Final = 5


def process_batch(
    spark: SparkSession, pipeline: Pipeline, batch_id: int, settings: Settings, plan_id: UUID | None = None
) -> Published:
    """Process a planned batch: stage its ranges on executors and publish them in one transaction.

    With commit="partition" an advance commits range by range instead; a replay does not.

    `plan_id` is the plan that the caller means. A caller that knows only the number gets the batch that has it.

    A batch that is committed already is left as it is. Raises BatchLost when the ledger went back in time and does
    not have the plan any more, and any other ExactbatchError; its `retryable` tells
    whether the same batch may succeed when it is tried again.
    """
    with ledger_session(settings.postgres, "exactbatch", pipeline) as connection:
        check_schema(connection)
        batch, ranges, epochs = _load(connection, pipeline, batch_id, plan_id)
        if batch.status == "committed":
            log.info("batch %s is committed already: nothing to do", batch_id)
            return Published(batch, wrote=False)
        where = f"batch {batch_id} of pipeline {pipeline.name!r}"
        with (
            _failure_noted(settings, batch),
            own_errors(),
            end_of_jvm_told(),
            watched(spark, pipeline.launch_timeout, where),
            batch_session(spark, pipeline) as session,
        ):
            if pipeline.commit == "partition" and batch.kind == "advance":
                return _process_ranges(session, connection, pipeline, batch, epochs, settings)
            return _process(session, connection, pipeline, batch, ranges, epochs, settings)


def _process(
    spark: SparkSession,
    connection: Connection,
    pipeline: Pipeline,
    batch: Batch,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    settings: Settings,
) -> Published:
    """Stage all ranges on the executors, and publish them in one transaction."""
    kafka = KafkaBroker(settings.kafka)
    topics = sorted({each.topic for each in ranges})
    topic_ids, cluster_id = kafka.cluster(topics)
    check_topic_ids(ranges, topic_ids)
    tables = StagingTables(batch.batch_id, secrets.randbits(62))
    parallelism = spark.sparkContext.defaultParallelism
    tasks = stage_tasks(pipeline, ranges, epochs, tables, settings, parallelism, cluster_id)
    with _launch(connection, settings, pipeline, tables):
        way = (
            Transformed(spark, pipeline, tasks) if pipeline.is_transformed else Direct(spark, pipeline, tasks)
        )
        with transaction(connection) as cursor:
            _check_results_there(cursor, Ledger(connection), pipeline, batch)
            pipeline.sink.prepare(cursor, way.columns, evolve=pipeline.evolve)
            check_shared(cursor, pipeline, way.columns, Ledger(connection).sharing(pipeline))
            if isinstance(pipeline.sink, Aggregate):
                pipeline.sink.leave_topics(cursor, pipeline.name, pipeline.topics)
            if batch.kind == "replay":
                pipeline.sink.check_replay(cursor)
            seen = facts_of(cursor, pipeline.sink)
        with transaction(connection) as cursor:
            create_rows(cursor, tables, pipeline.sink.staged_columns(way.columns))
        failpoint("job.before_stage")
        staged = way.stage(connection)
        failpoint("job.after_stage")
        staged = _without_misfits(
            connection, pipeline, tables, way.columns, ranges, staged, settings, cluster_id
        )
        return publish(
            connection,
            pipeline,
            plan_id=batch.plan_id,
            tables=tables,
            columns=way.columns,
            staged=staged,
            # Asked after the last record was read: if the ids are the plan's now, they were all along.
            topic_ids=kafka.topic_ids(topics),
            seen=seen,
        )


def _check_results_there(cursor: Cursor, ledger: Ledger, pipeline: Pipeline, batch: Batch) -> None:
    """Raise TargetMismatch when a table is gone that earlier batches have committed into: a new one would lack
    their rows. A replay may make it anew."""
    if batch.kind == "replay" or not ledger.has_results(pipeline):
        return
    for table in pipeline.sink.tables:
        if not table.exists(cursor):
            raise TargetMismatch(
                f"target {pipeline.sink.target}: the table {table.written} is gone, although batches of pipeline "
                f"{pipeline.name!r} have committed into it. Nothing was written. Restore it; or make it anew "
                f"from the log: `exactbatch replay {pipeline.name}` over what it held creates it."
            )


@contextmanager
def _failure_noted(settings: Settings, batch: Batch) -> Iterator[None]:
    """Let `exactbatch status` tell that a batch fails, and why.

    By a connection of its own, because the batch's may be what failed. Where that fails as well, the batch's
    own error is still the one to raise.
    """
    try:
        yield
    except Fenced:
        raise  # nothing has failed: another batch has taken this one's place
    except Exception as error:
        try:
            with (
                ledger_session(settings.postgres, "exactbatch failure") as connection,
                transaction(connection),
            ):
                Ledger(connection).note_failure(batch, error)
        except (ExactbatchError, psycopg2.Error) as another:
            log.warning("exactbatch status will not tell of this failure: %s", another)
        raise


def _load(
    connection: Connection, pipeline: Pipeline, batch_id: int, plan_id: UUID | None
) -> tuple[Batch, tuple[OffsetRange, ...], Mapping[tuple[str, int], int | None]]:
    """The batch, its ranges, and the leader epoch up to which each partition's log was processed."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        batch = ledger.batch(batch_id, plan_id)
        check_publishable(ledger, pipeline, batch)
        ranges, stored = ledger.ranges(batch_id), ledger.stored_offsets(pipeline)
        # A replay reads the log as it is now: what was cut off and written anew is what it shall hold.
        epochs = {(e.topic, e.partition): e.leader_epoch for e in stored if batch.kind == "advance"}
        return batch, ranges, epochs


def _process_ranges(
    spark: SparkSession,
    connection: Connection,
    pipeline: Pipeline,
    batch: Batch,
    epochs: Mapping[tuple[str, int], int | None],
    settings: Settings,
) -> Published:
    """Commit each range that is left by itself, on the executors, and then the batch."""
    assert isinstance(pipeline.sink, Append)  # the pipeline takes no other
    with transaction(connection) as cursor:
        _check_results_there(cursor, Ledger(connection), pipeline, batch)
        pipeline.sink.prepare(cursor, pipeline.value.columns, evolve=pipeline.evolve)
        pipeline.sink.check_copied_into(cursor, pipeline.value.columns)
        seen = facts_of(cursor, pipeline.sink)
        left = Ledger(connection).uncommitted_ranges(batch.batch_id)
    if left:
        topic_ids, cluster_id = KafkaBroker(settings.kafka).cluster(sorted({each.topic for each in left}))
        check_topic_ids(left, topic_ids)
        tasks = [
            RangeTask(
                range=each,
                leader_epoch=epochs.get((each.topic, each.partition)),
                batch_id=batch.batch_id,
                plan_id=batch.plan_id,
                pipeline=pipeline,
                kafka=settings.kafka,
                postgres=settings.postgres,
                seen=seen,
                cluster_id=cluster_id,
            )
            for each in left
        ]
        failpoint("job.before_ranges")
        on_executors(spark, tasks, commit_range, most=pipeline.max_connections, what="commit")
        failpoint("job.after_ranges")
    return commit_batch(connection, pipeline, batch.batch_id, batch.plan_id)


@contextmanager
def _launch(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    tables: StagingTables,
) -> Iterator[None]:
    """A launch, whose staging tables are dropped at the end whatever happens. That of rejects is there at once:
    a transform may start jobs while it is planned.

    The launch is an advisory lock of a transaction that stays open, on a connection of its own: as long as it is
    held, no other launch takes these tables for leftovers. A pooler in any mode keeps a transaction on one server
    connection, and the lock ends with it. The transaction has neither a snapshot nor an id: it holds up no vacuum.
    """
    with ledger_session(settings.postgres, "exactbatch launch", pipeline) as holder:
        try:
            with clear_errors(holder):
                ledger = Ledger(holder)
                _drop_leftovers(holder, ledger)
                _hold(holder, ledger, tables.launch)
            with transaction(connection) as cursor:
                create_rejects(cursor, tables)
            yield
        finally:
            _drop(holder, tables.rows, tables.rejects, tables.lineage)


def _hold(holder: Connection, ledger: Ledger, launch: int) -> None:
    """Begin the transaction that is the launch; the driver says nothing in it while executors read."""
    ledger.try_lock_launch(launch)
    with holder.cursor() as cursor:
        cursor.execute("set local idle_in_transaction_session_timeout to 0")


def _drop_leftovers(holder: Connection, ledger: Ledger) -> None:
    """Drop the tables of launches whose transaction is gone."""
    by_launch: dict[int, list[str]] = {}
    for table in ledger.staging_tables():
        if (launch := StagingTables.launch_of(table)) is not None:
            by_launch.setdefault(launch, []).append(table)
    for launch, names in by_launch.items():
        # A launch holds its lock before it has tables: one whose lock is free does not come back.
        if ledger.try_lock_launch(launch):
            _drop(holder, *names)
    holder.rollback()


def _drop(holder: Connection, *tables: str) -> None:
    """End the transaction that is open, and drop staging tables in one of their own. What Postgres prevents, by a
    lock or a lost connection, is left to the next launch."""
    try:
        holder.rollback()
        with holder, holder.cursor() as cursor:
            cursor.execute("set local lock_timeout to %s", (_DROP_LOCK_TIMEOUT,))
            for table in tables:
                cursor.execute(sql.SQL("drop table if exists {}").format(identifier(table)))
    except psycopg2.Error as error:
        log.warning("staging tables %s stay until the next launch drops them: %s", ", ".join(tables), error)


def _without_misfits(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    columns: Sequence[Column],
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    settings: Settings,
    cluster_id: str | None,
) -> StagedBatch:
    """What is staged without the rows that the target cannot hold, unless that makes too many rejects."""
    allowed = pipeline.rejects_allowed(staged.records)
    _check_rejects(connection, pipeline, tables, staged, allowed)
    sifted = sift(
        connection,
        pipeline,
        tables=tables,
        columns=columns,
        ranges=ranges,
        staged=staged,
        most=allowed - staged.rejected,
        settings=settings,
        cluster_id=cluster_id,
    )
    _check_rejects(connection, pipeline, tables, sifted, allowed)
    return sifted


def _check_rejects(
    connection: Connection, pipeline: Pipeline, tables: StagingTables, staged: StagedBatch, allowed: int
) -> None:
    """Raise TooManyRejects, naming the first bad records, when there are more than the pipeline allows."""
    if staged.rejected <= allowed:
        return
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL(
                'select topic, partition, "offset", reason from {} where task_attempt = any(%s) '
                'order by topic, partition, "offset" limit %s'
            ).format(identifier(tables.rejects)),
            (staged.attempts, _REJECTS_SHOWN),
        )
        shown = [f"{r.topic}[{r.partition}] offset {r.offset}: {r.reason}" for r in cursor.fetchall()]
    raise TooManyRejects(
        f"batch {tables.batch_id} of pipeline {pipeline.name!r}: "
        f"{pipeline.too_many_rejects(staged.rejected, staged.records)}. Nothing was written. "
        f"The first: {'; '.join(shown)}. Correct the pipeline's value format, or raise max_rejects to "
        f"keep such records in exactbatch.rejected_record."
    )
