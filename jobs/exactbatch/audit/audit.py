"""Does the target hold exactly what the log holds? The log is read again and compared, offset by offset.

The auditor shares no code with the batch path: it has its own reader, and trusts the ledger only about the
offsets that it claims to cover. Workers compare units of offsets independently of each other, in windows, so that
memory does not grow with the log.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from psycopg2 import sql

from exactbatch.audit.access import check_visible, lock_tables, tables_of, unsafe_tables
from exactbatch.audit.batches import compare_batches, whole_batches
from exactbatch.audit.change_order import change_order_of, unordered_changes
from exactbatch.audit.derived import stale_rows
from exactbatch.audit.latest_values import LatestValues
from exactbatch.audit.places import find_places, pipeline_counts_batches, sharing_pipelines
from exactbatch.audit.report import SHOWN, AuditReport, Compared, PartitionAudit, TargetAudit, joined_reports
from exactbatch.audit.rows import has_other_incarnations
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.unit_comparison import AuditedLog
from exactbatch.audit.units import WINDOW, Slice, units_of
from exactbatch.audit.values import ExpectedValues
from exactbatch.audit.workers import (
    compare_here,
    compare_in_threads,
    compare_on_executors,
    local_workers,
    spark_parts,
)
from exactbatch.errors.translation import translate_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, check_schema, ledger_session
from exactbatch.offsets import PartitionKey, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from exactbatch.sinks.tables.code_of_others import refuse_code_of_others

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WINDOW: Final = WINDOW


@translate_errors()
def audit(
    pipeline: Pipeline,
    settings: Settings,
    *,
    values: bool = False,
    spark: "SparkSession | None" = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> AuditReport:
    """Compare log and target of a pipeline: on the executors of `spark`, without it in this process.

    Ledger and target are read in one snapshot, so that batches may commit meanwhile. With `values`, the
    records are decoded as well and compared with the rows, and partial results are computed again. `progress`
    receives the number of offsets that have been compared, and how many there are.

    Raises ConfigurationError if values cannot be compared, or if functions of others would get this login's rights (see
    refuse_code_of_others()), KafkaUnavailable, PostgresUnavailable,
    NotRegistered, TopicMissing, ReadFailed, TargetMismatch if the target does not exist, TasksFailed if Spark fails,
    TopicRecreated or PartitionGone if the processed log no longer exists, and StoredOffsetBeyondLog if it is shorter.

    If a batch writes several targets, each is compared by itself: the report has each partition once for each.
    """
    parts = pipeline.sink.parts
    if len(parts) == 1:
        return _audit(pipeline, pipeline, settings, values=values, spark=spark, progress=progress)
    return joined_reports(
        [
            (
                part.target,
                _audit(
                    pipeline,
                    pipeline.for_part(part),
                    settings,
                    values=values,
                    spark=spark,
                    progress=progress,
                ),
            )
            for part in parts
        ]
    )


def _audit(
    registered: Pipeline,
    pipeline: Pipeline,
    settings: Settings,
    *,
    values: bool,
    spark: "SparkSession | None",
    progress: Callable[[int, int], None],
) -> AuditReport:
    """Audit a pipeline with one of the targets of the registered one."""
    with (
        ledger_session(settings.postgres, "exactbatch audit") as connection,
        connect_arrow(settings.postgres, application="exactbatch audit", read_only=True) as arrow,
    ):
        check_schema(connection)
        broker = KafkaBroker(settings.kafka)
        snapshot = Snapshot(arrow, connection)
        with transaction(connection) as cursor:
            # Read only also for what the tables call.
            cursor.execute("set transaction isolation level repeatable read, read only")
            lock_tables(cursor, pipeline)
            refuse_code_of_others(cursor, pipeline.sink.tables)
            ledger = Ledger(connection)
            ledger.check_registered(registered, may_double=True)  # results that are doubled are a finding
            pipeline = pipeline.for_part(pipeline.sink.with_epochs(ledger.position_epochs(registered)))
            stored = ledger.stored_offsets(pipeline)
            topics = pipeline.known_topics(stored)
            first_advanced = ledger.first_advanced(pipeline)
            # Compaction drops changes of an Upsert, and no row of an Append next to it.
            horizons = ledger.horizons(pipeline) if pipeline.sink.compactor is not None else {}
            check_visible(cursor, pipeline, values=values)
            unsafe = unsafe_tables(cursor, pipeline)
            snapshot.share(cursor)
            snapshot.lock(tables_of(pipeline))  # for all workers, until this connection ends its transaction
        if not topics:  # none has joined by the pipeline's pattern
            return AuditReport([], TargetAudit())
        sharing = sharing_pipelines(snapshot, pipeline)
        expected = None
        if values:
            of_sink = ExpectedValues if pipeline.sink.keeps_every_row else LatestValues
            expected = of_sink(snapshot, pipeline, settings.kafka)
        heads = {offset.topic_partition: offset.next_offset for offset in stored}
        # The log is queried after the ledger, so that it has every stored offset of the snapshot.
        partitions = {
            partition.topic_partition: partition
            for partition in broker.processed_partitions(topics, stored)
            # A processed partition has a stored offset, unless somebody has deleted it.
            if partition.topic_partition in heads
            or (partition.topic_id, partition.partition) in first_advanced
        }
        began = {
            key: first_advanced.get((partition.topic_id, partition.partition), heads.get(key, 0))
            for key, partition in partitions.items()
        }
        first = _first_covered(snapshot, pipeline)
        audits = {
            key: PartitionAudit(
                *key, min(began[key], first.get(partition.key, began[key])), heads.get(key, 0)
            )
            for key, partition in partitions.items()
        }
        _, cluster_id = broker.cluster(topics)
        audited = AuditedLog(
            pipeline=pipeline,
            settings=settings,
            partitions=partitions,
            began=began,
            horizons={
                partition.topic_partition: horizons.get(partition.key, 0) for partition in partitions.values()
            },
            compacted=frozenset(broker.compacted(topics)),
            cluster_id=cluster_id,
            sharing=sharing,
            is_shared=bool(sharing) or has_other_incarnations(snapshot, pipeline),
        )
        rows_of_batches: Counter[int] = Counter()
        notes: list[str] = []
        earliest = {key: partition.earliest for key, partition in partitions.items()}
        for compared in _compare(audited, audits, snapshot, expected, spark, progress):
            earliest |= {key: max(offset, earliest[key]) for key, offset in compared.earliest.items()}
            rows_of_batches.update(compared.rows_of_batches)
            notes += compared.notes
            for result in compared.partitions:
                audits[result.topic, result.partition].merge(result)
        report = AuditReport(list(audits.values()), TargetAudit())
        if not audits:
            return report
        find_places(report.target, snapshot, pipeline, topics, list(audits), rows_of_batches)
        report.target.unsafe = len(unsafe)
        report.target.notes += [*unsafe, *notes[:SHOWN]]
        if pipeline_counts_batches(pipeline):
            compare_batches(snapshot, pipeline, report.partitions)
        if pipeline.sink.is_derived:
            report.target.stale = stale_rows(snapshot, pipeline)
            if (order := change_order_of(pipeline)) is not None:
                report.target.unordered, notes = unordered_changes(
                    snapshot, pipeline, order, _judged(audited, snapshot)
                )
                report.target.notes += notes
        if isinstance(expected, LatestValues):
            latest = expected.compare(report.partitions, earliest, audited.horizons, audited.compacted)
            report.target.stale, report.target.undecided = latest.wrong, latest.unknown
            report.target.unordered = latest.unordered
            report.target.notes += latest.notes
            if report.target.undecided:
                report.target.notes.append(
                    f"{report.target.undecided} keys: the log no longer holds the record of their row, so that nothing "
                    f"proves or disproves it"
                )
        if expected is not None and pipeline.sink.lineage == "batch":
            whole = whole_batches(snapshot, pipeline, earliest, audited.compacted)
            report.target.changed = expected.differing_batches(whole)
    return report


def _compare(
    audited: AuditedLog,
    audits: dict[TopicPartition, PartitionAudit],
    snapshot: Snapshot,
    expected: ExpectedValues | None,
    spark: "SparkSession | None",
    progress: Callable[[int, int], None],
) -> Sequence[Compared]:
    """Compare all partitions, and return what was found in parts of them."""
    slices = [
        (topic, audited.partitions[topic, number].topic_id, _slice(result))
        for (topic, number), result in audits.items()
    ]
    total, done = sum(len(slice_) for _, _, slice_ in slices), 0

    def count(offsets: int) -> None:
        nonlocal done
        done += offsets
        progress(done, total)

    # Partial results are compared when all of their records are in one temporary table, and the latest changes when
    # all of the log is folded in one.
    sink = audited.pipeline.sink
    is_together = expected is not None and (sink.lineage == "batch" or not sink.keeps_every_row)
    if spark is not None and slices and not is_together:
        units = units_of(slices, spark_parts(spark, audited.pipeline, total))
        return compare_on_executors(
            spark,
            audited,
            units,
            snapshot.export(),
            values=expected is not None,
            window=_WINDOW,
            progress=count,
        )
    workers = 1 if is_together else local_workers(total)
    units = units_of(slices, workers)
    if workers == 1:
        return compare_here(audited, units, snapshot, expected=expected, window=_WINDOW, progress=count)
    return compare_in_threads(
        audited,
        units,
        snapshot.export(),
        workers=workers,
        values=expected is not None,
        window=_WINDOW,
        progress=count,
    )


def _slice(result: PartitionAudit) -> Slice:
    """Return the whole of a partition. A stored offset that somebody has moved back may be below where it began."""
    return Slice(result.partition, min(result.from_offset, result.until_offset), result.until_offset)


def _judged(audited: AuditedLog, snapshot: Snapshot) -> sql.Composable:
    """Return a query (topic, partition, horizon) for the partitions whose positions are judged: none if a topic was
    created again, whose offsets begin again."""
    has_others = has_other_incarnations(snapshot, audited.pipeline)
    keys = [] if has_others else [*audited.horizons]
    return sql.SQL(
        "select * from unnest({}::text[], {}::int[], {}::bigint[]) l (topic, partition, horizon)"
    ).format(
        sql.Literal([topic for topic, _ in keys]),
        sql.Literal([partition for _, partition in keys]),
        sql.Literal([audited.horizons[key] for key in keys]),
    )


def _first_covered(snapshot: Snapshot, pipeline: Pipeline) -> dict[PartitionKey, int]:
    """Return the first offset of each partition that the ledger accounts for."""
    query = sql.SQL(
        "select topic, partition, topic_id::text, min(lower(offsets)) from exactbatch.coverage where pipeline = $1 "
        "group by topic, partition, topic_id"
    )
    return {
        (topic, partition, UUID(topic_id)): first
        for topic, partition, topic_id, first in snapshot.rows(query, pipeline.name)
    }
