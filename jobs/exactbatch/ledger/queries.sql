-- The ledger's SQL. Every transaction takes its locks in the order pipeline, then batch.

-- name: lock_pipeline^
-- Make every other plan and publish of this pipeline wait until this transaction ends.
select name, target, sink, key, lineage, version, topics, shares_topics
from exactbatch.pipeline where name = :pipeline
for no key update;

-- name: get_pipeline^
-- What is registered of a pipeline.
select name, target, sink, key, lineage, version, topics, shares_topics
from exactbatch.pipeline where name = :pipeline;

-- name: other_pipelines
-- What is registered of all pipelines but one.
select name, target, sink, key, lineage, version, topics, shares_topics
from exactbatch.pipeline where name <> :pipeline
order by name;

-- name: list_pipelines
-- The names of all registered pipelines.
select name from exactbatch.pipeline order by name;

-- name: register_pipeline!
-- Register a pipeline, or give it a new identity.
insert into exactbatch.pipeline (name, target, sink, key, lineage, version, topics, shares_topics)
values (:name, :target, :sink, :key, :lineage, :version, :topics, :shares_topics)
on conflict (name) do update
set target = excluded.target, sink = excluded.sink, key = excluded.key, lineage = excluded.lineage,
    version = excluded.version, topics = excluded.topics, shares_topics = excluded.shares_topics;

-- name: rename_pipeline!
-- Give a pipeline another name; the foreign keys carry it to all its rows.
update exactbatch.pipeline set name = :new where name = :old;

-- name: stored_topics
-- The topics of which pipelines have stored offsets.
select distinct pipeline, topic from exactbatch.stored_offset where pipeline = any(:pipelines::text[]);

-- name: stored_offsets
-- Where a pipeline stands.
select topic, partition, next_offset, leader_epoch, topic_id, updated_at
from exactbatch.stored_offset where pipeline = :pipeline
order by topic, partition;

-- name: insert_stored_offsets!
-- Where partitions start that had no stored offset.
insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, leader_epoch, topic_id)
select :pipeline, s.*
from unnest(:topic::text[], :partition::integer[], :next_offset::bigint[], :leader_epoch::integer[],
            :topic_id::uuid[]) s;

-- name: record_losses!
-- Offsets that retention removed before they were processed: they are accounted for as lost.
with lost as (
    select * from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[],
                         :topic_id::uuid[], :leader_epoch::integer[])
        l (topic, partition, from_offset, until_offset, topic_id, leader_epoch)
), covered as (
    insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind)
    select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'loss' from lost
)
update exactbatch.stored_offset s
set next_offset = lost.until_offset, leader_epoch = lost.leader_epoch, updated_at = now()
from lost
where s.pipeline = :pipeline and s.topic = lost.topic and s.partition = lost.partition
  and s.next_offset = lost.from_offset;

-- name: supersede_planned_advance
-- An advance that was planned and never committed must not commit any more once a newer one is planned.
update exactbatch.batch b
set status = 'superseded',
    announced_at = case when not exists (
        select from exactbatch.batch_range r where r.batch_id = b.batch_id and r.records is not null
    ) then '-infinity'::timestamptz end
where pipeline = :pipeline and kind = 'advance' and status = 'planned'
returning batch_id;

-- name: hold_planned_advance
-- Wait until no range of the planned advance is about to be committed, and let none begin to.
select batch_id from exactbatch.batch
where pipeline = :pipeline and kind = 'advance' and status = 'planned'
for no key update;

-- name: insert_batch$
-- A new planned batch.
insert into exactbatch.batch (pipeline, kind, origin, dag_id, run_id, clear_number, run_started_at, generation)
values (:pipeline, :kind, :origin, :dag_id, :run_id, :clear_number, :run_started_at,
        (select coalesce(max(generation) + 1, 0) from exactbatch.batch
         where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id))
returning batch_id;

-- name: insert_batch_ranges!
-- The ranges of a planned batch.
insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id, leader_epoch)
select :batch_id, r.*
from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[],
            :topic_id::uuid[], :leader_epoch::integer[]) r;

-- name: supersede_run
-- What earlier generations of a DAG run planned and never committed must not commit any more.
update exactbatch.batch b
set status = 'superseded',
    announced_at = case when not exists (
        select from exactbatch.batch_range r where r.batch_id = b.batch_id and r.records is not null
    ) then '-infinity'::timestamptz end
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id and status = 'planned'
returning batch_id;

-- name: supersede_overtaken!
-- A replay that can not commit any more, because later ones have processed all of its ranges.
update exactbatch.batch set status = 'superseded', announced_at = '-infinity'
where batch_id = :batch_id and kind = 'replay' and status = 'planned';

-- name: begin_incarnation!
-- A DAG run has begun under the id of an earlier one, whose batches are not its own.
insert into exactbatch.run_life (pipeline, dag_id, run_id, generation)
select :pipeline, :dag_id, :run_id, max(generation) + 1 from exactbatch.batch
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id
having count(*) > 0
on conflict do nothing;

-- name: incarnation_of_run$
-- The generation with which the current incarnation of a DAG run began, as far as that is known.
select coalesce(max(generation), 0) from exactbatch.run_life
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id;

-- name: batches_of_run
-- All batches that were planned for a DAG run, newest first.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id
order by generation desc;

-- name: get_batch^
-- One batch.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch where batch_id = :batch_id;

-- name: lock_batch^
-- One batch, held until this transaction ends.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch where batch_id = :batch_id
for no key update;

-- name: is_standby$
-- Whether this server follows another one, which may be ahead of it.
select pg_is_in_recovery();

-- name: successor_of_batch$
-- The newest batch that took this one's place: an advance, or a later plan of the same DAG run.
select max(s.batch_id) from exactbatch.batch b
join exactbatch.batch s on s.pipeline = b.pipeline and s.batch_id > b.batch_id
where b.batch_id = :batch_id
  and (b.kind = 'advance' and s.kind = 'advance' or s.dag_id = b.dag_id and s.run_id = b.run_id);

-- name: list_batches
-- The newest batches of a pipeline.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch where pipeline = :pipeline
order by batch_id desc limit :limit;

-- name: unfinished_replays
-- The newest replays that were planned some time ago and have not committed.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch
where pipeline = :pipeline and kind = 'replay' and status = 'planned'
  and planned_at < clock_timestamp() - make_interval(secs => :age)
order by batch_id desc limit :limit;

-- name: unannounced
-- The oldest batches of DAG runs that have results for some time, and no report has told of them.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch
where pipeline = :pipeline and announced_at is null and status <> 'planned' and dag_id is not null
  and coalesce(committed_at, planned_at) < clock_timestamp() - make_interval(secs => :age)
order by batch_id limit :limit;

-- name: batches_of_plans
-- The batches of these plans that have results.
select batch_id, plan_id, pipeline, kind, origin, dag_id, run_id, generation, clear_number, run_started_at, status,
       records, rows, rejected, tombstones, dropped, planned_at, committed_at
from exactbatch.batch
where pipeline = :pipeline and plan_id = any(:plan_ids::uuid[]) and status <> 'planned'
order by batch_id;

-- name: announce!
-- An asset event tells of these batches.
update exactbatch.batch set announced_at = clock_timestamp()
where plan_id = any(:plan_ids::uuid[]) and announced_at is null and status <> 'planned';

-- name: batch_ranges
-- The ranges of a batch.
select topic, partition, from_offset, until_offset, topic_id, leader_epoch
from exactbatch.batch_range where batch_id = :batch_id
order by topic, partition, from_offset;

-- name: batch_ranges_with_records
-- The ranges of a batch, and how many records were read from each.
select topic, partition, from_offset, until_offset, topic_id, leader_epoch, records
from exactbatch.batch_range where batch_id = :batch_id
order by topic, partition, from_offset;

-- name: committed_ranges
-- The ranges of a batch that are committed; with commit="partition" these can be some of them.
select r.topic, r.partition, r.from_offset, r.until_offset, r.topic_id, r.leader_epoch
from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
where r.batch_id = :batch_id and (b.status = 'committed' or r.records is not null)
order by r.topic, r.partition, r.from_offset;

-- name: partly_committed
-- Batches that are not committed, some ranges of which are (commit="partition"), with the sums of these.
select batch_id, count(*) as ranges, count(r.records) as committed, sum(r.records)::bigint as records,
       sum(r.rows)::bigint as rows, sum(r.rejected)::bigint as rejected, sum(r.tombstones)::bigint as tombstones
from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
where b.pipeline = :pipeline and b.status <> 'committed' and batch_id = any(:batch_ids)
group by batch_id having count(r.records) > 0
order by batch_id;

-- name: note_failure!
-- The processing of a batch has failed, once more; nothing where another plan has its number by now.
insert into exactbatch.batch_failure as f (batch_id, error, message, retryable)
select batch_id, :error, :message, :retryable from exactbatch.batch
where batch_id = :batch_id and plan_id = :plan_id
on conflict (batch_id) do update
set failures = f.failures + 1, failed_at = clock_timestamp(),
    error = excluded.error, message = excluded.message, retryable = excluded.retryable;

-- name: failures
-- Planned batches that fail: the advance, with the failures of those that it superseded since an advance was
-- committed last, and those of some replays.
select o.batch_id, o.kind, sum(f.failures)::bigint as failures, min(f.first_failed_at) as since,
       (array_agg(f.failed_at order by f.failed_at desc))[1] as failed_at,
       (array_agg(f.error order by f.failed_at desc))[1] as error,
       (array_agg(f.message order by f.failed_at desc))[1] as message,
       (array_agg(f.retryable order by f.failed_at desc))[1] as retryable
from exactbatch.batch o
join exactbatch.batch b on b.pipeline = o.pipeline and b.kind = o.kind
    and (b.batch_id = o.batch_id or o.kind = 'advance' and b.batch_id > coalesce((
        select max(c.batch_id) from exactbatch.batch c
        where c.pipeline = o.pipeline and c.kind = 'advance' and c.status = 'committed'), 0))
join exactbatch.batch_failure f on f.batch_id = b.batch_id
where o.pipeline = :pipeline and o.status = 'planned' and (o.kind = 'advance' or o.batch_id = any(:batch_ids))
group by o.batch_id
order by o.batch_id;

-- name: advance_stored_offsets
-- Move stored offsets from exactly where the batch's ranges start to where they end.
update exactbatch.stored_offset s
set next_offset = r.until_offset, leader_epoch = r.leader_epoch, updated_at = now()
from exactbatch.batch_range r
where r.batch_id = :batch_id and s.pipeline = :pipeline
  and s.topic = r.topic and s.partition = r.partition
  and s.topic_id = r.topic_id and s.next_offset = r.from_offset
returning s.topic, s.partition;

-- name: cover_batch!
-- The batch's results stand for the offsets of its ranges.
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'batch', batch_id
from exactbatch.batch_range where batch_id = :batch_id;

-- name: covering
-- Which batches' results, and which losses, stand for some of the offsets of ranges.
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

-- name: uncover
-- Take the rows that overlap the batch's ranges out of the coverage.
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

-- name: cover_rest!
-- Batches keep the offsets that were not taken from them.
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
select :pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), kind, batch_id
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[], :from_offset::bigint[],
            :until_offset::bigint[], :kind::text[], :batch_id::bigint[])
    c (topic, topic_id, partition, from_offset, until_offset, kind, batch_id);

-- name: delete_rejects!
-- Take back the rejects of some batches in ranges.
with ranges as materialized (
    select topic_id, partition, min(from_offset) as first, max(until_offset) as until,
           range_agg(int8range(from_offset, until_offset)) as offsets
    from unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
        r (topic_id, partition, from_offset, until_offset)
    group by topic_id, partition
)
delete from exactbatch.rejected_record j using ranges r
where j.pipeline = :pipeline and j.topic_id = r.topic_id and j.partition = r.partition
  and j."offset" >= r.first and j."offset" < r.until and j."offset" <@ r.offsets
  and j.batch_id = any(:batch_ids::bigint[]);

-- name: count_rejects
-- How many rejects of some batches lie in each of some ranges, by their number among these, from 1 on.
with ranges as materialized (
    select topic_id, partition, min(from_offset) as first, max(until_offset) as until,
           range_agg(int8range(from_offset, until_offset)) as offsets,
           array_agg(from_offset order by from_offset) as starts, array_agg(number order by from_offset) as numbers
    from unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
        with ordinality r (topic_id, partition, from_offset, until_offset, number)
    group by topic_id, partition
)
select r.numbers[width_bucket(j."offset", r.starts)] as number, count(*) as rejects
from ranges r join exactbatch.rejected_record j on j.pipeline = :pipeline and j.topic_id = r.topic_id
    and j.partition = r.partition and j."offset" >= r.first and j."offset" < r.until and j."offset" <@ r.offsets
where j.batch_id = any(:batch_ids::bigint[])
group by 1;

-- name: has_results$
-- Whether any batch of a pipeline has committed results that still count.
select exists (select from exactbatch.coverage where pipeline = :pipeline and kind = 'batch');

-- name: rejects
-- Rejected records in the order of the log, without their keys, values and headers.
select topic, topic_id, partition, "offset", octet_length(value) as bytes, reason, batch_id
from exactbatch.rejected_record where pipeline = :pipeline
order by topic, topic_id, partition, "offset" limit :limit;

-- name: rejects_by_reason
-- How many records were rejected for the most frequent reasons, and the first of them; of all reasons, how many
-- there are, and how many records.
select reason, count(*) as records,
       (array_agg(topic || '[' || partition || '] ' || "offset" order by topic, partition, "offset"))[1] as first,
       count(*) over () as reasons, sum(count(*)) over ()::bigint as all_records
from exactbatch.rejected_record where pipeline = :pipeline
group by reason order by count(*) desc, reason limit :limit;

-- name: still_covering
-- Those of the batches that stand for any offset.
select distinct batch_id from exactbatch.coverage
where pipeline = :pipeline and batch_id = any(:batch_ids)
order by batch_id;

-- name: nearby_time_offsets
-- The offset that a time is pinned to in each partition, if any, and those of the pinned times just before and after it.
-- Offsets follow their times, so the nearest times have the nearest offsets.
select p.topic, p.partition, pinned."offset" as pinned, before."offset" as before, after."offset" as after
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[]) p (topic, topic_id, partition)
left join lateral (
    select "offset" from exactbatch.time_boundary
    where pipeline = :pipeline and topic_id = p.topic_id and partition = p.partition and boundary = :at
) pinned on true
left join lateral (
    select "offset" from exactbatch.time_boundary
    where pipeline = :pipeline and topic_id = p.topic_id and partition = p.partition and boundary < :at
    order by boundary desc limit 1
) before on true
left join lateral (
    select "offset" from exactbatch.time_boundary
    where pipeline = :pipeline and topic_id = p.topic_id and partition = p.partition and boundary > :at
    order by boundary limit 1
) after on true;

-- name: insert_time_offsets!
-- Resolve a time in some partitions, once and for all.
insert into exactbatch.time_boundary (pipeline, topic, topic_id, partition, boundary, "offset")
select :pipeline, p.topic, p.topic_id, p.partition, :at, p."offset"
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[], :offset::bigint[])
    p (topic, topic_id, partition, "offset");

-- name: time_offsets
-- The resolved times of a pipeline, the latest first.
select topic, topic_id, partition, boundary as at, "offset", resolved_at
from exactbatch.time_boundary
where pipeline = :pipeline and (:at::timestamptz[] is null or boundary = any(:at::timestamptz[]))
order by boundary desc, topic, partition limit :limit;

-- name: forget_time_offsets!
-- Let times be resolved anew.
delete from exactbatch.time_boundary
where pipeline = :pipeline and boundary >= :from_time and boundary <= :to_time;

-- name: first_advanced
-- Where the pipeline began in each log: below that lies history, which only replays cover.
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

-- name: count_ranges!
-- How many records were read from each range of a batch.
update exactbatch.batch_range r set records = c.records
from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[], :records::bigint[])
    c (topic, partition, from_offset, records)
where r.batch_id = :batch_id and r.topic = c.topic and r.partition = c.partition
  and r.from_offset = c.from_offset;

-- name: commit_batch!
-- The batch is done; true only together with everything else in this transaction.
update exactbatch.batch
set status = 'committed', committed_at = clock_timestamp(),
    records = :records, rows = :rows, rejected = :rejected, tombstones = :tombstones, dropped = :dropped
where batch_id = :batch_id;

-- name: commit_ranges!
-- The batch is done, because each of its ranges is: it has the sums of what they gave.
update exactbatch.batch b
set status = 'committed', committed_at = clock_timestamp(),
    records = r.records, rows = r.rows, rejected = r.rejected, tombstones = r.tombstones, dropped = 0
from (
    select sum(records) as records, sum(rows) as rows, sum(rejected) as rejected, sum(tombstones) as tombstones
    from exactbatch.batch_range where batch_id = :batch_id
) r
where b.batch_id = :batch_id;

-- name: coverage
-- Which offsets a pipeline accounts for, in order.
select topic, topic_id, partition, lower(offsets) as from_offset, upper(offsets) as until_offset, kind, batch_id
from exactbatch.coverage where pipeline = :pipeline
order by topic, topic_id, partition, lower(offsets);

-- name: horizons
-- The offset of each log below which nothing can be replayed any more.
select topic, partition, topic_id, "offset" from exactbatch.replay_horizon where pipeline = :pipeline;

-- name: raise_horizon!
-- Below this offset nothing can be replayed from now on; a horizon never moves back.
insert into exactbatch.replay_horizon as h (pipeline, topic, topic_id, partition, "offset")
values (:pipeline, :topic, :topic_id, :partition, :offset)
on conflict (pipeline, topic_id, partition) do update
set "offset" = excluded."offset", compacted_at = now()
where h."offset" < excluded."offset";

-- name: try_lock_launch$
-- Whether no open transaction holds this launch.
select pg_try_advisory_xact_lock(:launch);

-- name: staging_tables
-- All staging tables there are.
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'exactbatch_staging' and c.relkind = 'r';

-- name: insert_rejects!
-- Keep the staged rejects of some task attempts. {rejects} is a staging table.
insert into exactbatch.rejected_record
    (pipeline, topic_id, partition, "offset", topic, key, value, headers, reason, batch_id)
select :pipeline, r.topic_id, s.partition, s."offset", s.topic, s.key, s.value, s.headers::jsonb, s.reason,
       r.batch_id
from {rejects} s join exactbatch.batch_range r
    on r.topic = s.topic and r.partition = s.partition and r.from_offset <= s."offset"
    and s."offset" < r.until_offset
where r.batch_id = :batch_id and s.task_attempt = any(:attempts);

-- name: staged_records
-- How many records the staged rows and notes of some task attempts come from, and one that is in no range of the
-- batch. {rows} and {rejects} are staging tables.
select count(*) as records,
       min(case when r.batch_id is null then
           concat_ws(' ', coalesce(kafka_topic, 'null'), 'partition', coalesce(kafka_partition::text, 'null'),
                     'offset', coalesce(kafka_offset::text, 'null')) end) as foreign_record
from (
    select kafka_topic, kafka_partition, kafka_offset from {rows} where task_attempt = any(:attempts)
    union
    select topic, partition, "offset" from {rejects} where task_attempt = any(:notes)
) record
left join exactbatch.batch_range r on r.batch_id = :batch_id
    and r.topic = kafka_topic and r.partition = kafka_partition
    and r.from_offset <= kafka_offset and kafka_offset < r.until_offset;
