-- What is shown of many pipelines at once, and of the newest batches of one. Each statement reads a bounded number of
-- rows of each pipeline. Names in braces are explained in statements.py.

-- name: definitions
-- The registrations of pipelines.
select {Definition}
from exactbatch.pipeline where name = any(:pipelines::text[])
order by name;

-- name: registration_times
-- When pipelines were registered.
select name, registered_at from exactbatch.pipeline where name = any(:pipelines::text[]);

-- name: positions
-- The stored offsets of pipelines, with where they began and the replay horizons.
select s.pipeline, s.topic, s.topic_id, s.partition, s.first_offset, s.next_offset, s.updated_at, h."offset" as horizon
from exactbatch.stored_offset s left join exactbatch.replay_horizon h
    on h.pipeline = s.pipeline and h.topic_id = s.topic_id and h.partition = s.partition
where s.pipeline = any(:pipelines::text[])
order by s.pipeline, s.topic, s.partition;

-- name: newest_batches
-- The newest batches of pipelines, up to :limit of each, newest first.
-- The lateral query is bounded as page_of_batches of batches.sql is.
select b.*
from unnest(:pipelines::text[]) p (name)
cross join lateral (
    select {Batch}
    from exactbatch.batch
    where pipeline >= p.name and (pipeline, batch_id) <= (p.name, 9223372036854775807)
    order by pipeline desc, batch_id desc limit :limit
) b
order by b.pipeline, b.batch_id desc;

-- name: state_batches
-- The batches that say in which state pipelines are: of each, the newest committed advance, the planned one, the newest
-- that has failed since that commit, and up to :limit of the newest planned replays.
select b.*
from exactbatch.pipeline_state s
cross join lateral unnest(array[s.last_batch_id, s.open_batch_id, s.failing_batch_id]) i (batch_id)
-- With `offset 0`, Postgres looks each of them up, instead of reading all batches.
cross join lateral (select {Batch} from exactbatch.batch where batch_id = i.batch_id offset 0) b
where s.pipeline = any(:pipelines::text[])
union
select b.*
from unnest(:pipelines::text[]) p (name)
cross join lateral (
    select {Batch}
    from exactbatch.batch where pipeline = p.name and kind = 'replay' and status = 'planned'
    order by batch_id desc limit :limit
) b
order by pipeline, batch_id desc;

-- name: range_totals
-- How many ranges and offsets some batches have; no row for a folded batch.
select batch_id, count(*) as ranges, sum(until_offset - from_offset)::bigint as offsets
from exactbatch.batch_range where batch_id = any(:batch_ids) group by batch_id;

-- name: reject_reasons
-- The kinds of the first :sample rejects of a pipeline, by frequency, each with the reason of its first record and its
-- latest batch. Reasons may be long, so only those that are shown are read, and compared byte by byte.
with sample as materialized (
    select topic_id, partition, "offset", kind, batch_id,
           row_number() over (order by topic_id, partition, "offset") as number
    from exactbatch.rejected_record where pipeline = :pipeline
    order by topic_id, partition, "offset" limit :sample
), groups as (
    select kind, count(*) as records, max(batch_id) as newest_batch_id, min(number) as first,
           sum(count(*)) over ()::bigint as sampled
    from sample group by kind order by count(*) desc, kind collate "C" limit :limit
)
select g.kind, g.records, r.reason as example, g.newest_batch_id, g.sampled
from groups g join sample s on s.number = g.first
-- With `offset 0`, Postgres looks each of them up, instead of reading all rejects.
cross join lateral (
    select reason from exactbatch.rejected_record
    where pipeline = :pipeline and topic_id = s.topic_id and partition = s.partition and "offset" = s."offset" offset 0
) r
order by g.records desc, g.kind collate "C";

-- name: rejects_of_kind
-- The first rejects of a group of reasons after a record, without their contents.
select topic, topic_id, partition, "offset", octet_length(value) as bytes, reason, batch_id
from (
    select * from exactbatch.rejected_record
    where pipeline = :pipeline and (topic_id, partition, "offset") > (:topic_id::uuid, :partition, :offset)
    order by topic_id, partition, "offset" limit :sample
) r
where :kind::text is null
   or kind = :kind
order by topic_id, partition, "offset" limit :limit;

-- name: rejected_record^
-- One reject with its contents, each cut to :bytes bytes.
select topic, topic_id, partition, "offset", reason, batch_id, left(headers::text, :bytes) as headers,
       substring(key for :bytes) as key, octet_length(key) as key_bytes,
       substring(value for :bytes) as value, octet_length(value) as value_bytes
from exactbatch.rejected_record
where pipeline = :pipeline and topic_id = :topic_id and partition = :partition and "offset" = :offset;
