-- The rows of exactbatch.pipeline and position_epoch. {Definition} stands for the columns that Definition has.

-- name: lock_registrations!
-- Block every other registration until this transaction ends: what one checks about the others must hold.
select exactbatch.take_lock('registrations');

-- name: lock_pipeline^
-- Block every other plan and publish of this pipeline until this transaction ends.
select {Definition}
from exactbatch.pipeline where name = :pipeline
for no key update;

-- name: lock_pipelines
-- As lock_pipeline, for several at once, and without a wait for any.
select name
from exactbatch.pipeline where name = any(:names::text[])
order by name
for no key update nowait;

-- name: get_pipeline^
-- The registration of a pipeline.
select {Definition}
from exactbatch.pipeline where name = :pipeline;

-- name: other_pipelines
-- The registrations of other pipelines that may write to the same tables: whose target is a table of one of these names,
-- and those for which that does not decide, because they have further targets or a sink of a later version.
select {Definition}
from exactbatch.pipeline where name <> :pipeline and name in (
    select name from exactbatch.pipeline
    where (parse_ident(target))[cardinality(parse_ident(target))] = any(:tables::text[])
    union all
    select name from exactbatch.pipeline where other_targets <> '' or sink <> all(:sinks::text[])
)
order by name;

-- name: list_pipelines
-- All registrations.
select {Definition}
from exactbatch.pipeline
order by name;

-- name: register_pipeline!
-- Register a pipeline, or give it a new identity.
insert into exactbatch.pipeline (name, target, sink, key, lineage, version, topics, shares_topics, freshness,
                                 topic_pattern, other_targets)
values (:name, :target, :sink, :key, :lineage, :version, :topics, :shares_topics, :freshness, :topic_pattern,
        :other_targets)
on conflict (name) do update
set target = excluded.target, sink = excluded.sink, key = excluded.key, lineage = excluded.lineage,
    version = excluded.version, topics = excluded.topics, shares_topics = excluded.shares_topics,
    freshness = excluded.freshness, topic_pattern = excluded.topic_pattern, other_targets = excluded.other_targets;

-- name: register_member!
-- Register a pipeline that is not registered yet, because its topic matches a pattern, and record when.
with registered as (
    insert into exactbatch.pipeline (name, target, sink, key, lineage, version, topics, shares_topics, freshness,
                                     other_targets)
    values (:name, :target, :sink, :key, :lineage, :version, :topics, :shares_topics, :freshness, :other_targets)
    on conflict (name) do nothing
    returning name, topics
)
insert into exactbatch.joined_topic (pipeline, topic, pattern, start)
select name, unnest(topics), :pattern, 'earliest' from registered;

-- name: joined_pipelines
-- Pipelines with topics that joined because they match a pattern.
select distinct pipeline from exactbatch.joined_topic where pipeline = any(:names::text[]);

-- name: rename_pipeline!
-- Rename a pipeline; the foreign keys update all its rows. Logins may write it under its new name.
with renamed as (
    update exactbatch.login_pipeline set pipeline = :new where pipeline = :old
)
update exactbatch.pipeline set name = :new where name = :old;

-- name: stored_topics
-- The topics for which pipelines have stored offsets.
select distinct pipeline, topic from exactbatch.stored_offset where pipeline = any(:pipelines::text[]);

-- name: topic_with_several_logs^
-- A topic of which pipelines have processed several logs.
select topic, array_agg(distinct pipeline order by pipeline) as pipelines
from exactbatch.stored_offset where pipeline = any(:pipelines::text[])
group by topic having count(distinct topic_id) > 1 order by topic limit 1;

-- name: planned_batches^
-- The planned batches of some pipelines, and an ID after those of all their batches.
select coalesce(array_agg(batch_id) filter (where status = 'planned'), '{}') as planned,
       coalesce(max(batch_id), 0) + 1 as next
from exactbatch.batch where pipeline = any(:names::text[]);

-- name: position_epochs
-- Where the epochs of these pipelines begin.
select pipeline, epoch, topic, partition, from_offset
from exactbatch.position_epoch where pipeline = any(:pipelines::text[]);

-- name: insert_position_epoch!
-- Begin an epoch in these partitions.
insert into exactbatch.position_epoch (pipeline, epoch, topic, partition, from_offset)
select :pipeline, :epoch, e.* from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[]) e;
