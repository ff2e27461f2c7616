-- What the strips of a pipeline's partitions show, between two offsets each and no finer than a step. The cost depends
-- on the number of steps, not on the number of rows: a look-up in an index for each step of each partition.

-- name: walk
-- The rows of coverage that are met on a walk through each strip. The walk goes from the end of a row to the row that
-- follows, and at least to the beginning of the next step: rows that lie within a step are passed over (`passed`).
-- kind is null for offsets that no row covers, which end where a row begins.
with recursive strips as materialized (
    select topic_id, partition, first, until, step
    from unnest(:topic_id::uuid[], :partition::integer[], :first::bigint[], :until::bigint[], :step::bigint[])
        s (topic_id, partition, first, until, step)
    where first < until
), walk (topic_id, partition, first, until, step, at, next, kind, batch_id, newest_batch_id, passed) as (
    select s.*, s.first, s.first, null::text, null::bigint, null::bigint, false
    from strips s
    union all
    select w.topic_id, w.partition, w.first, w.until, w.step, w.next,
           least(w.until, case when c.first is null then w.until
                               when c.first > w.next then c.first
                               else greatest(c.until, b.boundary) end),
           case when c.first <= w.next then c.kind end,
           case when c.first <= w.next then c.batch_id end,
           case when c.first <= w.next then c.newest_batch_id end,
           c.first <= w.next and c.until < least(b.boundary, w.until)
    from walk w
    cross join lateral (
        select w.first + ((w.next - w.first) / w.step + 1) * w.step as boundary
    ) b
    left join lateral (
        -- The row that covers the offset, or else the one that follows.
        select lower(c.offsets) as first, upper(c.offsets) as until, c.kind, c.batch_id, c.newest_batch_id
        from exactbatch.coverage c
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, w.topic_id, w.partition)
          and upper(c.offsets) > w.next
          and c.pipeline = :pipeline and c.topic_id = w.topic_id and c.partition = w.partition
        order by upper(c.offsets) limit 1
    ) c on true
    where w.next < w.until
)
select w.topic_id, w.partition, w.at as from_offset, w.next as until_offset, w.kind, w.batch_id, w.newest_batch_id,
       coalesce(w.passed, false) as passed, b.kind as batch_kind, b.origin
from walk w left join lateral (
    -- A look-up for each, where a join would read the batches of all pipelines.
    select b.kind, b.origin from exactbatch.batch b where b.batch_id = w.batch_id limit 1
) b on true
where w.at < w.next
order by w.topic_id, w.partition, w.at;

-- name: exceptions
-- Losses and folded rows that overlap strips, the first :limit of each strip.
select c.topic_id, c.partition, lower(c.offsets) as from_offset, upper(c.offsets) as until_offset, c.kind
from unnest(:topic_id::uuid[], :partition::integer[], :first::bigint[], :until::bigint[])
    s (topic_id, partition, first, until)
cross join lateral (
    select c.* from exactbatch.coverage c
    where c.pipeline = :pipeline and c.topic_id = s.topic_id and c.partition = s.partition and c.kind <> 'batch'
      and lower(c.offsets) < s.until and upper(c.offsets) > s.first
    order by lower(c.offsets) limit :limit
) c
order by c.topic_id, c.partition, from_offset;

-- name: replays
-- What still stands of the newest :limit committed replays, where it overlaps strips.
with newest as materialized (
    select batch_id, origin from exactbatch.batch
    where pipeline = :pipeline and kind = 'replay' and status = 'committed'
    order by batch_id desc limit :limit
)
select c.topic_id, c.partition, lower(c.offsets) as from_offset, upper(c.offsets) as until_offset, b.batch_id, b.origin
from newest b
join exactbatch.batch_range r using (batch_id)
join unnest(:topic_id::uuid[], :partition::integer[], :first::bigint[], :until::bigint[])
    s (topic_id, partition, first, until)
    on s.topic_id = r.topic_id and s.partition = r.partition and r.from_offset < s.until and s.first < r.until_offset
cross join lateral (
    select c.* from exactbatch.coverage c
    where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
              = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
      and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
      and c.offsets && int8range(r.from_offset, r.until_offset) and c.batch_id = b.batch_id
    offset 0
) c
order by c.topic_id, c.partition, from_offset;

-- name: in_flight
-- The ranges of planned batches that overlap strips and are not committed yet.
with planned as materialized (
    select batch_id, kind, origin from exactbatch.batch
    where pipeline = :pipeline and kind = 'advance' and status = 'planned'
    union all
    (select batch_id, kind, origin from exactbatch.batch
     where pipeline = :pipeline and kind = 'replay' and status = 'planned'
     order by batch_id desc limit :limit)
)
select r.topic_id, r.partition, r.from_offset, r.until_offset, b.batch_id, b.kind, b.origin
from planned b
join exactbatch.batch_range r using (batch_id)
join unnest(:topic_id::uuid[], :partition::integer[], :first::bigint[], :until::bigint[])
    s (topic_id, partition, first, until)
    on s.topic_id = r.topic_id and s.partition = r.partition and r.from_offset < s.until and s.first < r.until_offset
where r.records is null
order by r.topic_id, r.partition, r.from_offset;

-- name: reject_counts
-- The number of rejects in each cell of strips, counted up to :most. A cell is a run of offsets of the length `cell`.
with recursive strips as materialized (
    select topic_id, partition, first, until, cell
    from unnest(:topic_id::uuid[], :partition::integer[], :first::bigint[], :until::bigint[], :cell::bigint[])
        s (topic_id, partition, first, until, cell)
), walk (topic_id, partition, first, until, cell, number, found) as (
    select s.*, -1::bigint, null::bigint from strips s
    union all
    -- Cells without rejects are passed over: the next reject names the next cell.
    select w.topic_id, w.partition, w.first, w.until, w.cell, (j."offset" - w.first) / w.cell, j."offset"
    from walk w cross join lateral (
        select j."offset" from exactbatch.rejected_record j
        where j.pipeline = :pipeline and j.topic_id = w.topic_id and j.partition = w.partition
          and j."offset" >= w.first + (w.number + 1) * w.cell and j."offset" < w.until
        order by j."offset" limit 1
    ) j
)
select w.topic_id, w.partition, w.first + w.number * w.cell as from_offset,
       least(w.until, w.first + (w.number + 1) * w.cell) as until_offset, n.rejects
from walk w cross join lateral (
    select count(*) as rejects from (
        select from exactbatch.rejected_record j
        where j.pipeline = :pipeline and j.topic_id = w.topic_id and j.partition = w.partition
          and j."offset" >= w.found and j."offset" < least(w.until, w.first + (w.number + 1) * w.cell)
        limit :most
    ) j
) n
where w.found is not null
order by w.topic_id, w.partition, from_offset;

-- name: gaps
-- Offsets of a strip that none of its next :rows rows covers, the first :limit of them; with the number of rows that
-- were read, and where the last of them ends. Rows never overlap, so the order of their ends is that of the log.
with read as materialized (
    select lower(c.offsets) as first, upper(c.offsets) as until,
           lag(upper(c.offsets), 1, :first::bigint) over (order by upper(c.offsets)) as before
    from (
        select c.offsets from exactbatch.coverage c
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, :topic_id::uuid, :partition::integer)
          and upper(c.offsets) > :first::bigint
          and c.pipeline = :pipeline and c.topic_id = :topic_id::uuid and c.partition = :partition::integer
        order by upper(c.offsets) limit :rows
    ) c
), ended as (
    select count(*) as rows, coalesce(max(until), :first::bigint) as reached from read
), gaps as (
    select before as from_offset, least(first, :until::bigint) as until_offset from read
    where first > before and before < :until::bigint
    union all
    -- No row follows.
    select reached, :until::bigint from ended where rows < :rows and reached < :until::bigint
)
select e.rows, e.reached, g.from_offset, g.until_offset
from ended e left join (select * from gaps order by from_offset limit :limit) g on true
order by g.from_offset;
