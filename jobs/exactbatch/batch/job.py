"""The driver of a batch: read → decode → stage on executors, then publish; or commit each range separately.

The steps of a batch are in one module, in the order in which they run.
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypedDict
from uuid import UUID

import psycopg2
from psycopg2 import sql

from exactbatch.batch.by_partition.partition_commit import (
    Committed,
    commit_batch,
    commit_ranges,
    commit_staged,
)
from exactbatch.batch.by_partition.range_copy import RangeTask
from exactbatch.batch.publishing.fences import (
    check_publishable,
    check_results_exist,
    check_topic_ids,
    read_sink_facts,
)
from exactbatch.batch.publishing.outbox import noting
from exactbatch.batch.publishing.publish import Published, StageTimes, publish
from exactbatch.batch.rows.rejected import SHOWN_REJECTS, too_many_rejects
from exactbatch.batch.staging.repeats import check_repeats
from exactbatch.batch.staging.shares import Engine, Executors, count_spark_tasks
from exactbatch.batch.staging.stage import DirectStager
from exactbatch.batch.staging.stage_partition import PartitionStager
from exactbatch.batch.staging.staged_splits import close_partition, create_partition
from exactbatch.batch.staging.stager import Stager, stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, create_rows, hold_launch, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.batch.staging.uncastable import reject_refused, reject_uncastable
from exactbatch.batch.tested_versions import warn_if_untested
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, Fenced, TargetMismatch
from exactbatch.errors.sqlstates import is_row_error
from exactbatch.errors.translation import translate_errors
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import is_named
from exactbatch.ledger import (
    Batch,
    Ledger,
    bind_transaction,
    check_schema,
    ledger_session,
    target_transaction,
)
from exactbatch.model import Fingerprint
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planning.known_records import check_known_ranges
from exactbatch.postgres.catalog import Fact
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.capabilities import (
    AttachesPartitions,
    ChecksShared,
    KeepsEventTimes,
    PartitionStaging,
    TakesCheckedJson,
    TakesCopies,
)
from exactbatch.sinks.staged_rows import Place
from exactbatch.sinks.upsert.change_order import ChangesBehind
from exactbatch.sinks.values.checks import check_expressions
from exactbatch.sinks.writer import SinkWriter
from exactbatch.sinks.writers import find_writer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Launch:
    """One launch of a batch: what each of its steps needs.

    `epochs` has the leader epoch up to which each partition's log was processed, and `known` records of it.
    """

    executors: Executors
    connection: Connection
    pipeline: Pipeline
    writer: SinkWriter
    batch: Batch
    ranges: Sequence[OffsetRange]
    epochs: Mapping[tuple[str, int], int | None]
    known: Sequence[Fingerprint]
    settings: Settings
    times: StageTimes

    @property
    def name(self) -> str:
        """The batch, in messages."""
        return f"batch {self.batch.batch_id} of pipeline {self.pipeline.name!r}"

    @property
    def topics(self) -> list[str]:
        """The topics of the ranges, in order."""
        return sorted({range_.topic for range_ in self.ranges})

    @property
    def offsets(self) -> int:
        """How many offsets the ranges have."""
        return sum(map(len, self.ranges))


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
        warn_if_untested(connection.server_version)
        writer, batch, ranges, epochs, known = _load(connection, pipeline, batch_id, plan_id)
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
                Ledger(connection).batches.note_launch(batch, application_id)
                failpoint("launch.before_commit")
            failpoint("launch.after_commit")
            launch = _Launch(
                executors, connection, pipeline, writer, batch, ranges, epochs, known, settings, times
            )
            if pipeline.commit == "partition" and batch.kind == "advance":
                return _process_ranges(launch)
            return _process(launch)


def _load(
    connection: Connection, pipeline: Pipeline, batch_id: int, plan_id: UUID | None
) -> tuple[
    SinkWriter,
    Batch,
    tuple[OffsetRange, ...],
    Mapping[tuple[str, int], int | None],
    Sequence[Fingerprint],
]:
    """Return the writer with the epochs of positions, the batch, its ranges, and the leader epoch up to which each
    partition's log was processed, with records of it."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.check(pipeline)
        batch = ledger.batches.read(batch_id, plan_id)
        check_publishable(ledger, pipeline, batch)
        ranges, stored = ledger.batches.read_ranges(batch_id), ledger.plans.read_stored_offsets(pipeline)
        # A replay reads the log as it is now, including what replaced truncated records.
        epochs = {row.topic_partition: row.leader_epoch for row in stored if batch.kind == "advance"}
        writer = find_writer(pipeline.traits, ledger.registry.read_epochs(pipeline))
        return writer, batch, ranges, epochs, ledger.fingerprints.read(pipeline.name)


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
                Ledger(connection).batches.record_failure(batch, error)
        except (ExactbatchError, psycopg2.Error) as another:
            logger.warning("exactbatch status will not show this failure: %s", another)
        raise


def _process(launch: _Launch) -> Published:
    """Stage all ranges on the executors, and publish them in one transaction."""
    try:
        return _stage_and_publish(launch, may_attach=True)
    except _NotAttachable as error:
        logger.info(
            "batch %s: all ranges are staged again to be inserted, so that the records of refused rows become rejects: "
            "%s",
            launch.batch.batch_id,
            error.__cause__,
        )
    return _stage_and_publish(launch, may_attach=False)


class _NotAttachable(Exception):
    """The rows of a batch cannot become a partition of the target, because it refuses some of them."""


def _stage_and_publish(launch: _Launch, *, may_attach: bool) -> Published:
    """Stage and publish all ranges. Raises _NotAttachable, with `may_attach`, if others could be published without the
    rows that the target refuses."""
    pipeline, writer, executors = launch.pipeline, launch.writer, launch.executors
    broker = KafkaBroker(launch.settings.kafka)
    topic_ids, cluster_id = broker.cluster(launch.topics)
    check_topic_ids(launch.ranges, topic_ids)
    tables = StagingTables(launch.batch.batch_id, secrets.randbits(62))
    tasks = stage_tasks(
        pipeline,
        writer.traits,
        launch.ranges,
        launch.epochs,
        tables,
        launch.settings,
        executors.parallelism,
        cluster_id,
    )
    with hold_launch(launch.connection, launch.settings, pipeline, tables):
        direct = None if pipeline.is_transformed else DirectStager(executors, pipeline, tasks)
        stager: Stager = executors.transform(launch.connection, pipeline, tasks) if direct is None else direct
        with transaction(launch.connection) as cursor:
            _prepare_target(cursor, launch, stager.columns)
            partition = _partition_staging(cursor, launch, stager.columns) if may_attach else None
            seen = read_sink_facts(cursor, writer)
            # Checks read the text of documents.
            if direct is not None and not pipeline.row_checks and isinstance(writer, TakesCheckedJson):
                tables = replace(tables, checked=writer.checked_json(cursor, stager.columns))
                direct.stage_into(tables)
        if partition is None:
            return _stage_and_insert(launch, tables, stager, seen, broker, cluster_id)
        try:
            staged = _stage_partition(
                launch, tables, partition, PartitionStager(executors, pipeline, tasks, partition)
            )
        except TargetMismatch as error:
            if not pipeline.allows_rejects or not is_row_error(error.sqlstate):
                raise
            raise _NotAttachable from error
        return publish(
            launch.connection,
            pipeline,
            writer,
            plan_id=launch.batch.plan_id,
            tables=tables,
            columns=stager.columns,
            staged=staged,
            seen=seen,
            staging=partition,
            times=launch.times,
            **_identify_logs(launch, broker),
        )


def _prepare_target(cursor: Cursor, launch: _Launch, columns: Sequence[Column]) -> None:
    """Create or check the target, and forget what it holds of topics that the pipeline no longer loads."""
    pipeline, writer, batch = launch.pipeline, launch.writer, launch.batch
    ledger = Ledger(launch.connection)
    bind_transaction(launch.connection, pipeline)
    check_results_exist(cursor, ledger, pipeline, batch)
    writer.prepare(cursor, columns, evolve=pipeline.evolve)
    check_expressions(cursor, pipeline.name, columns, pipeline.row_checks)
    if isinstance(writer, ChecksShared):
        writer.check_shared(cursor, columns, ledger.registry.find_sharing(pipeline))
    with noting(cursor, pipeline, writer, columns) as outbox:
        if isinstance(writer, KeepsEventTimes):
            writer.forget_topics(cursor, ledger.registry.find_removed_topics(pipeline))
    if outbox is not None:  # windows may have become final
        outbox.write(batch)
    if batch.kind == "replay":
        writer.check_replay(cursor)


def _partition_staging(cursor: Cursor, launch: _Launch, columns: Sequence[Column]) -> PartitionStaging | None:
    """Return where rows are staged that become a partition of the target; None if they are inserted into it."""
    pipeline, writer = launch.pipeline, launch.writer
    if not isinstance(writer, AttachesPartitions):
        return None
    if not pipeline.has_row_per_record or pipeline.row_checks or pipeline.forward is not None:
        return None
    return writer.partition_staging(cursor, columns, batch_id=launch.batch.batch_id, offsets=launch.offsets)


def _stage_and_insert(
    launch: _Launch,
    tables: StagingTables,
    stager: Stager,
    seen: Sequence[Fact],
    broker: KafkaBroker,
    cluster_id: str | None,
) -> Published:
    """Stage all ranges, and insert their rows into the target."""
    pipeline, batch, connection = launch.pipeline, launch.batch, launch.connection
    with transaction(connection) as cursor:
        create_rows(cursor, tables, launch.writer.traits.staged_columns(stager.columns))
    failpoint("job.before_stage")
    launch.times.enter("stage")
    staged = stager.stage()
    launch.times.enter("check")
    _log_taken(batch.batch_id, staged.splits)
    failpoint("job.after_stage")
    staged = _without_uncastable(launch, tables, stager.columns, staged, cluster_id)
    repeats: frozenset[Place] = frozenset()
    while True:
        identified = _identify_logs(launch, broker)
        try:
            return publish(
                connection,
                pipeline,
                launch.writer,
                plan_id=batch.plan_id,
                tables=tables,
                columns=stager.columns,
                staged=staged,
                **identified,
                seen=seen,
                times=launch.times,
                repeats=repeats,
                may_reject=pipeline.rejects_allowed(staged.records) - staged.rejected,
            )
        except ChangesBehind as error:
            repeats |= frozenset(error.places)
            check_repeats(
                error.places,
                pipeline,
                launch.writer.traits,
                batch,
                launch.ranges,
                launch.settings,
                cluster_id,
            )
        except TargetMismatch as error:
            staged = _without_refused(launch, tables, stager.columns, staged, error, cluster_id)


class _Identified(TypedDict):
    """What publish() needs to know of the logs that were read."""

    fingerprints: Sequence[Fingerprint]
    topic_ids: Mapping[str, UUID]


def _identify_logs(launch: _Launch, broker: KafkaBroker) -> _Identified:
    """Identify the logs after the last record was read: if they are the plan's logs now, they were all along.

    Raises TopicRecreated and LogTruncated for a topic without an ID that is another one.
    """
    topic_ids = broker.topic_ids(launch.topics)
    fingerprints = broker.take_fingerprints(launch.ranges) if launch.batch.kind == "advance" else []
    check_known_ranges(broker, launch.ranges, launch.known)
    return {"fingerprints": fingerprints, "topic_ids": topic_ids}


def _stage_partition(
    launch: _Launch, tables: StagingTables, staging: PartitionStaging, stager: PartitionStager
) -> StagedBatch:
    """Stage all ranges into a table that can become a part of the target. Raises TooManyRejects."""
    connection, pipeline = launch.connection, launch.pipeline
    with transaction(connection) as cursor:
        create_partition(cursor, tables, staging)
    failpoint("job.before_stage")
    launch.times.enter("stage")
    staged = stager.stage()
    launch.times.enter("check")
    _log_taken(tables.batch_id, staged.splits)
    failpoint("job.after_stage")
    _check_rejects(launch, tables, staged, pipeline.rejects_allowed(staged.records))
    close_partition(connection, pipeline, tables)
    failpoint("job.after_close")
    with target_transaction(connection, pipeline) as cursor:
        staging.complete(cursor, identifier(tables.partition))
    return staged


def _log_taken(batch_id: int, outcomes: Sequence[Staged | Committed]) -> None:
    if fast_count := sum(outcome.fast_count for outcome in outcomes):
        records = sum(outcome.records for outcome in outcomes)
        logger.info(
            "batch %s: compiled code took %s of %s records", batch_id, f"{fast_count:,}", f"{records:,}"
        )


def _without_uncastable(
    launch: _Launch,
    tables: StagingTables,
    columns: Sequence[Column],
    staged: StagedBatch,
    cluster_id: str | None,
) -> StagedBatch:
    """Return what is staged without the rows that the target cannot hold. Raises TooManyRejects."""
    allowed = launch.pipeline.rejects_allowed(staged.records)
    _check_rejects(launch, tables, staged, allowed)
    staged = reject_uncastable(
        launch.connection,
        launch.pipeline,
        launch.writer,
        tables=tables,
        columns=columns,
        ranges=launch.ranges,
        staged=staged,
        limit=allowed - staged.rejected,
        settings=launch.settings,
        cluster_id=cluster_id,
    )
    _check_rejects(launch, tables, staged, allowed)
    return staged


def _without_refused(
    launch: _Launch,
    tables: StagingTables,
    columns: Sequence[Column],
    staged: StagedBatch,
    error: TargetMismatch,
    cluster_id: str | None,
) -> StagedBatch:
    """Return what is staged without the records that the target has refused.

    Raises the error if none are known or none may be rejected, and TooManyRejects.
    """
    allowed = launch.pipeline.rejects_allowed(staged.records)
    if not error.refused or not allowed:
        raise error
    launch.times.enter("check")
    logger.info("batch %s: %s records become rejects: %s", tables.batch_id, len(error.refused), error)
    rest = reject_refused(
        launch.connection,
        launch.pipeline,
        launch.writer,
        tables=tables,
        columns=columns,
        ranges=launch.ranges,
        staged=staged,
        refused=error.refused,
        limit=allowed - staged.rejected,
        settings=launch.settings,
        cluster_id=cluster_id,
    )
    if rest.rejected == staged.rejected:  # they are not in the log any more as they were staged
        raise error
    _check_rejects(launch, tables, rest, allowed)
    return rest


def _check_rejects(launch: _Launch, tables: StagingTables, staged: StagedBatch, allowed: int) -> None:
    """Raise TooManyRejects, with the first rejects, if there are more than the pipeline allows."""
    if staged.rejected <= allowed:
        return
    with transaction(launch.connection) as cursor:
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
        launch.pipeline,
        launch.name,
        batch_id=tables.batch_id,
        rejected=staged.rejected,
        records=staged.records,
        written=". Nothing was written.",
        first=first,
    )


def _process_ranges(launch: _Launch) -> Published:
    """Commit each range that is not committed yet, on the executors, and then the batch."""
    pipeline, batch, connection = launch.pipeline, launch.batch, launch.connection
    ledger, writer = Ledger(connection), launch.writer
    assert isinstance(writer, TakesCopies)  # the pipeline has checked not_copyable
    with target_transaction(connection, pipeline) as cursor:
        check_results_exist(cursor, ledger, pipeline, batch)
        writer.prepare(cursor, pipeline.value.columns, evolve=pipeline.evolve)
        writer.check_copyable(cursor, pipeline.value.columns)
        seen = writer.tables[-1].unusual_facts(cursor)
        ranges = ledger.batches.read_uncommitted_ranges(batch.batch_id)
    if ranges:
        topics = sorted({range_.topic for range_ in ranges})
        topic_ids, cluster_id = KafkaBroker(launch.settings.kafka).cluster(topics)
        check_topic_ids(ranges, topic_ids)
        slot_offsets = sum(map(len, ranges)) // launch.executors.parallelism
        known = defaultdict(list)
        for each in launch.known:
            if is_named(each.topic, each.topic_id):  # an ID tells as much
                known[each.topic_partition].append(each)
        tasks = [
            RangeTask(
                range=range_,
                leader_epoch=launch.epochs.get(range_.topic_partition),
                batch_id=batch.batch_id,
                plan_id=batch.plan_id,
                pipeline=pipeline,
                kafka=launch.settings.kafka,
                postgres=launch.settings.postgres,
                seen=seen,
                cluster_id=cluster_id,
                slot_offsets=slot_offsets,
                known=tuple(known[range_.topic_partition]),
            )
            for range_ in ranges
        ]
        failpoint("job.before_ranges")
        launch.times.enter("commit")
        limit = count_spark_tasks(tasks, pipeline.tuning.max_connections, launch.executors.parallelism)
        try:
            outcomes = launch.executors.run(tasks, commit_ranges, limit=limit, verb="commit")
        except TargetMismatch as error:
            if not pipeline.allows_rejects or not is_row_error(error.sqlstate):
                raise
            logger.info(
                "batch %s: ranges with rows that the target refuses are staged: %s", batch.batch_id, error
            )
            _stage_ranges(launch, tasks, cluster_id)
        else:
            _log_taken(batch.batch_id, outcomes)
        failpoint("job.after_ranges")
    launch.times.enter("publish")
    return commit_batch(
        connection, pipeline, batch.batch_id, batch.plan_id, launch.times, _take_fingerprints(launch)
    )


def _take_fingerprints(launch: _Launch) -> Sequence[Fingerprint]:
    """Return fingerprints of ranges that are committed. That Kafka cannot be read now changes nothing about them."""
    try:
        return KafkaBroker(launch.settings.kafka).take_fingerprints(launch.ranges)
    except ExactbatchError as error:
        logger.warning("batch %s: the ledger keeps no record of its ranges: %s", launch.batch.batch_id, error)
        return ()


def _stage_ranges(launch: _Launch, tasks: Sequence[RangeTask], cluster_id: str | None) -> None:
    """Stage and commit the ranges that are not committed yet, so that records of rows that the target refuses become
    rejects."""
    with transaction(launch.connection):
        left = Ledger(launch.connection).batches.read_uncommitted_ranges(launch.batch.batch_id)
    for task in tasks:
        if task.range in left:
            _stage_range(replace(launch, ranges=[task.range]), task, cluster_id)


def _stage_range(launch: _Launch, task: RangeTask, cluster_id: str | None) -> None:
    """Stage one range, and commit it without the records of rows that the target refuses."""
    pipeline, broker = launch.pipeline, KafkaBroker(launch.settings.kafka)
    tables = StagingTables(launch.batch.batch_id, secrets.randbits(62))
    parts = stage_tasks(
        pipeline,
        launch.writer.traits,
        launch.ranges,
        launch.epochs,
        tables,
        launch.settings,
        launch.executors.parallelism,
        cluster_id,
    )
    stager = DirectStager(launch.executors, pipeline, parts)
    with hold_launch(launch.connection, launch.settings, pipeline, tables):
        with transaction(launch.connection) as cursor:
            create_rows(cursor, tables, launch.writer.traits.staged_columns(stager.columns))
        staged = stager.stage()
        allowed = pipeline.rejects_allowed(staged.records)
        _check_rejects(launch, tables, staged, allowed)
        while True:
            check_topic_ids(launch.ranges, broker.topic_ids(launch.topics))
            check_known_ranges(broker, launch.ranges, launch.known)
            try:
                return commit_staged(
                    launch.connection,
                    task,
                    tables=tables,
                    columns=stager.columns,
                    staged=staged,
                    may_reject=allowed - staged.rejected,
                )
            except TargetMismatch as error:
                staged = _without_refused(launch, tables, stager.columns, staged, error, cluster_id)
