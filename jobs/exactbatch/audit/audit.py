"""Does the target hold exactly what the log holds? The log is read again and compared, offset by offset.

The auditor shares no code with the batch path: it has its own reader, and trusts the ledger only about the
offsets that it claims to cover. It works through windows of offsets, so that its memory does not grow with the
log.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence, Set

from exactbatch.audit.access import check_visible, lock_tables, tables_of, unsafe_tables
from exactbatch.audit.batches import compare_batches
from exactbatch.audit.derived import stale_rows
from exactbatch.audit.partition import PartitionComparison
from exactbatch.audit.places import find_places, pipeline_counts_batches, sharing_pipelines
from exactbatch.audit.report import AuditReport, TargetAudit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors.translation import translate_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, check_schema, ledger_session
from exactbatch.model import Covered, LogPartition
from exactbatch.offsets import PartitionKey
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings


@translate_errors()
def audit(
    pipeline: Pipeline,
    settings: Settings,
    *,
    values: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> AuditReport:
    """Compare log and target of a pipeline, partition by partition.

    Ledger and target are read in one snapshot, so that batches may commit meanwhile. With `values`, the
    records are decoded as well and compared with the rows, and partial results are computed again. `progress`
    receives the number of offsets that have been compared, and how many there are.

    Raises ConfigurationError if values cannot be compared, KafkaUnavailable, PostgresUnavailable,
    NotRegistered, TopicMissing, ReadFailed, TargetMismatch if the target does not exist, and TopicRecreated or
    PartitionGone if the processed log no longer exists.
    """
    with ledger_session(settings.postgres, "exactbatch audit") as connection:
        check_schema(connection)
        broker = KafkaBroker(settings.kafka)
        with connect_arrow(settings.postgres, application="exactbatch audit", read_only=True) as arrow:
            snapshot = Snapshot(arrow, connection)
            with transaction(connection) as cursor:
                cursor.execute("set transaction isolation level repeatable read")
                lock_tables(cursor, pipeline)
                ledger = Ledger(connection)
                ledger.check_registered(pipeline, may_double=True)  # results that are doubled are a finding
                coverage, stored = ledger.coverage(pipeline), ledger.stored_offsets(pipeline)
                began = ledger.first_advanced(pipeline)
                horizons = ledger.horizons(pipeline)
                check_visible(cursor, pipeline, values=values)
                unsafe = unsafe_tables(cursor, pipeline)
                snapshot.share(cursor)
                snapshot.lock(tables_of(pipeline))
            # The log is queried after the ledger, so that it has every stored offset of the snapshot.
            partitions = broker.processed_partitions(pipeline.topics, stored)
            heads = {offset.topic_partition: offset.next_offset for offset in stored}
            _, cluster_id = broker.cluster(pipeline.topics)
            compacted = broker.compacted(pipeline.topics)
            expected = ExpectedValues(snapshot, connection, pipeline, settings.kafka) if values else None
            by_key: dict[PartitionKey, list[Covered]] = defaultdict(list)
            for covered in coverage:
                by_key[covered.key].append(covered)
            comparisons = [
                PartitionComparison(
                    pipeline,
                    settings,
                    snapshot,
                    partition,
                    by_key[partition.key],
                    heads.get(partition.topic_partition, 0),
                    began.get((partition.topic_id, partition.partition)),
                    horizons.get(partition.key, 0),
                    compacted=partition.topic in compacted,
                    expected=expected,
                    cluster_id=cluster_id,
                )
                for partition in partitions
                # A processed partition has a stored offset, unless somebody has deleted it.
                if partition.topic_partition in heads or (partition.topic_id, partition.partition) in began
            ]
            sharing = sharing_pipelines(snapshot, pipeline)
            total, done = sum(comparison.span for comparison in comparisons), 0
            for comparison in comparisons:
                for span in comparison.run(sharing):
                    done += span
                    progress(done, total)
            report = AuditReport([comparison.result for comparison in comparisons], TargetAudit())
            if not comparisons:
                return report
            audited = [(partition.topic, partition.partition) for partition in report.partitions]
            find_places(report.target, snapshot, pipeline, audited)
            report.target.unsafe = len(unsafe)
            report.target.notes += unsafe
            if pipeline_counts_batches(pipeline):
                compare_batches(snapshot, pipeline, coverage, report.partitions)
            if pipeline.sink.is_derived:
                report.target.stale = stale_rows(snapshot, pipeline)
            if expected is not None and pipeline.sink.lineage == "batch":
                whole = _whole_batches(coverage, partitions, compacted)
                report.target.changed = expected.differing_batches(whole)
        return report


def _whole_batches(
    coverage: Sequence[Covered], partitions: Sequence[LogPartition], compacted: Set[str]
) -> list[int]:
    """Return the batches all of whose records are still in the log."""
    earliest = {partition.topic_partition: partition.earliest for partition in partitions}
    cut = {
        row.batch_id
        for row in coverage
        if row.topic in compacted or row.from_offset < earliest.get(row.topic_partition, math.inf)
    }
    return sorted({row.batch_id for row in coverage if row.batch_id is not None} - cut)
