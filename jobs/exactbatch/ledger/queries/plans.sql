-- Stored offsets and plans. Every transaction takes its locks in the order pipeline, then batch.

-- name: stored_offsets
-- The stored offsets of a pipeline.
select topic, partition, next_offset, leader_epoch, topic_id, updated_at
from exactbatch.stored_offset where pipeline = :pipeline
order by topic, partition;

-- name: insert_stored_offsets!
-- Start partitions that have no stored offset.
insert into exactbatch.stored_offset
    (pipeline, topic, partition, next_offset, leader_epoch, topic_id, first_offset)
select :pipeline, s.*, s.next_offset
from unnest(:topic::text[], :partition::integer[], :next_offset::bigint[], :leader_epoch::integer[],
            :topic_id::uuid[]) s (topic, partition, next_offset, leader_epoch, topic_id);

-- name: record_joined_topics!
-- Record that topics joined a pipeline by its pattern, in the plan with this batch, null if it has none.
insert into exactbatch.joined_topic (pipeline, topic, topic_id, pattern, start, batch_id, dag_id, run_id)
select :pipeline, j.topic, j.topic_id, :pattern, :start, :batch_id, :dag_id, :run_id
from unnest(:topic::text[], :topic_id::uuid[]) j (topic, topic_id)
on conflict (pipeline, topic) do nothing;

-- name: joined_topics
-- The topics that joined a pipeline by its pattern, the newest first.
select {JoinedTopic} from exactbatch.joined_topic where pipeline = :pipeline
order by joined_at desc, topic limit :limit;

-- name: record_losses!
-- Account as lost for offsets that retention removed before they were processed.
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
-- Supersede the advance that was planned and has not committed: it can no longer commit.
update exactbatch.batch b
set status = 'superseded',
    announced_at = case when not exists (
        select from exactbatch.batch_range r where r.batch_id = b.batch_id and r.records is not null
    ) then '-infinity'::timestamptz end
where pipeline = :pipeline and kind = 'advance' and status = 'planned'
returning batch_id;

-- name: lock_planned_advance
-- Wait for ranges of the planned advance that are about to commit, and let no other one commit.
select batch_id from exactbatch.batch
where pipeline = :pipeline and kind = 'advance' and status = 'planned'
for no key update;

-- name: advance_stored_offsets
-- Move the stored offsets from exactly the starts of the batch's ranges to their ends.
update exactbatch.stored_offset s
set next_offset = r.until_offset, leader_epoch = r.leader_epoch, updated_at = now()
from exactbatch.batch_range r
where r.batch_id = :batch_id and s.pipeline = :pipeline
  and s.topic = r.topic and s.partition = r.partition
  and s.topic_id = r.topic_id and s.next_offset = r.from_offset
returning s.topic, s.partition;

-- name: insert_batch$
-- Insert a planned batch; return its batch_id.
insert into exactbatch.batch (pipeline, kind, origin, dag_id, run_id, clear_number, run_started_at, stages,
                              generation)
values (:pipeline, :kind, :origin, :dag_id, :run_id, :clear_number, :run_started_at,
        jsonb_strip_nulls(jsonb_build_object('plan', :plan_ms::bigint)),
        (select coalesce(max(generation) + 1, 0) from exactbatch.batch
         where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id))
returning batch_id;

-- name: insert_batch_ranges!
-- Insert the ranges of a planned batch.
insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id, leader_epoch)
select :batch_id, r.*
from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[],
            :topic_id::uuid[], :leader_epoch::integer[]) r;

-- name: supersede_run
-- Supersede the batches that earlier generations of a DAG run planned and have not committed.
update exactbatch.batch b
set status = 'superseded',
    announced_at = case when not exists (
        select from exactbatch.batch_range r where r.batch_id = b.batch_id and r.records is not null
    ) then '-infinity'::timestamptz end
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id and status = 'planned'
returning batch_id;

-- name: begin_run!
-- Record that a DAG run was created under the ID of a deleted one, whose batches are not its own.
insert into exactbatch.run_life (pipeline, dag_id, run_id, generation)
select :pipeline, :dag_id, :run_id, max(generation) + 1 from exactbatch.batch
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id
having count(*) > 0
on conflict do nothing;

-- name: record_empty_run!
-- Record that a DAG run found nothing to process.
insert into exactbatch.empty_run (pipeline, dag_id, run_id, clear_number)
values (:pipeline, :dag_id, :run_id, :clear_number)
on conflict (pipeline, dag_id, run_id) do update
set clear_number = excluded.clear_number, planned_at = excluded.planned_at;

-- name: forget_empty_run!
-- Forget that a DAG run of this ID found nothing to process.
delete from exactbatch.empty_run where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id;

-- name: empty_run^
-- When a DAG run found nothing to process.
select clear_number, planned_at from exactbatch.empty_run
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id;

-- name: first_generation$
-- The generation at which the plans of a DAG run begin, after those of deleted runs; 0 if that is not known.
select coalesce(max(generation), 0) from exactbatch.run_life
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id;

-- name: batches_of_run
-- All batches that were planned for a DAG run, newest first.
select {Batch}
from exactbatch.batch
where pipeline = :pipeline and dag_id = :dag_id and run_id = :run_id
order by generation desc;
