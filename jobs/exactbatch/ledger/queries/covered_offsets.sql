-- Coverage and horizons.

-- name: coverage
-- The offsets that a pipeline accounts for, in order.
select topic, topic_id, partition, lower(offsets) as from_offset, upper(offsets) as until_offset, kind, batch_id
from exactbatch.coverage where pipeline = :pipeline
order by topic, topic_id, partition, lower(offsets);

-- name: coverage_of_ranges
-- The rows of coverage that overlap some ranges.
with ranges as materialized (
    select topic_id, partition, range_agg(int8range(from_offset, until_offset)) as offsets
    from unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
        r (topic_id, partition, from_offset, until_offset)
    group by topic_id, partition
)
select c.topic, c.topic_id, c.partition, lower(c.offsets) as from_offset, upper(c.offsets) as until_offset,
       c.kind, c.batch_id
from ranges r join exactbatch.coverage c on c.pipeline = :pipeline and c.topic_id = r.topic_id
    and c.partition = r.partition and c.offsets && r.offsets
order by c.topic, c.partition, lower(c.offsets);

-- name: add_coverage!
-- Let the batch's results stand for the offsets of its ranges.
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'batch', batch_id
from exactbatch.batch_range where batch_id = :batch_id;

-- name: delete_coverage
-- Delete the rows that overlap the batch's ranges, and return them.
with ranges as materialized (
    select topic_id, partition, range_agg(int8range(from_offset, until_offset)) as offsets
    from exactbatch.batch_range where batch_id = :batch_id
    group by topic_id, partition
)
delete from exactbatch.coverage c using ranges r
where c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
  and c.offsets && r.offsets
returning c.topic, c.topic_id, c.partition, lower(c.offsets) as from_offset, upper(c.offsets) as until_offset,
          c.kind, c.batch_id;

-- name: restore_coverage!
-- Insert the parts of deleted rows that lie outside of the ranges.
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), kind, batch_id
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[], :from_offset::bigint[],
            :until_offset::bigint[], :kind::text[], :batch_id::bigint[])
    c (topic, topic_id, partition, from_offset, until_offset, kind, batch_id);

-- name: batches_with_coverage
-- Those of the batches whose results stand for any offset.
select distinct batch_id from exactbatch.coverage
where pipeline = :pipeline and batch_id = any(:batch_ids)
order by batch_id;

-- name: has_results$
-- True if any committed batch of a pipeline has results that still count.
select exists (select from exactbatch.coverage where pipeline = :pipeline and kind = 'batch');

-- name: first_advanced
-- The offset at which the pipeline began in each partition: below it lies history, which only replays cover.
select topic_id, partition, min(from_offset) as from_offset
from (
    select r.topic_id, r.partition, r.from_offset
    from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where b.pipeline = :pipeline and b.kind = 'advance'
      and (b.status = 'committed' or r.records is not null)
    union all
    select topic_id, partition, lower(offsets) from exactbatch.coverage
    where pipeline = :pipeline and kind = 'loss'
) began
group by topic_id, partition;

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
