"""Compare the rows of a derived target with those that its lineage table gives; all are computed again.

The sink writes the queries, apart from the code that derives the target. Values are compared as the bytes that
Postgres stores, because its `=` holds for values that differ: text in another case, an interval of 30 days and a
month, 1.0 and 1.00. Rows are paired by their keys, with `=`, as a unique constraint does; keys are compared by
that alone unless the sink names them among the compared columns.

Where an offset may have any number of rows, numbers of rows are compared batch by batch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from psycopg2 import sql

from exactbatch.audit.audit_result import PartitionAudit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.capabilities import Compacts, ComparesTarget, Comparison
from exactbatch.sinks.values.null_safe_groups import column_list
from exactbatch.sinks.writer import SinkWriter

# How many expected and actual rows have no counterpart or other bytes, and how many have several counterparts.
_DIFFERENCE: Final = (
    "select count(*) filter (where m.{present} is null or t.{present} is null or {differ}) "
    "+ count(*) filter (where m.{present}) - (select count(*) from expected) "
    "+ count(*) filter (where t.{present}) - ({actual_count}) "
    "from (select *{image}, true as {present} from expected) m "
    "full join (select *{image}, true as {present} from actual) t on {same_row}"
)
_PRESENT: Final = sql.Identifier("exactbatch present")
_IMAGE: Final = sql.Identifier("exactbatch image")
_MOST_COLUMNS: Final = 800
# The number of records that the rows of a batch come from.
_RECORDS: Final = "count(distinct (kafka_topic, kafka_partition, kafka_offset))"
# For each batch, how many offsets it still covers, and how many it was planned for.
_LEFT: Final = """
left join (
    select batch_id, sum(upper(offsets) - lower(offsets)) as covered
    from exactbatch.coverage where pipeline = $1 group by batch_id
) l using (batch_id)
left join (
    select r.batch_id, sum(r.until_offset - r.from_offset) as span,
           bool_or(r.from_offset < h."offset") as is_compacted
    from exactbatch.batch_range r
    left join exactbatch.replay_horizon h on h.pipeline = $1 and h.topic_id = r.topic_id
        and h.partition = r.partition and {compacts}
    where r.batch_id in (select batch_id from exactbatch.batch where pipeline = $1)
    group by r.batch_id
) p using (batch_id)
"""
# Batches that no replay has cut and whose changes were not compacted, and batches that cover nothing any more.
_WHOLE: Final = """
and case b.pruned
    when 'none' then true
    when 'part' then false
    when 'whole' then b.status = 'committed'
        and not (exists (select from exactbatch.replay_horizon h where h.pipeline = $1) and {compacts})
    else coalesce(l.covered, p.span) = p.span and p.is_compacted is not true
end
"""
# A batch that covers any offsets: its own rows of coverage say so, or it was folded.
_COVERS: Final = "(c.batch_id is not null or coalesce(b.pruned <> 'none', false))"


def find_stale_rows(snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter) -> int:
    """Return how many keys have a wrong row in a derived target, or lack one."""
    if not isinstance(writer, ComparesTarget):
        return 0
    comparison = writer.compare_target(
        None if pipeline.is_transformed else writer.traits.own_columns(pipeline.value.columns),
        snapshot.list_types(writer.tables[-1].identifier),
        snapshot.list_types(writer.lineage_table.identifier),
    )
    query = sql.SQL("with expected as ({}), actual as ({}) {}").format(
        comparison.expected, comparison.actual, difference(comparison)
    )
    return int(snapshot.rows(query)[0][0])


def difference(comparison: Comparison) -> sql.Composable:
    """Return a query that counts what differs between the CTEs `expected` and `actual` of a comparison."""
    conditions: list[sql.Composable] = []
    image: sql.Composable = sql.SQL("")
    if comparison.compared:
        image, differ = images_differ(comparison.compared, "m", "t")
        conditions.append(differ)
    if comparison.also_wrong is not None:
        conditions.append(comparison.also_wrong)
    return sql.SQL(_DIFFERENCE).format(
        present=_PRESENT,
        image=image,
        same_row=comparison.same_row,
        differ=sql.SQL(" or ").join(conditions or [sql.SQL("false")]),
        actual_count=comparison.actual_count,
    )


def images_differ(names: Sequence[str], one: str, other: str) -> tuple[sql.Composable, sql.Composable]:
    """Return what to add to the columns of two relations that are joined, and the condition that columns of the two
    differ in any byte.

    A join has at most 1,664 columns: of many, the bytes become one column of each relation.
    """
    if len(names) <= _MOST_COLUMNS:
        columns = [column_list(names, of=each) for each in (one, other)]
        return sql.SQL(""), sql.SQL("record_image_ne(row({}), row({}))").format(*columns)
    image = sql.SQL(", row({}) as {}").format(column_list(names), _IMAGE)
    return image, sql.SQL("record_image_ne({}, {})").format(
        *(sql.SQL(".").join([sql.Identifier(each), _IMAGE]) for each in (one, other))
    )


def compare_batches(
    snapshot: Snapshot,
    pipeline: Pipeline,
    writer: SinkWriter,
    audits: Sequence[PartitionAudit],
) -> None:
    """Compare the number of rows batch by batch, and note each difference at the first offset that the batch covers.

    A batch that covers any offset has as many rows as when it was committed, and any other batch has none.

    If rows carry offsets, replays retract the rows of some offsets of a batch, and the ledger does not know how many
    rows remain. Such batches are left out.
    """
    by_record = writer.traits.lineage == "record"
    partitions = {(audit.topic, audit.partition): audit for audit in audits}
    first = _first_covered(snapshot, pipeline)
    for batch_id, expected, rows, expected_records, records in snapshot.rows(
        counts_of_batches(writer), pipeline.name
    ):
        covered = first.get(batch_id)
        # A batch may cover partitions of a topic that the pipeline no longer has.
        where = audits[0] if covered is None else partitions.get(covered[:2], audits[0])
        at = np.array([] if covered is None else [covered[2]], np.int64)
        where.rows += 0 if by_record else rows
        for finding, count in (
            (where.missing, max(expected - rows, expected_records - records)),
            (where.unexpected, max(rows - expected, records - expected_records)),
        ):
            if count > 0:
                finding.add(at)
                finding.count += count - len(at)


def _first_covered(snapshot: Snapshot, pipeline: Pipeline) -> dict[int, tuple[str, int, int]]:
    """Return topic, partition and offset of the first offset that each batch covers."""
    query = sql.SQL(
        "select distinct on (batch_id) batch_id, topic, partition, lower(offsets) from exactbatch.coverage "
        "where pipeline = $1 and batch_id is not null order by batch_id, topic, topic_id, partition, lower(offsets)"
    )
    return {
        batch_id: (topic, partition, offset)
        for batch_id, topic, partition, offset in snapshot.rows(query, pipeline.name)
    }


def whole_batches(
    snapshot: Snapshot, pipeline: Pipeline, earliest: Mapping[TopicPartition, int], compacted: Collection[str]
) -> list[int]:
    """Return the batches all of whose records are still in the log, which starts at `earliest` in each partition."""
    query = sql.SQL(
        "select c.batch_id from exactbatch.coverage c left join unnest({topics}::text[], {partitions}::int[], "
        "{earliest}::bigint[]) p (topic, partition, earliest) using (topic, partition) "
        "where c.pipeline = $1 and c.batch_id is not null group by c.batch_id "
        "having not bool_or(c.topic = any({compacted}::text[]) or coalesce(lower(c.offsets) < p.earliest, true)) "
        "order by 1"
    ).format(
        topics=sql.Literal([topic for topic, _ in earliest]),
        partitions=sql.Literal([partition for _, partition in earliest]),
        earliest=sql.Literal(list(earliest.values())),
        compacted=sql.Literal(sorted(compacted)),
    )
    return [batch_id for (batch_id,) in snapshot.rows(query, pipeline.name)]


def counts_of_batches(writer: SinkWriter) -> sql.Composable:
    """Return a query for each batch to compare: its ID, how many rows it should have and has, and how many records
    these should come from and do."""
    by_record = writer.traits.lineage == "record"
    # Compaction drops changes of an Upsert, and no row of an Append next to it.
    compacts = sql.Literal(isinstance(writer, Compacts))
    return sql.SQL(
        "select b.batch_id, case when {covers} then b.rows else 0 end, coalesce(t.rows, 0), "
        "case when {covers} then {expected_records} else 0 end, coalesce(t.records, 0) "
        "from exactbatch.batch b "
        "left join (select distinct batch_id from exactbatch.coverage where pipeline = $1) c using (batch_id) "
        "left join (select batch_id, {rows}::bigint as rows, {records}::bigint as records from {lineage_table} l "
        "group by batch_id) t using (batch_id) {left} "
        "where b.pipeline = $1 and ({covers} or t.rows > 0) {whole}"
    ).format(
        covers=sql.SQL(_COVERS),
        rows=writer.lineage_table.row_count,
        records=sql.SQL(_RECORDS if by_record else "0"),
        expected_records=sql.SQL("b.records - b.rejected - b.tombstones - b.dropped" if by_record else "0"),
        lineage_table=writer.lineage_table.in_snapshot,
        left=sql.SQL(_LEFT if by_record else "").format(compacts=compacts),
        whole=sql.SQL(_WHOLE if by_record else "").format(compacts=compacts),
    )
