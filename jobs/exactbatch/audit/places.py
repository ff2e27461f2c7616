"""Check all rows wherever they claim to be, and the ledger against itself.

Offsets are compared partition by partition. Rows that claim another topic, a partition that the topic does not have, or
an offset below zero would escape that comparison. One grouped scan of the lineage table finds them, and counts the
rows of each batch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.audit.audit_result import SHOWN, TargetAudit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.capabilities import Compacts, KeepsEventTimes
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.writer import SinkWriter

# For each batch of the pipeline: whether it covers any offsets, whether it covers all that it committed, and whether
# changes of it may have been compacted. For a folded batch, the ledger knows the first two from when it was folded.
_BATCHES: Final = """
batches as (
    select b.batch_id, coalesce(b.rows, r.rows) as rows, coalesce(b.rejected, r.rejected) as rejected,
           case when b.pruned is null then c.covered when b.pruned <> 'none' then 1 end as covered,
           case b.pruned
               when 'none' then true
               when 'part' then false
               when 'whole' then b.status = 'committed'
               else c.covered is null or c.covered = r.span
           end as is_whole,
           case b.pruned
               when 'whole' then exists (select from exactbatch.replay_horizon h where h.pipeline = $1)
               else c.covered is not null and r.is_below
           end and {compacts} as is_compacted
    from exactbatch.batch b
    left join (
        select batch_id, sum(upper(offsets) - lower(offsets)) as covered
        from exactbatch.coverage where pipeline = $1 and kind = 'batch' group by batch_id
    ) c using (batch_id)
    left join (
        select r.batch_id, sum(r.rows) as rows, sum(r.rejected) as rejected,
               sum(r.until_offset - r.from_offset) filter (where r.records is not null) as span,
               coalesce(bool_or(r.from_offset < h."offset"), false) as is_below
        from exactbatch.batch_range r
        left join exactbatch.replay_horizon h on h.pipeline = $1 and h.topic_id = r.topic_id
            and h.partition = r.partition
        group by r.batch_id
    ) r using (batch_id)
    where b.pipeline = $1
)
"""
# By partition, and by pipeline with the same target: offsets whose results both have in it. Coverage is united by
# partition first: comparing each row of it with each of the other pipeline would be quadratic.
_DOUBLED: Final = """
with covered as (
    select pipeline, topic, topic_id, partition, range_agg(offsets) as offsets
    from exactbatch.coverage where kind <> 'loss' and (pipeline = $1 or pipeline = any({}::text[]))
    group by pipeline, topic, topic_id, partition
)
select o.pipeline, c.topic, c.partition, min(lower(shared.offsets)),
       sum(upper(shared.offsets) - lower(shared.offsets))::bigint,
       (select bool_or(p.shares_topics) from exactbatch.pipeline p where p.name in ($1, o.pipeline))
from covered c join covered o using (topic_id, partition), unnest(c.offsets * o.offsets) as shared (offsets)
where c.pipeline = $1 and o.pipeline <> $1
group by o.pipeline, c.topic, c.partition order by 1, 2, 3
"""
_CONTRADICTIONS: Final = """
select format('%s[%s] %s..%s is covered by batch %s, which has committed no such range of this pipeline',
              c.topic, c.partition, lower(c.offsets), upper(c.offsets), c.batch_id)
from exactbatch.coverage c
where c.pipeline = $1 and c.kind = 'batch' and not exists (
    select from exactbatch.batch b join exactbatch.batch_range r using (batch_id)
    where b.batch_id = c.batch_id and b.pipeline = $1 and (b.status = 'committed' or r.records is not null)
      and r.topic = c.topic and r.topic_id = c.topic_id and r.partition = c.partition
      and int8range(r.from_offset, r.until_offset) @> c.offsets)
union all
select format('%s[%s] %s..%s is covered twice', topic, partition, next, until)
from (
    select topic, partition, upper(offsets) as until,
           lead(lower(offsets)) over (partition by topic_id, partition order by offsets) as next
    from exactbatch.coverage where pipeline = $1
) c where next < until
union all
select format('batch %s has %s records, and its ranges have %s', b.batch_id, b.records, sum(r.records))
from exactbatch.batch b left join exactbatch.batch_range r using (batch_id)
where b.pipeline = $1 and b.status = 'committed' and b.pruned is null
group by b.batch_id having b.records is distinct from sum(r.records)::bigint
union all
select format('batch %s has %s records, of which %s were rejected, %s tombstones and %s dropped', batch_id,
              records, rejected, tombstones, dropped)
from exactbatch.batch
where pipeline = $1 and status = 'committed'
  and (least(records, rows, rejected, tombstones, dropped) < 0 or rejected + tombstones + dropped > records)
"""


def find_places(
    report: TargetAudit,
    snapshot: Snapshot,
    pipeline: Pipeline,
    writer: SinkWriter,
    topics: Sequence[str],
    audited: Collection[tuple[str, int]],
    rows_of_batches: Mapping[int, int],
) -> None:
    """Check all rows, wherever they claim to be, and report those that cannot be where they are.

    `topics` are those that the pipeline loads. `audited` are the topics and partitions whose offsets, from zero on,
    are compared one by one, and `rows_of_batches` how many rows of each batch that comparison has found.
    """
    sharing = _sharing(snapshot, pipeline, writer)
    suspects = 0
    is_complete = _has_no_other_rows(snapshot, writer, rows_of_batches)
    counted = rows_of_batches if is_complete else None
    for kind, batch_id, expected, actual in snapshot.rows(
        _scan(pipeline, writer, topics, sharing, counted), pipeline.name
    ):
        if kind == "not ours":
            report.not_ours = actual
        elif kind == "suspects":
            suspects = actual
        elif kind == "rows" and (
            pipeline_counts_batches(pipeline, writer.traits)
            or not writer.traits.keeps_every_row
            or writer.traits.route is not None
        ):
            continue  # reported as missing or unexpected, replaced by later rows, or counted with those of others
        else:
            report.miscounted += 1
            report.notes.append(f"batch {batch_id}: the ledger has {expected} {kind}, its table {actual}")
    if report.miscounted > SHOWN:
        del report.notes[SHOWN:]
    misplaced = snapshot.rows(_misplaced_rejects(audited), pipeline.name)
    if suspects:
        misplaced += snapshot.rows(_misplaced_rows(pipeline, writer, topics, sharing, audited))
    if isinstance(writer, KeepsEventTimes) and writer.event_times is not None:
        query = _misplaced_times(pipeline, sharing, writer.event_times)
        misplaced += snapshot.rows(query)
    report.misplaced = sum({kind: total for kind, *_, total in misplaced}.values())
    report.notes += [_misplaced_note(*row) for row in misplaced]
    contradictions = snapshot.rows(sql.SQL(_CONTRADICTIONS), pipeline.name)
    report.contradictory = len(contradictions)
    report.notes += [f"the ledger contradicts itself: {row[0]}" for row in contradictions[:SHOWN]]
    doubled = sql.SQL(_DOUBLED).format(sql.Literal([name for name, _ in sharing]))
    for other, topic, partition, first, count, is_intended in (
        snapshot.rows(doubled, pipeline.name) if sharing else ()
    ):
        report.doubled += 0 if is_intended else count
        report.notes.append(
            f"{topic}[{partition}]: pipeline {other!r} also has {count} of these offsets in the same target, from "
            f"{first} on" + (", which --share-topics allows" if is_intended else "")
        )


def pipeline_counts_batches(pipeline: Pipeline, traits: SinkTraits) -> bool:
    """True if numbers of rows are compared batch by batch, and not offset by offset."""
    return traits.keeps_every_row and (traits.lineage == "batch" or not pipeline.has_row_per_record)


def find_sharing_pipelines(snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter) -> list[str]:
    """Return the names of the other pipelines whose rows may be in the same table."""
    return [name for name, _ in _sharing(snapshot, pipeline, writer)]


def _sharing(snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter) -> list[tuple[str, str]]:
    """Return name and lineage of the other pipelines that are registered with the same target and sink."""
    query = sql.SQL("select name, lineage, target from exactbatch.pipeline where name <> $1 and sink = $2")
    others = snapshot.rows(query, pipeline.name, writer.traits.sink.kind.name)
    own = TargetTable(writer.traits.target).name
    return [(name, lineage) for name, lineage, target in others if TargetTable(target).name == own]


def _has_no_other_rows(snapshot: Snapshot, writer: SinkWriter, rows_of_batches: Mapping[int, int]) -> bool:
    """True if the lineage table has as many rows as the comparison of offsets has found: there is no other one.

    Counting all rows is several times as fast as grouping them.
    """
    table = writer.lineage_table
    if table.lineage != "record" or table.counted_by is not None:
        return False
    query = sql.SQL("select count(*) from {} t").format(table.in_snapshot)
    return bool(snapshot.rows(query)[0][0] == sum(rows_of_batches.values()))


def _found(writer: SinkWriter, counted: Mapping[int, int] | None) -> sql.Composable:
    """Return a query for the number of rows, the first and the last offset by batch, topic and partition.

    With `counted`, for the numbers of rows by batch alone: none of these rows can be misplaced.
    """
    if counted is not None:
        return sql.SQL(
            "select f.batch_id, null::text as topic, null::int as partition, f.rows, 0::bigint as low, "
            "0::bigint as high from unnest({batches}::bigint[], {rows}::bigint[]) f (batch_id, rows)"
        ).format(batches=sql.Literal(list(counted)), rows=sql.Literal(list(counted.values())))
    by_record = writer.traits.lineage == "record"
    return sql.SQL(
        "select batch_id, {topic} as topic, {partition} as partition, {rows}::bigint as rows, "
        "min({offset}) as low, max({offset}) as high from {lineage_table} t group by 1, 2, 3"
    ).format(
        topic=sql.SQL("kafka_topic" if by_record else "null::text"),
        partition=sql.SQL("kafka_partition" if by_record else "null::int"),
        offset=sql.SQL("kafka_offset" if by_record else "null::bigint"),
        rows=writer.lineage_table.row_count,
        lineage_table=writer.lineage_table.in_snapshot,
    )


def _scan(
    pipeline: Pipeline,
    writer: SinkWriter,
    topics: Sequence[str],
    sharing: Sequence[tuple[str, str]],
    counted: Mapping[int, int] | None,
) -> sql.Composable:
    """Return a query for the number of rows that are not ours, the number of groups in which rows may be misplaced, and
    each batch with a different number of rows or rejects than the ledger has.

    `counted` is the number of rows by batch, if it is known that no row can be misplaced.
    """
    no_other = sql.SQL("false")
    return sql.SQL(
        "with found as materialized ({found}), {batches} select 'not ours', null::bigint, null::bigint, "
        "coalesce(sum(rows), 0)::bigint from found where {not_ours} union all "
        "select 'suspects', null, null, count(*) from found where not {not_ours} and not {placed} union all "
        "select 'rows', b.batch_id, case when b.covered is null then 0 else b.rows end::bigint, "
        "coalesce(f.rows, 0)::bigint from batches b left join (select batch_id, sum(rows) as rows from found "
        "group by batch_id) f using (batch_id) where b.is_whole and not b.is_compacted "
        "and case when b.covered is null then 0 else b.rows end <> coalesce(f.rows, 0) union all "
        "select 'rejects', b.batch_id, case when b.covered is null then 0 else b.rejected end::bigint, "
        "coalesce(f.rejects, 0)::bigint from batches b left join (select batch_id, count(*) as rejects "
        "from exactbatch.rejected_record where pipeline = $1 group by batch_id) f using (batch_id) "
        "where b.is_whole and case when b.covered is null then 0 else b.rejected end <> coalesce(f.rejects, 0) "
        "order by 1, 2"
    ).format(
        found=_found(writer, counted),
        # Compaction drops changes of an Upsert, and neither rejects nor rows of an Append next to it.
        batches=sql.SQL(_BATCHES).format(compacts=sql.Literal(isinstance(writer, Compacts))),
        not_ours=_not_ours(writer, topics) if counted is None else no_other,
        placed=_placed(pipeline, writer, sharing) if counted is None else sql.SQL("true"),
    )


def _not_ours(writer: SinkWriter, topics: Sequence[str]) -> sql.Composable:
    """Return a condition for rows without a batch that claim none of our topics. Lineage tables have only our rows."""
    if writer.traits.is_derived:
        return sql.SQL("false")
    return sql.SQL("(found.batch_id is null and coalesce(found.topic <> all({}::text[]), true))").format(
        sql.Literal(list(topics))
    )


def _placed(pipeline: Pipeline, writer: SinkWriter, sharing: Sequence[tuple[str, str]]) -> sql.Composable:
    """Return a condition for groups whose rows are all within the ranges of their batch.

    The ranges of a folded batch are not known: its rows are within what its pipeline has processed.
    """
    by_batch = [name for name, lineage in sharing if lineage == "batch"]
    by_record = [name for name, lineage in sharing if lineage == "record"]
    (by_batch if writer.traits.lineage == "batch" else by_record).append(pipeline.name)
    return sql.SQL(
        "(exists (select from exactbatch.batch b where b.batch_id = found.batch_id "
        "and b.pipeline = any({by_batch}::text[])) "
        "or coalesce((select min(r.from_offset) <= found.low and max(r.until_offset) > found.high "
        "from exactbatch.batch b join exactbatch.batch_range r using (batch_id) "
        "where r.batch_id = found.batch_id and b.pipeline = any({by_record}::text[]) "
        "and r.topic = found.topic and r.partition = found.partition), false) "
        "or exists (select from exactbatch.batch b join exactbatch.stored_offset s using (pipeline) "
        "where b.batch_id = found.batch_id and b.pipeline = any({by_record}::text[]) and b.pruned is not null "
        "and s.topic = found.topic and s.partition = found.partition and found.high < s.next_offset))"
    ).format(by_batch=sql.Literal(by_batch), by_record=sql.Literal(by_record))


def _misplaced_rows(
    pipeline: Pipeline,
    writer: SinkWriter,
    topics: Sequence[str],
    sharing: Sequence[tuple[str, str]],
    audited: Collection[tuple[str, int]],
) -> sql.Composable:
    """Return a query, by batch, topic and partition, for rows outside of all ranges of their batch, without those that
    are compared offset by offset anyway."""
    by_record = writer.traits.lineage == "record"
    return sql.SQL(
        "with found as (select batch_id, {topic} as topic, {partition} as partition, {offset} as low, "
        "{offset} as high from {lineage_table} t) "
        "select 'rows', batch_id, topic, partition, count(*), min(low), max(low), sum(count(*)) over ()::bigint "
        "from found where not {not_ours} and not {placed} and ({seen} and low >= 0) is not true "
        "group by 2, 3, 4 order by 5 desc limit 10"
    ).format(
        topic=sql.SQL("kafka_topic" if by_record else "null::text"),
        partition=sql.SQL("kafka_partition" if by_record else "null::int"),
        offset=sql.SQL("kafka_offset" if by_record else "null::bigint"),
        lineage_table=writer.lineage_table.in_snapshot,
        not_ours=_not_ours(writer, topics),
        placed=_placed(pipeline, writer, sharing),
        seen=_seen(audited) if by_record else sql.SQL("false"),
    )


def _misplaced_rejects(audited: Collection[tuple[str, int]]) -> sql.Composable:
    return sql.SQL(
        "select 'rejects', batch_id, topic, partition, count(*), min(low), max(low), "
        "sum(count(*)) over ()::bigint from (select j.batch_id, j.topic, j.partition, "
        'j."offset" as low from exactbatch.rejected_record j where j.pipeline = $1 and not exists ('
        "select from exactbatch.batch b join exactbatch.batch_range r using (batch_id) "
        "where b.batch_id = j.batch_id and b.pipeline = $1 and r.topic = j.topic and r.topic_id = j.topic_id "
        'and r.partition = j.partition and j."offset" >= r.from_offset and j."offset" < r.until_offset) '
        "and not exists (select from exactbatch.batch b join exactbatch.stored_offset s using (pipeline) "
        "where b.batch_id = j.batch_id and b.pipeline = $1 and b.pruned is not null and s.topic = j.topic "
        'and s.topic_id = j.topic_id and s.partition = j.partition and j."offset" < s.next_offset)) found '
        "where ({seen} and low >= 0) is not true group by 2, 3, 4 order by 5 desc limit 10"
    ).format(seen=_seen(audited))


def _misplaced_times(
    pipeline: Pipeline, sharing: Sequence[tuple[str, str]], event_times: TargetTable
) -> sql.Composable:
    """Return a query for event times of batches that cover nothing: retracted results would make windows final."""
    return sql.SQL(
        "select 'event times', batch_id, topic, partition, count(*), null::bigint, null::bigint, "
        "sum(count(*)) over ()::bigint from {event_times} w where not exists (select from exactbatch.coverage c "
        "where c.batch_id = w.batch_id and c.topic = w.topic and c.partition = w.partition "
        "and c.pipeline = any({pipelines}::text[])) and not exists (select from exactbatch.batch b "
        "where b.batch_id = w.batch_id and b.pipeline = any({pipelines}::text[]) and b.pruned in ('whole', 'part')) "
        "group by 2, 3, 4 order by 5 desc limit 10"
    ).format(
        event_times=event_times.identifier,
        pipelines=sql.Literal([pipeline.name, *(name for name, _ in sharing)]),
    )


def _seen(audited: Collection[tuple[str, int]]) -> sql.Composable:
    """Return a condition for rows in partitions whose offsets are compared one by one."""
    topics, partitions = [topic for topic, _ in audited], [partition for _, partition in audited]
    return sql.SQL("(found.topic, found.partition) in (select * from unnest({}::text[], {}::int[]))").format(
        sql.Literal(topics), sql.Literal(partitions)
    )


def _misplaced_note(
    kind: str,
    batch_id: int | None,
    topic: str | None,
    partition: int | None,
    count: int,
    low: int | None,
    high: int | None,
    _all: int,
) -> str:
    batch = "no batch" if batch_id is None else f"batch {batch_id}"
    offsets = "" if low is None else f" offsets {low} to {high}"
    where = "" if topic is None else f" claim {topic}[{partition}]{offsets}, and"
    return f"{count} {kind} of {batch}{where} are where no batch of a pipeline with this target has written"
