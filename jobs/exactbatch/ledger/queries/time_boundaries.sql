-- Times that are pinned to offsets.

-- name: nearby_time_boundaries
-- The offset that a time is pinned to in each partition, if any, and those of the nearest pinned times around it.
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

-- name: insert_time_boundaries!
-- Pin a time to offsets of some partitions.
insert into exactbatch.time_boundary (pipeline, topic, topic_id, partition, boundary, "offset")
select :pipeline, p.topic, p.topic_id, p.partition, :at, p."offset"
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[], :offset::bigint[])
    p (topic, topic_id, partition, "offset");

-- name: time_boundaries
-- The pinned times of a pipeline, the latest first.
select topic, topic_id, partition, boundary as at, "offset", resolved_at
from exactbatch.time_boundary
where pipeline = :pipeline and (:at::timestamptz[] is null or boundary = any(:at::timestamptz[]))
    and (:from_time::timestamptz is null or boundary >= :from_time)
    and (:to_time::timestamptz is null or boundary <= :to_time)
order by boundary desc, topic, partition limit :limit;

-- name: forget_time_boundaries!
-- Unpin times, so that the next windows that use them ask Kafka again.
delete from exactbatch.time_boundary
where pipeline = :pipeline and boundary >= :from_time and boundary <= :to_time;
