-- Batches and their ranges. {Batch} and {OffsetRange} stand for the columns that these classes have.

-- name: get_batch^
-- One batch.
select {Batch}
from exactbatch.batch where batch_id = :batch_id;

-- name: get_batches
-- Some batches.
select {Batch}
from exactbatch.batch where batch_id = any(:batch_ids::bigint[]);

-- name: lock_batch^
-- One batch, locked until this transaction ends.
select {Batch}
from exactbatch.batch where batch_id = :batch_id
for no key update;

-- name: share_batch^
-- One batch that no other transaction can supersede before this one ends.
select {Batch}
from exactbatch.batch where batch_id = :batch_id
for share;

-- name: is_standby$
-- True on a standby, which may be behind its primary.
select pg_is_in_recovery();

-- name: page_of_batches
-- The newest batches of a pipeline below an ID, of one kind and in one status, or of any where these are null.
-- With `pipeline = …`, Postgres may walk the primary key instead, past the batches of all other pipelines.
select {Batch}
from exactbatch.batch
where pipeline >= :pipeline
  and (pipeline, batch_id) < (:pipeline, coalesce(:before, 9223372036854775807))
  and (:kind::text is null or kind = :kind::text)
  and (:status::text is null or status = :status::text)
order by pipeline desc, batch_id desc limit :limit;

-- name: first_ranges
-- The first ranges of some batches, each with the number of all ranges of its batch.
select n.batch_id, n.ranges, f.*
from (
    select batch_id, count(*) as ranges from exactbatch.batch_range where batch_id = any(:batch_ids) group by batch_id
) n cross join lateral (
    select {OffsetRange}
    from exactbatch.batch_range r where r.batch_id = n.batch_id
    order by topic, partition, from_offset limit :limit
) f
order by n.batch_id, topic, partition, from_offset;

-- name: failures_of_batches
-- The failures of some batches.
select batch_id, failures, first_failed_at, failed_at, error, message, retryable
from exactbatch.batch_failure where batch_id = any(:batch_ids);

-- name: unfinished_replays
-- The newest replays that were planned at least :age seconds ago and have not committed.
select {Batch}
from exactbatch.batch
where pipeline = :pipeline and kind = 'replay' and status = 'planned'
  and planned_at < clock_timestamp() - make_interval(secs => :age)
order by batch_id desc limit :limit;

-- name: batches_of_plans
-- The batches of these plans that are committed or superseded.
select {Batch}
from exactbatch.batch
where pipeline = :pipeline and plan_id = any(:plan_ids::uuid[]) and status <> 'planned'
order by batch_id;

-- name: unannounced
-- The oldest batches of DAG runs that have had results for :age seconds and that no report has announced.
select {Batch}
from exactbatch.batch
where pipeline = :pipeline and announced_at is null and status <> 'planned' and dag_id is not null
  and coalesce(committed_at, planned_at) < clock_timestamp() - make_interval(secs => :age)
order by batch_id limit :limit;

-- name: unannounced_of_plans
-- The batches of these plans that have results and that no report has announced.
select {Batch}
from exactbatch.batch
where plan_id = any(:plan_ids::uuid[]) and announced_at is null and status <> 'planned'
order by batch_id;

-- name: announce
-- Record that an asset event has announced the batches of these plans; return those that none had announced before.
update exactbatch.batch set announced_at = clock_timestamp()
where plan_id = any(:plan_ids::uuid[]) and announced_at is null and status <> 'planned'
returning {Batch};

-- name: batch_ranges
-- The ranges of a batch.
select {OffsetRange}
from exactbatch.batch_range where batch_id = :batch_id
order by topic, partition, from_offset;

-- name: batch_ranges_with_records
-- The ranges of a batch, and the number of records that were read from each.
select {OffsetRange}, records
from exactbatch.batch_range where batch_id = :batch_id
order by topic, partition, from_offset;

-- name: committed_ranges
-- The committed ranges of some batches: all or none of a batch, or some of them with commit="partition".
select batch_id, {OffsetRange}
from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
where r.batch_id = any(:batch_ids::bigint[]) and (b.status = 'committed' or r.records is not null)
order by topic, partition, from_offset;

-- name: partly_committed
-- Batches that are not committed, although some of their ranges are (commit="partition"), with the sums of these.
select batch_id, count(*) as ranges, count(r.records) as committed, sum(r.records)::bigint as records,
       sum(r.rows)::bigint as rows, sum(r.rejected)::bigint as rejected, sum(r.tombstones)::bigint as tombstones
from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
where b.status <> 'committed' and batch_id = any(:batch_ids)
group by batch_id having count(r.records) > 0
order by batch_id;

-- name: successor_of_batch$
-- The newest batch that took the place of this one: an advance, or a later plan of the same DAG run.
select max(s.batch_id) from exactbatch.batch b
join exactbatch.batch s on s.pipeline = b.pipeline and s.batch_id > b.batch_id
where b.batch_id = :batch_id
  and (b.kind = 'advance' and s.kind = 'advance' or s.dag_id = b.dag_id and s.run_id = b.run_id);

-- name: supersede_replay!
-- Supersede a replay, so that it can no longer commit: later ones have processed all of its ranges, or it is withdrawn.
update exactbatch.batch set status = 'superseded', announced_at = '-infinity'
where batch_id = :batch_id and kind = 'replay' and status = 'planned';

-- name: count_ranges!
-- Store the number of records that were read from each range of a batch.
update exactbatch.batch_range r set records = c.records
from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[], :records::bigint[])
    c (topic, partition, from_offset, records)
where r.batch_id = :batch_id and r.topic = c.topic and r.partition = c.partition
  and r.from_offset = c.from_offset;

-- name: commit_batch!
-- Mark the batch committed, in the same transaction as its results.
update exactbatch.batch
set status = 'committed', committed_at = clock_timestamp(),
    records = :records, rows = :rows, rejected = :rejected, tombstones = :tombstones, dropped = :dropped,
    replaced = :replaced, stages = coalesce(stages, '{}') || :stages::jsonb
where batch_id = :batch_id;

-- name: mark_committed_by_ranges!
-- Mark the batch committed, because all of its ranges are, with the sums of their counts.
update exactbatch.batch b
set status = 'committed', committed_at = clock_timestamp(),
    records = r.records, rows = r.rows, rejected = r.rejected, tombstones = r.tombstones, dropped = 0,
    replaced = r.replaced, stages = coalesce(b.stages, '{}') || :stages::jsonb
from (
    select sum(records) as records, sum(rows) as rows, sum(rejected) as rejected, sum(tombstones) as tombstones,
           sum(replaced) as replaced
    from exactbatch.batch_range where batch_id = :batch_id
) r
where b.batch_id = :batch_id;

-- name: note_launch!
-- Record the Spark application of a launch, and the milliseconds between the plan and the launch. A batch that another
-- launch is about to commit is left alone: to wait for it here would gain nothing.
update exactbatch.batch
set application_id = :application_id,
    stages = coalesce(stages, '{}')
        || jsonb_build_object('start', (extract(epoch from clock_timestamp() - planned_at) * 1000)::bigint)
where batch_id = (
    select batch_id from exactbatch.batch
    where batch_id = :batch_id and plan_id = :plan_id and status = 'planned'
    for no key update skip locked
);

-- name: record_failure!
-- Record that a batch has failed once more, unless another plan has its number by now.
insert into exactbatch.batch_failure as f (batch_id, error, message, retryable)
select batch_id, :error, :message, :retryable from exactbatch.batch
where batch_id = :batch_id and plan_id = :plan_id
on conflict (batch_id) do update
set failures = f.failures + 1, failed_at = clock_timestamp(),
    error = excluded.error, message = excluded.message, retryable = excluded.retryable;

-- name: failures
-- Planned batches that fail: the advance, including the failures of those that it superseded since an advance was
-- last committed, and some replays.
with planned as (
    select batch_id, kind from exactbatch.batch
    where pipeline = :pipeline and kind = 'advance' and status = 'planned'
    union all
    select batch_id, kind from exactbatch.batch
    where pipeline = :pipeline and kind = 'replay' and status = 'planned' and batch_id = any(:batch_ids)
), failing as (
    select o.batch_id, o.kind, f.*
    from planned o cross join lateral (
        select f.failures, f.first_failed_at, f.failed_at, f.error, f.message, f.retryable
        from exactbatch.batch_failure f cross join lateral (
            select b.pipeline, b.kind from exactbatch.batch b where b.batch_id = f.batch_id offset 0
        ) b
        where b.pipeline = :pipeline and b.kind = o.kind
          and f.batch_id > case when o.kind = 'replay' then o.batch_id - 1 else coalesce((
              select c.batch_id from exactbatch.batch c
              where c.pipeline = :pipeline and c.kind = 'advance' and c.status = 'committed'
              order by c.batch_id desc limit 1), 0) end
          and (o.kind = 'advance' or f.batch_id = o.batch_id)
    ) f
)
select batch_id, kind, sum(failures)::bigint as failures, min(first_failed_at) as since,
       (array_agg(failed_at order by failed_at desc))[1] as failed_at,
       (array_agg(error order by failed_at desc))[1] as error,
       (array_agg(message order by failed_at desc))[1] as message,
       (array_agg(retryable order by failed_at desc))[1] as retryable
from failing
group by batch_id, kind
order by batch_id;

-- name: folded_batches
-- Those of the batches that are folded and belong to the pipeline.
select batch_id from exactbatch.batch
where batch_id = any(:batch_ids::bigint[]) and pipeline = :pipeline and pruned is not null
order by batch_id;

-- name: mark_partly!
-- Record that the results of folded batches stand for a part of their offsets only.
update exactbatch.batch set pruned = 'part' where batch_id = any(:batch_ids::bigint[]) and pruned = 'whole';
