"""Does the target hold exactly what the log holds? The log is read again and compared, offset by offset.

The auditor shares no code with the batch path: it has its own reader, and trusts the ledger only about the
offsets that it claims to cover. It works through windows of offsets, so that its memory does not grow with the
log.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence, Set

from psycopg2 import sql

from exactbatch.audit.access import check_visible, unsafe_tables
from exactbatch.audit.batches import compare_batches
from exactbatch.audit.derived import stale_rows
from exactbatch.audit.partition import PartitionComparison
from exactbatch.audit.places import find_places, pipeline_counts_batches, sharing_pipelines
from exactbatch.audit.report import AuditReport, TargetAudit
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors.translation import own_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, check_schema, ledger_session
from exactbatch.model import Covered, LogPartition
from exactbatch.offsets import PartitionKey
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection, connect_arrow
from exactbatch.postgres.connection import Cursor, transaction
from exactbatch.settings import Settings


@own_errors()
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
        kafka = KafkaBroker(settings.kafka)
        with connect_arrow(
            settings.postgres, application="exactbatch audit", read_only=True
        ) as results_connection:
            with transaction(connection) as cursor:
                cursor.execute("set transaction isolation level repeatable read")
                ledger = Ledger(connection)
                ledger.check_registered(pipeline, may_double=True)  # what is there twice is a finding
                coverage, stored = ledger.coverage(pipeline), ledger.stored_offsets(pipeline)
                began = ledger.first_advanced(pipeline)
                horizons = ledger.horizons(pipeline)
                check_visible(cursor, pipeline, values=values)
                unsafe = unsafe_tables(cursor, pipeline)
                _share_snapshot(cursor, results_connection)
            # The log is asked after the ledger: it holds every stored offset that was seen.
            partitions = kafka.processed_partitions(pipeline.topics, stored)
            heads = {(each.topic, each.partition): each.next_offset for each in stored}
            _, cluster_id = kafka.cluster(pipeline.topics)
            compacted = kafka.compacted(pipeline.topics)
            expected = (
                ExpectedValues(results_connection, connection, pipeline, settings.kafka) if values else None
            )
            by_key: dict[PartitionKey, list[Covered]] = defaultdict(list)
            for covered in coverage:
                by_key[covered.key].append(covered)
            comparisons = [
                PartitionComparison(
                    pipeline,
                    settings,
                    connection,
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
                if (partition.topic, partition.partition) in heads
                or (partition.topic_id, partition.partition) in began
            ]
            sharing = sharing_pipelines(results_connection, pipeline)
            total, done = sum(comparison.span for comparison in comparisons), 0
            for comparison in comparisons:
                for span in comparison.run(results_connection, sharing):
                    done += span
                    progress(done, total)
            report = AuditReport([comparison.result for comparison in comparisons], TargetAudit())
            if not comparisons:
                return report
            audited = [(partition.topic, partition.partition) for partition in report.partitions]
            find_places(report.target, results_connection, connection, pipeline, audited)
            report.target.unsafe = len(unsafe)
            report.target.notes += unsafe
            if pipeline_counts_batches(pipeline):
                compare_batches(results_connection, connection, pipeline, coverage, report.partitions)
            if pipeline.sink.is_derived:
                report.target.stale = stale_rows(results_connection, connection, pipeline)
            if expected is not None and pipeline.sink.lineage == "batch":
                whole = _whole_batches(coverage, partitions, compacted)
                report.target.changed = expected.differing_batches(whole)
        return report


def _whole_batches(
    coverage: Sequence[Covered], partitions: Sequence[LogPartition], compacted: Set[str]
) -> list[int]:
    """The batches all of whose records the log still holds."""
    earliest = {(each.topic, each.partition): each.earliest for each in partitions}
    cut = {
        each.batch_id
        for each in coverage
        if each.topic in compacted or each.from_offset < earliest.get((each.topic, each.partition), math.inf)
    }
    return sorted({each.batch_id for each in coverage if each.batch_id is not None} - cut)


def _share_snapshot(cursor: Cursor, results: ArrowConnection) -> None:
    """Let the connection that reads the results see what this transaction sees, for as long as it lasts."""
    cursor.execute("select pg_export_snapshot()")
    (snapshot,) = cursor.fetchone()
    with results.cursor() as other:
        other.execute("set transaction isolation level repeatable read")
        statement = sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot))
        other.execute(statement.as_string(cursor))
