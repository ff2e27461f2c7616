-- Fold old batches: their rows of coverage are merged, and their ranges and failures are deleted. The rows of the
-- batches themselves stay: the rows of targets name them.

-- name: prunable
-- The oldest batches after one that may be folded, with the number of their ranges: those that committed before a
-- time, and superseded ones that were planned before it. Batches that an asset event is still to announce keep their
-- ranges, and so do batches of an earlier topic of the same name.
select b.batch_id, r.ranges
from exactbatch.batch b cross join lateral (
    select count(*) as ranges, bool_and(s.topic_id is not distinct from r.topic_id) as is_current
    from exactbatch.batch_range r left join exactbatch.stored_offset s
        on s.pipeline = :pipeline and s.topic = r.topic and s.partition = r.partition
    where r.batch_id = b.batch_id
) r
where b.pipeline = :pipeline and b.batch_id > :after and b.pruned is null and r.is_current
  and case b.status when 'committed' then b.committed_at when 'superseded' then b.planned_at end < :before
  and (b.announced_at is not null or b.dag_id is null)
order by b.batch_id limit :limit;

-- name: blocking_replays
-- Planned replays over results of batches that may be folded, or have been.
select p.batch_id, p.planned_at
from exactbatch.batch p
where p.pipeline = :pipeline and p.kind = 'replay' and p.status = 'planned' and exists (
    select from exactbatch.batch_range r cross join lateral (
        select from exactbatch.coverage c left join exactbatch.batch b on b.batch_id = c.batch_id
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
          and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
          and c.offsets && int8range(r.from_offset, r.until_offset)
          and (c.kind = 'pruned' or coalesce(b.committed_at, b.planned_at) < :before)
        limit 1
    ) c
    where r.batch_id = p.batch_id
)
order by p.batch_id;

-- name: mark_pruned!
-- Record that batches are folded, and whether their results still stand for all of their offsets.
with spans as (
    select r.batch_id, sum(r.until_offset - r.from_offset)
               filter (where b.status = 'committed' or r.records is not null) as span
    from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where r.batch_id = any(:batch_ids::bigint[])
    group by r.batch_id
), covered as (
    select r.batch_id, sum(upper(c.offsets) - lower(c.offsets)) as covered
    from exactbatch.batch_range r cross join lateral (
        select c.offsets from exactbatch.coverage c
        where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                  = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
          and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
          and c.offsets && int8range(r.from_offset, r.until_offset) and c.batch_id = r.batch_id
        offset 0
    ) c
    where r.batch_id = any(:batch_ids::bigint[])
    group by r.batch_id
)
update exactbatch.batch b
set pruned = case when c.covered is null then 'none' when c.covered = s.span then 'whole' else 'part' end
from spans s left join covered c using (batch_id)
where b.batch_id = s.batch_id;

-- name: fold_coverage
-- Merge the rows of coverage of batches with each other and with the folded rows beside them; return the merged rows,
-- with the number of offsets that all deleted rows had, and that all merged rows have.
with folded as (
    delete from exactbatch.coverage c
    where c.ctid = any(array(
        select c.ctid
        from exactbatch.batch_range r cross join lateral (
            select c.ctid from exactbatch.coverage c
            where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                      = exactbatch.log_key(:pipeline, r.topic_id, r.partition)
              and c.pipeline = :pipeline and c.topic_id = r.topic_id and c.partition = r.partition
              and c.offsets && int8range(r.from_offset, r.until_offset) and c.batch_id = r.batch_id
            offset 0
        ) c
        where r.batch_id = any(:batch_ids::bigint[])
    ))
    returning c.topic, c.topic_id, c.partition, c.offsets, c.batch_id as newest
), spans as (
    select topic_id, partition, unnest(range_agg(offsets)) as offsets from folded group by topic_id, partition
), beside as (
    delete from exactbatch.coverage c
    where c.ctid = any(array(
        select c.ctid
        from spans s cross join lateral (
            select c.ctid from exactbatch.coverage c
            where exactbatch.log_key(c.pipeline, c.topic_id, c.partition)
                      = exactbatch.log_key(:pipeline, s.topic_id, s.partition)
              and c.pipeline = :pipeline and c.topic_id = s.topic_id and c.partition = s.partition
              and c.offsets && int8range(lower(s.offsets) - 1, upper(s.offsets) + 1) and c.kind = 'pruned'
            offset 0
        ) c
    ))
    returning c.topic, c.topic_id, c.partition, c.offsets, c.newest_batch_id as newest
), members as (
    select * from folded union all select * from beside
), chained as (
    select *, sum(is_first) over (partition by topic_id, partition order by offsets) as chain
    from (
        select *, (lag(upper(offsets)) over (partition by topic_id, partition order by offsets)
                   is distinct from lower(offsets))::integer as is_first
        from members
    ) m
), inserted as (
    insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, newest_batch_id)
    select :pipeline, topic, topic_id, partition, int8range(min(lower(offsets)), max(upper(offsets))), 'pruned',
           max(newest)
    from chained group by topic, topic_id, partition, chain
    returning topic, topic_id, partition, offsets
)
select i.topic, i.topic_id, i.partition, lower(i.offsets) as from_offset, upper(i.offsets) as until_offset,
       coalesce((select sum(upper(offsets) - lower(offsets)) from members), 0)::bigint as before,
       coalesce((select sum(upper(offsets) - lower(offsets)) from inserted), 0)::bigint as after
from (values (1)) one left join inserted i on true
order by i.topic, i.topic_id, i.partition, from_offset;

-- name: planned_replay_over
-- A planned replay that overlaps some ranges.
select p.batch_id, p.planned_at
from exactbatch.batch p join exactbatch.batch_range r using (batch_id)
join unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
    f (topic_id, partition, from_offset, until_offset)
    on f.topic_id = r.topic_id and f.partition = r.partition
    and f.from_offset < r.until_offset and r.from_offset < f.until_offset
where p.pipeline = :pipeline and p.kind = 'replay' and p.status = 'planned'
order by p.batch_id limit 1;

-- name: planned_replays
-- All replays that were planned and have not committed.
select {Batch}
from exactbatch.batch where pipeline = :pipeline and kind = 'replay' and status = 'planned'
order by batch_id;

-- name: delete_ranges!
-- Delete the ranges of batches that are folded.
delete from exactbatch.batch_range where batch_id = any(:batch_ids::bigint[]);

-- name: delete_failures!
-- Delete what is known about failures of batches that are folded.
delete from exactbatch.batch_failure where batch_id = any(:batch_ids::bigint[]);

-- name: count_empty_runs$
-- How many DAG runs found nothing to process before a time.
select count(*) from exactbatch.empty_run where pipeline = :pipeline and planned_at < :before;

-- name: forget_empty_runs!
-- Delete the oldest DAG runs that found nothing to process before a time.
delete from exactbatch.empty_run
where ctid = any(array(
    select ctid from exactbatch.empty_run where pipeline = :pipeline and planned_at < :before
    order by planned_at limit :limit
));
