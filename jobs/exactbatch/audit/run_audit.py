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

from exactbatch.audit.audit_result import (
    SHOWN,
    AuditReport,
    Compared,
    PartitionAudit,
    TargetAudit,
    join_reports,
)
from exactbatch.audit.check_access import check_visible, find_tables, find_unsafe_tables, lock_tables
from exactbatch.audit.derived import compare_batches, find_stale_rows, whole_batches
from exactbatch.audit.latest_values import LatestValues
from exactbatch.audit.located_rows import has_other_logs
from exactbatch.audit.places import find_places, find_sharing_pipelines, pipeline_counts_batches
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.unit_comparison import AuditedLog
from exactbatch.audit.units import WINDOW, Slice, divide_into_units
from exactbatch.audit.unordered_changes import unordered_changes
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
from exactbatch.sinks.capabilities import Compacts
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.tables.code_of_others import refuse_code_of_others
from exactbatch.sinks.writers import find_writer

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
    parts = pipeline.traits.parts
    reports = [
        (part.target, _audit(pipeline, part, settings, values=values, spark=spark, progress=progress))
        for part in parts
    ]
    return reports[0][1] if len(parts) == 1 else join_reports(reports)


def _audit(
    pipeline: Pipeline,
    traits: SinkTraits,
    settings: Settings,
    *,
    values: bool,
    spark: "SparkSession | None",
    progress: Callable[[int, int], None],
) -> AuditReport:
    """Audit one of the targets of a pipeline, whose traits these are."""
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
            writer = find_writer(traits)  # its tables are known without the epochs
            lock_tables(cursor, writer)
            refuse_code_of_others(cursor, writer.tables)
            ledger = Ledger(connection)
            ledger.registry.check(pipeline, may_double=True)  # results that are doubled are a finding
            writer = find_writer(traits, ledger.registry.read_epochs(pipeline))
            stored = ledger.plans.read_stored_offsets(pipeline)
            topics = pipeline.known_topics(stored)
            first_advanced = ledger.coverage.read_first_offsets(pipeline)
            # Compaction drops changes of an Upsert, and no row of an Append next to it.
            horizons = ledger.coverage.read_horizons(pipeline) if isinstance(writer, Compacts) else {}
            check_visible(cursor, pipeline, writer, values=values)
            unsafe = find_unsafe_tables(cursor, writer)
            snapshot.share(cursor)
            snapshot.lock(find_tables(writer))  # for all workers, until this connection ends its transaction
        if not topics:  # none has joined by the pipeline's pattern
            return AuditReport([], TargetAudit())
        sharing = find_sharing_pipelines(snapshot, pipeline, writer)
        expected = None
        if values:
            of_sink = ExpectedValues if writer.traits.keeps_every_row else LatestValues
            expected = of_sink(snapshot, pipeline, writer, settings.kafka)
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
            writer=writer,
            settings=settings,
            partitions=partitions,
            began=began,
            horizons={
                partition.topic_partition: horizons.get(partition.key, 0) for partition in partitions.values()
            },
            compacted=frozenset(broker.compacted(topics)),
            cluster_id=cluster_id,
            sharing=sharing,
            is_shared=bool(sharing) or has_other_logs(snapshot, pipeline),
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
        find_places(report.target, snapshot, pipeline, writer, topics, list(audits), rows_of_batches)
        report.target.unsafe = len(unsafe)
        report.target.notes += [*unsafe, *notes[:SHOWN]]
        if pipeline_counts_batches(pipeline, writer.traits):
            compare_batches(snapshot, pipeline, writer, report.partitions)
        if writer.traits.is_derived:
            report.target.stale = find_stale_rows(snapshot, pipeline, writer)
            if writer.traits.keeps_deletes:  # an Upsert
                report.target.unordered, notes = unordered_changes(
                    snapshot, pipeline, writer, _judged(audited, snapshot)
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
        if expected is not None and writer.traits.lineage == "batch":
            whole = whole_batches(snapshot, pipeline, earliest, audited.compacted)
            report.target.changed = expected.find_differing_batches(whole)
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
    traits = audited.writer.traits
    is_together = expected is not None and (traits.lineage == "batch" or not traits.keeps_every_row)
    if spark is not None and slices and not is_together:
        units = divide_into_units(slices, spark_parts(spark, audited.pipeline, total))
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
    units = divide_into_units(slices, workers)
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
    has_others = has_other_logs(snapshot, audited.pipeline)
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
