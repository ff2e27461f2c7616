"""Compares numbers of rows batch by batch, where an offset may have any number of rows."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from psycopg2 import sql

from exactbatch.audit.report import PartitionAudit
from exactbatch.model import Covered
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection
from exactbatch.postgres.connection import Connection

# Of the changes or rows of a batch, how many records they come from.
_RECORDS: Final = "count(distinct (kafka_topic, kafka_partition, kafka_offset))"
# What is left of each batch, and what it was planned for.
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
        and h.partition = r.partition
    where r.batch_id in (select batch_id from exactbatch.batch where pipeline = $1)
    group by r.batch_id
) p using (batch_id)
"""
# A batch that is not cut by a replay, and whose changes were not compacted; or one that stands for nothing.
_WHOLE: Final = "and coalesce(l.covered, p.span) = p.span and p.is_compacted is not true"


def compare_batches(
    results: ArrowConnection,
    connection: Connection,
    pipeline: Pipeline,
    coverage: Sequence[Covered],
    audits: Sequence[PartitionAudit],
) -> None:
    """Where an offset may have any number of rows, compare their number batch by batch.

    A batch that stands for any offset has as many rows as it had when it was committed, and any other batch
    has none. A difference is told at the first offset that the batch covers.

    Where a transform drops records, rows of some offsets are taken back by replays, and of a batch that was cut
    nobody knows how many rows the rest has: the batches that are whole are compared, and those that are none.
    """
    by_record = pipeline.sink.lineage == "record"
    with results.cursor() as cursor:
        cursor.execute(counts_of_batches(pipeline).as_string(connection), (pipeline.name,))
        batches = cursor.fetchall()
    partitions = {(each.topic, each.partition): each for each in audits}
    first = {each.batch_id: each for each in reversed(coverage)}
    for batch_id, expected, rows, expected_records, records in batches:
        covered = first.get(batch_id)
        # A batch may cover partitions of a topic that was taken out of the pipeline.
        where = (
            audits[0] if covered is None else partitions.get((covered.topic, covered.partition), audits[0])
        )
        at = np.array([] if covered is None else [covered.from_offset], np.int64)
        where.rows += 0 if by_record else rows
        for finding, count in (
            (where.missing, max(expected - rows, expected_records - records)),
            (where.unexpected, max(rows - expected, records - expected_records)),
        ):
            if count > 0:
                finding.add(at)
                finding.count += count - len(at)


def counts_of_batches(pipeline: Pipeline) -> sql.Composable:
    """Of each batch that is compared: its number, how many rows it should have and has, and how many records these
    come from."""
    by_record = pipeline.sink.lineage == "record"
    return sql.SQL(
        "select b.batch_id, case when c.batch_id is null then 0 else b.rows end, coalesce(t.rows, 0), "
        "case when c.batch_id is null then 0 else {expected_records} end, coalesce(t.records, 0) "
        "from exactbatch.batch b "
        "left join (select distinct batch_id from exactbatch.coverage where pipeline = $1) c using (batch_id) "
        "left join (select batch_id, {rows}::bigint as rows, {records}::bigint as records from {lineage_table} "
        "group by batch_id) t using (batch_id) {left} "
        "where b.pipeline = $1 and (c.batch_id is not null or t.rows > 0) {whole}"
    ).format(
        rows=pipeline.sink.staged_row_count,
        records=sql.SQL(_RECORDS if by_record else "0"),
        expected_records=sql.SQL("b.records - b.rejected - b.tombstones - b.dropped" if by_record else "0"),
        lineage_table=pipeline.sink.lineage_table.identifier,
        left=sql.SQL(_LEFT if by_record else ""),
        whole=sql.SQL(_WHOLE if by_record else ""),
    )
