-- What is shown of many pipelines at once, and of the newest batches of one. Each statement reads a bounded number of
-- rows of each pipeline. {Batch} stands for the columns that this class has.

-- name: definitions
-- The registrations of pipelines.
select {Definition}
from exactbatch.pipeline where name = any(:pipelines::text[])
order by name;

-- name: positions
-- The stored offsets of pipelines, with where they began and the replay horizons.
select s.pipeline, s.topic, s.topic_id, s.partition, s.first_offset, s.next_offset, s.updated_at, h."offset" as horizon
from exactbatch.stored_offset s left join exactbatch.replay_horizon h
    on h.pipeline = s.pipeline and h.topic_id = s.topic_id and h.partition = s.partition
where s.pipeline = any(:pipelines::text[])
order by s.pipeline, s.topic, s.partition;

-- name: newest_batches
-- The newest batches of pipelines, up to :limit of each, newest first, with their latest failure.
select b.*, f.failures, f.failed_at, f.error, f.message, f.retryable
from unnest(:pipelines::text[]) p (name)
cross join lateral (
    select {Batch}
    from exactbatch.batch where pipeline = p.name
    order by batch_id desc limit :limit
) b
left join exactbatch.batch_failure f on f.batch_id = b.batch_id
order by b.pipeline, b.batch_id desc;

-- name: page_of_batches
-- The newest batches of a pipeline below a batch ID, with their numbers of ranges and their latest failure.
select b.*, f.failures, f.failed_at, f.error, f.message, f.retryable, r.ranges, r.offsets
from (
    select {Batch}
    from exactbatch.batch where pipeline = :pipeline and batch_id < :before
    order by batch_id desc limit :limit
) b
left join exactbatch.batch_failure f on f.batch_id = b.batch_id
left join lateral (
    select count(*) as ranges, sum(r.until_offset - r.from_offset)::bigint as offsets
    from exactbatch.batch_range r where r.batch_id = b.batch_id
) r on true
order by b.batch_id desc;

-- name: reject_reasons
-- The reasons of the first :sample rejects of a pipeline, by frequency, each with its first record and its latest
-- batch. A reason often contains the value, so text in quotes and numbers are left out of the reason of a group.
with sample as materialized (
    select topic, partition, "offset", reason, batch_id,
           regexp_replace(regexp_replace(left(reason, 2000), '''[^'']*''|"[^"]*"', '…', 'g'), '\d+', '#', 'g') as kind
    from exactbatch.rejected_record where pipeline = :pipeline
    order by topic_id, partition, "offset" limit :sample
)
select kind, count(*) as records, min(reason) as example, max(batch_id) as newest_batch_id,
       (select count(*) from sample) as sampled
from sample group by kind order by count(*) desc, kind limit :limit;

-- name: rejects_of_kind
-- The first rejects of a group of reasons after a record, without their contents.
select topic, topic_id, partition, "offset", octet_length(value) as bytes, reason, batch_id
from (
    select * from exactbatch.rejected_record
    where pipeline = :pipeline and (topic_id, partition, "offset") > (:topic_id::uuid, :partition, :offset)
    order by topic_id, partition, "offset" limit :sample
) r
where :kind::text is null
   or regexp_replace(regexp_replace(left(reason, 2000), '''[^'']*''|"[^"]*"', '…', 'g'), '\d+', '#', 'g') = :kind
order by topic_id, partition, "offset" limit :limit;

-- name: rejected_record^
-- One reject with its contents, each cut to :bytes bytes.
select topic, topic_id, partition, "offset", reason, batch_id, left(headers::text, :bytes) as headers,
       substring(key for :bytes) as key, octet_length(key) as key_bytes,
       substring(value for :bytes) as value, octet_length(value) as value_bytes
from exactbatch.rejected_record
where pipeline = :pipeline and topic_id = :topic_id and partition = :partition and "offset" = :offset;
