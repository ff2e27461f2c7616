"""The driver of a batch: read → decode → stage on executors, then publish; or commit each range separately."""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from uuid import UUID

import psycopg2
from psycopg2 import sql

from exactbatch.batch.by_partition.partition_commit import Committed, commit_batch, commit_ranges
from exactbatch.batch.by_partition.range_copy import RangeTask
from exactbatch.batch.publishing.early_inserts import EarlyInserts
from exactbatch.batch.publishing.fences import (
    check_publishable,
    check_results_exist,
    check_topic_ids,
    facts_of,
)
from exactbatch.batch.publishing.outbox import noting
from exactbatch.batch.publishing.publish import Published, publish
from exactbatch.batch.rows.rejects import SHOWN_REJECTS, too_many_rejects
from exactbatch.batch.stage_times import StageTimes
from exactbatch.batch.staging.direct import DirectStager
from exactbatch.batch.staging.engine import Engine, Executors
from exactbatch.batch.staging.shares import worth_sharing
from exactbatch.batch.staging.stage_partition import PartitionStager
from exactbatch.batch.staging.staged_pieces import close_partition, create_partition
from exactbatch.batch.staging.stager import Stager, stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, create_rows, hold_launch, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.batch.staging.uncastable import reject_uncastable
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, Fenced
from exactbatch.errors.translation import translate_errors
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, check_schema, ledger_session
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.catalog import is_plain
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.base import DirectStaging
from exactbatch.sinks.values.checks import check_expressions

logger = logging.getLogger(__name__)


def process_batch(
    engine: Engine, pipeline: Pipeline, batch_id: int, settings: Settings, plan_id: UUID | None = None
) -> Published:
    """Process a planned batch: stage its ranges on executors and publish them in one transaction.

    With commit="partition" an advance commits range by range instead; a replay does not.

    `plan_id` is the plan that the caller expects. Without it, the batch that has the number is processed.

    A batch that is committed already is left as it is. Raises BatchLost when the ledger went back in time and
    does not have the plan any more, and any other ExactbatchError; its `retryable` is true if the same batch
    may succeed on a retry.
    """
    with ledger_session(settings.postgres, "exactbatch", pipeline) as connection:
        check_schema(connection)
        batch, ranges, epochs = _load(connection, pipeline, batch_id, plan_id)
        if batch.status == "committed":
            logger.info("batch %s is committed already: nothing to do", batch_id)
            return Published(batch, wrote=False)
        where = f"batch {batch_id} of pipeline {pipeline.name!r}"
        with (
            _record_failure(settings, batch),
            translate_errors(),
            engine.executors(pipeline, where) as executors,
        ):
            times, application_id = StageTimes("prepare"), executors.application_id
            logger.info("batch %s: the Spark application is %s", batch_id, application_id or "not known")
            with transaction(connection):
                Ledger(connection).note_launch(batch, application_id)
                failpoint("launch.before_commit")
            failpoint("launch.after_commit")
            if pipeline.commit == "partition" and batch.kind == "advance":
                return _process_ranges(executors, connection, pipeline, batch, epochs, settings, times)
            return _process(executors, connection, pipeline, batch, ranges, epochs, settings, times)


def _load(
    connection: Connection, pipeline: Pipeline, batch_id: int, plan_id: UUID | None
) -> tuple[Batch, tuple[OffsetRange, ...], Mapping[tuple[str, int], int | None]]:
    """Return the batch, its ranges, and the leader epoch up to which each partition's log was processed."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        batch = ledger.batch(batch_id, plan_id)
        check_publishable(ledger, pipeline, batch)
        ranges, stored = ledger.ranges(batch_id), ledger.stored_offsets(pipeline)
        # A replay reads the log as it is now, including what replaced truncated records.
        epochs = {row.topic_partition: row.leader_epoch for row in stored if batch.kind == "advance"}
        return batch, ranges, epochs


@contextmanager
def _record_failure(settings: Settings, batch: Batch) -> Iterator[None]:
    """Record in the ledger that a batch fails, and why, for `exactbatch status`.

    On a separate connection, because the batch's may be what failed. If that fails as well, the batch's own
    error is still the one that is raised.
    """
    try:
        yield
    except Fenced:
        raise  # not a failure: another batch has taken this one's place
    except Exception as error:
        try:
            with (
                ledger_session(settings.postgres, "exactbatch failure") as connection,
                transaction(connection),
            ):
                Ledger(connection).record_failure(batch, error)
        except (ExactbatchError, psycopg2.Error) as another:
            logger.warning("exactbatch status will not show this failure: %s", another)
        raise


def _process(
    executors: Executors,
    connection: Connection,
    pipeline: Pipeline,
    batch: Batch,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    settings: Settings,
    times: StageTimes,
) -> Published:
    """Stage all ranges on the executors, and publish them in one transaction."""
    broker = KafkaBroker(settings.kafka)
    topics, offsets = sorted({range_.topic for range_ in ranges}), sum(map(len, ranges))
    topic_ids, cluster_id = broker.cluster(topics)
    check_topic_ids(ranges, topic_ids)
    tables = StagingTables(batch.batch_id, secrets.randbits(62))
    tasks = stage_tasks(pipeline, ranges, epochs, tables, settings, executors.parallelism, cluster_id)
    with hold_launch(connection, settings, pipeline, tables):
        direct = None if pipeline.is_transformed else DirectStager(executors, pipeline, tasks)
        stager: Stager = executors.transform(connection, pipeline, tasks) if direct is None else direct
        with transaction(connection) as cursor:
            check_results_exist(cursor, Ledger(connection), pipeline, batch)
            pipeline.sink.prepare(cursor, stager.columns, evolve=pipeline.evolve)
            check_expressions(cursor, pipeline.name, stager.columns, pipeline.checks)
            ledger = Ledger(connection)
            pipeline.sink.check_shared(cursor, stager.columns, ledger.sharing(pipeline))
            with noting(cursor, pipeline, stager.columns) as outbox:
                pipeline.sink.forget_topics(cursor, ledger.removed_topics(pipeline))
            if outbox is not None:  # windows may have become final
                outbox.write(batch)
            if batch.kind == "replay":
                pipeline.sink.check_replay(cursor)
            staging = (
                pipeline.sink.direct_staging(cursor, stager.columns, batch_id=batch.batch_id, offsets=offsets)
                if pipeline.has_row_per_record and not pipeline.checks and pipeline.forward is None
                else None
            )
            seen = facts_of(cursor, pipeline.sink)
            if direct is not None and not pipeline.checks:  # these read the text of documents
                tables = replace(tables, checked=pipeline.sink.checked_json(cursor, stager.columns))
                direct.stage_into(tables)
        if staging is not None:
            partition_stager = PartitionStager(executors, pipeline, tasks, staging)
            staged = _stage_partition(connection, pipeline, tables, staging, partition_stager, times)
            return publish(
                connection,
                pipeline,
                plan_id=batch.plan_id,
                tables=tables,
                columns=stager.columns,
                staged=staged,
                # Asked after the last record was read: if the ids are the plan's now, they were all along.
                topic_ids=broker.topic_ids(topics),
                seen=seen,
                staging=staging,
                times=times,
            )
        in_parts = (
            pipeline.sink.inserts_in_parts
            and is_plain(seen)
            and stager.can_split()
            # Rows that are forwarded are noted under the pipeline's lock, in the order of commits.
            and pipeline.forward is None
        )
        with transaction(connection) as cursor:
            for each in stager.split_tables() if in_parts else [tables]:
                create_rows(cursor, each, pipeline.sink.staged_columns(stager.columns))
            # An attempt that fails leaves dead rows behind, but not each of its retries.
            may_insert_early = in_parts and batch.kind == "advance" and not ledger.failing(pipeline, [])
        early = EarlyInserts(
            settings.postgres,
            pipeline,
            batch,
            tables=tables,
            columns=stager.columns,
            seen=seen,
            max_rejects=pipeline.rejects_allowed(offsets),
        )
        failpoint("job.before_stage")
        times.enter("stage")
        with closing(early):
            staged = stager.stage(early.add if may_insert_early else None)
            times.enter("check")
            _log_taken(batch.batch_id, staged.pieces)
            failpoint("job.after_stage")
            with early.kept_open():
                staged = _without_uncastable(
                    connection, pipeline, tables, stager.columns, ranges, staged, early, settings, cluster_id
                )
                # Asked after the last record was read: if the ids are the plan's now, they were all along.
                topic_ids = broker.topic_ids(topics)
            return publish(
                early.connection or connection,
                pipeline,
                plan_id=batch.plan_id,
                tables=tables,
                columns=stager.columns,
                staged=staged,
                topic_ids=topic_ids,
                seen=seen,
                early=early if may_insert_early else None,
                times=times,
            )


def _stage_partition(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    staging: DirectStaging,
    stager: PartitionStager,
    times: StageTimes,
) -> StagedBatch:
    """Stage all ranges into a table that can become a part of the target. Raises TooManyRejects."""
    with transaction(connection) as cursor:
        create_partition(cursor, tables, staging)
    failpoint("job.before_stage")
    times.enter("stage")
    staged = stager.stage()
    times.enter("check")
    _log_taken(tables.batch_id, staged.pieces)
    failpoint("job.after_stage")
    _check_rejects(connection, pipeline, tables, staged, pipeline.rejects_allowed(staged.records))
    close_partition(connection, pipeline, tables)
    failpoint("job.after_close")
    with transaction(connection) as cursor:
        staging.complete(cursor, identifier(tables.partition))
    return staged


def _log_taken(batch_id: int, outcomes: Sequence[Staged | Committed]) -> None:
    if taken := sum(outcome.taken for outcome in outcomes):
        records = sum(outcome.records for outcome in outcomes)
        logger.info("batch %s: compiled code took %s of %s records", batch_id, f"{taken:,}", f"{records:,}")


def _without_uncastable(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    columns: Sequence[Column],
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    early: EarlyInserts,
    settings: Settings,
    cluster_id: str | None,
) -> StagedBatch:
    """Return what is staged without the rows that the target cannot hold. Raises TooManyRejects."""
    allowed = pipeline.rejects_allowed(staged.records)
    _check_rejects(connection, pipeline, tables, staged, allowed)
    rest = reject_uncastable(
        connection,
        pipeline,
        tables=tables,
        columns=columns,
        ranges=ranges,
        staged=early.rest_of(staged),
        limit=allowed - staged.rejected,
        settings=settings,
        cluster_id=cluster_id,
    )
    staged = replace(staged, rows={**staged.rows, **rest.rows}, rejects={**staged.rejects, **rest.rejects})
    _check_rejects(connection, pipeline, tables, staged, allowed)
    return staged


def _check_rejects(
    connection: Connection, pipeline: Pipeline, tables: StagingTables, staged: StagedBatch, allowed: int
) -> None:
    """Raise TooManyRejects, with the first rejects, if there are more than the pipeline allows."""
    if staged.rejected <= allowed:
        return
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL(
                'select topic, partition, "offset", reason from {} where task_attempt = any(%s) '
                'order by topic, partition, "offset" limit %s'
            ).format(identifier(tables.rejects)),
            (staged.attempts, SHOWN_REJECTS),
        )
        first = [
            f"{row.topic}[{row.partition}] offset {row.offset}: {row.reason}" for row in cursor.fetchall()
        ]
    raise too_many_rejects(
        pipeline,
        f"batch {tables.batch_id} of pipeline {pipeline.name!r}",
        batch_id=tables.batch_id,
        rejected=staged.rejected,
        records=staged.records,
        written=". Nothing was written.",
        first=first,
    )


def _process_ranges(
    executors: Executors,
    connection: Connection,
    pipeline: Pipeline,
    batch: Batch,
    epochs: Mapping[tuple[str, int], int | None],
    settings: Settings,
    times: StageTimes,
) -> Published:
    """Commit each range that is not committed yet, on the executors, and then the batch."""
    with transaction(connection) as cursor:
        check_results_exist(cursor, Ledger(connection), pipeline, batch)
        pipeline.sink.prepare(cursor, pipeline.value.columns, evolve=pipeline.evolve)
        pipeline.sink.check_copyable(cursor, pipeline.value.columns)
        seen = pipeline.sink.tables[-1].unusual_facts(cursor)
        ranges = Ledger(connection).uncommitted_ranges(batch.batch_id)
    if ranges:
        topics = sorted({range_.topic for range_ in ranges})
        topic_ids, cluster_id = KafkaBroker(settings.kafka).cluster(topics)
        check_topic_ids(ranges, topic_ids)
        slot_offsets = sum(map(len, ranges)) // executors.parallelism
        tasks = [
            RangeTask(
                range=range_,
                leader_epoch=epochs.get(range_.topic_partition),
                batch_id=batch.batch_id,
                plan_id=batch.plan_id,
                pipeline=pipeline,
                kafka=settings.kafka,
                postgres=settings.postgres,
                seen=seen,
                cluster_id=cluster_id,
                slot_offsets=slot_offsets,
            )
            for range_ in ranges
        ]
        failpoint("job.before_ranges")
        times.enter("commit")
        limit = worth_sharing(tasks, pipeline.max_connections, executors.parallelism)
        outcomes = executors.run(tasks, commit_ranges, limit=limit, verb="commit")
        _log_taken(batch.batch_id, outcomes)
        failpoint("job.after_ranges")
    times.enter("publish")
    return commit_batch(connection, pipeline, batch.batch_id, batch.plan_id, times)
