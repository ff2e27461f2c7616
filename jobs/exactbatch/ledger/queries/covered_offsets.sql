-- Coverage and horizons. The index of coverage is by log_key(): each statement names it besides the columns.
-- {Covered} stands for the columns that this class has, of a row of coverage with the alias c.

-- name: coverage
-- The offsets that a pipeline accounts for, in order.
select {Covered}
from exactbatch.coverage c where c.pipeline = :pipeline
order by c.topic, c.topic_id, c.partition, lower(c.offsets);

-- name: coverage_of_ranges
-- The rows of coverage that overlap some ranges.
with ranges as materialized (
    select topic_id, partition, range_agg(int8range(from_offset, until_offset)) as offsets
    from unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
        r (topic_id, partition, from_offset, until_offset)
    group by topic_id, partition
)
select {Covered}
from ranges r cross join lateral (
    select * from exactbatch.coverage c
    where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
              = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
      and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
      and c.offsets && r.offsets
    offset 0
) c
order by c.topic, c.partition, lower(c.offsets);

-- name: coverage_of_batches
-- The rows of coverage with the results of some batches, which lie within the ranges of these batches.
select {Covered}
from exactbatch.batch_range r cross join lateral (
    select * from exactbatch.coverage c
    where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
              = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
      and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
      and c.offsets && int8range(r.from_offset, r.until_offset) and c.batch_id = r.batch_id
    offset 0
) c
where r.batch_id = any(:batch_ids::bigint[])
order by c.topic, c.topic_id, c.partition, lower(c.offsets);

-- name: results_outside
-- For each partition of some ranges, a row of coverage with results below the last of them and outside of all: one
-- of the rows up to where the pipeline began, if there is any, and otherwise any row.
with ranges as materialized (
    select topic_id, partition, max(until_offset) as until,
           range_agg(int8range(from_offset, until_offset)) as offsets
    from unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
        r (topic_id, partition, from_offset, until_offset)
    group by topic_id, partition
), outside as materialized (
    select r.topic_id, r.partition, int8multirange(int8range(0, r.until)) - r.offsets as offsets,
           int8range(0, s.first_offset + 1) as beginning
    from ranges r left join exactbatch.stored_offset s on s.pipeline = :pipeline and s.topic_id = r.topic_id
        and s.partition = r.partition
)
select {Covered}
from outside o cross join lateral (
    (select 1 as preference, c.* from exactbatch.coverage c
     where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
               = exactbatch.log_key(:pipeline, o.topic_id, o.partition)
       and c.pipeline = :pipeline and c.topic_id = o.topic_id and c.partition = o.partition
       and c.offsets && o.offsets and c.offsets && o.beginning and c.kind <> 'loss'
     order by lower(c.offsets) limit 1)
    union all
    (select 2, c.* from exactbatch.coverage c
     where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
               = exactbatch.log_key(:pipeline, o.topic_id, o.partition)
       and c.pipeline = :pipeline and c.topic_id = o.topic_id and c.partition = o.partition
       and c.offsets && o.offsets and c.kind <> 'loss'
     limit 1)
    order by preference limit 1
) c
order by c.topic, c.partition;

-- name: add_coverage!
-- Let the batch's results stand for the offsets of its ranges.
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'batch', batch_id
from exactbatch.batch_range where batch_id = :batch_id;

-- name: delete_coverage
-- Delete the rows that overlap the batch's ranges, and return them.
delete from exactbatch.coverage c
where c.ctid = any(array(
    select c.ctid
    from (
        select topic_id, partition, range_agg(int8range(from_offset, until_offset)) as offsets
        from exactbatch.batch_range where batch_id = :batch_id
        group by topic_id, partition
    ) r cross join lateral (
        select c.ctid from exactbatch.coverage c
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
          and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
          and c.offsets && r.offsets
        offset 0
    ) c
))
returning {Covered};

-- name: restore_coverage!
-- Insert the parts of deleted rows that lie outside of the ranges.
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id, newest_batch_id)
select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), kind, batch_id, newest_batch_id
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[], :from_offset::bigint[],
            :until_offset::bigint[], :kind::text[], :batch_id::bigint[], :newest_batch_id::bigint[])
    c (topic, topic_id, partition, from_offset, until_offset, kind, batch_id, newest_batch_id);

-- name: overtaken_by$
-- The newest of the later batches whose results stand for all offsets of a batch; null unless there are such.
with ranges as materialized (
    select topic_id, partition, range_agg(int8range(from_offset, until_offset)) as offsets,
           sum(until_offset - from_offset) as size
    from exactbatch.batch_range where batch_id = :batch_id
    group by topic_id, partition
)
select case when not exists (
    -- One older row suffices, of however many there are.
    select from ranges r cross join lateral (
        select from exactbatch.coverage c
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
          and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
          and c.offsets && r.offsets and coalesce(c.batch_id, c.newest_batch_id, 0) <= :batch_id
        limit 1
    ) older
) then (
    select max(c.newest) from ranges r cross join lateral (
        select coalesce(c.batch_id, c.newest_batch_id) as newest,
               int8multirange(c.offsets) * r.offsets as covered
        from exactbatch.coverage c
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
          and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
          and c.offsets && r.offsets
        offset 0
    ) c
    having sum((select sum(upper(part) - lower(part)) from unnest(c.covered) part))
           = (select sum(size) from ranges)
) end;

-- name: has_results$
-- True if a pipeline has committed any batch, or any range of one.
select exists (
    select from exactbatch.batch b
    where b.pipeline = :pipeline and (b.status = 'committed' or exists (
        select from exactbatch.batch_range r where r.batch_id = b.batch_id and r.records is not null))
);

-- name: first_advanced
-- The offset at which the pipeline began in each partition that it has advanced in: below it lies history, which only
-- replays cover. Where somebody has deleted the stored offset, it is the first offset that a batch covers.
select topic_id, partition, first_offset as from_offset
from exactbatch.stored_offset where pipeline = :pipeline and next_offset > first_offset
union all
select c.topic_id, c.partition, min(lower(c.offsets)) from exactbatch.coverage c
where c.pipeline = :pipeline and not exists (
    select from exactbatch.stored_offset s
    where s.pipeline = :pipeline and s.topic_id = c.topic_id and s.partition = c.partition)
group by c.topic_id, c.partition;

-- name: horizons
-- The offset of each partition below which nothing can be replayed any more.
select topic, partition, topic_id, "offset" from exactbatch.replay_horizon where pipeline = :pipeline;

-- name: raise_horizon!
-- Allow no replay below this offset from now on; a horizon never moves back.
insert into exactbatch.replay_horizon as h (pipeline, topic, topic_id, partition, "offset")
values (:pipeline, :topic, :topic_id, :partition, :offset)
on conflict (pipeline, topic_id, partition) do update
set "offset" = excluded."offset", compacted_at = now()
where h."offset" < excluded."offset";
