-- Fingerprints: a few processed records of each partition.

-- name: fingerprints
-- The fingerprints of a pipeline.
select topic, partition, topic_id, "offset", timestamp_ms as timestamp, digest
from exactbatch.fingerprint where pipeline = :pipeline;

-- name: insert_fingerprints!
-- Add fingerprints; those of offsets that have one stay as they are.
insert into exactbatch.fingerprint (pipeline, topic, topic_id, partition, "offset", timestamp_ms, digest)
select :pipeline, f.*
from unnest(:topic::text[], :topic_id::uuid[], :partition::integer[], :offset::bigint[], :timestamp::bigint[],
            :digest::bytea[]) f
on conflict do nothing;

-- name: thin_fingerprints!
-- Of the partitions in which fingerprints were added, keep the newest one, and the oldest one at each order of
-- magnitude, to the base 16, of the distance behind the newest: the older of them become those of the next order.
delete from exactbatch.fingerprint f using (
    select n.topic_id, n.partition, n."offset",
           row_number() over (partition by n.topic_id, n.partition, n.distance order by n."offset") > 1
           and n.behind > 0 as is_superfluous
    from (
        select m.*, least(6, floor(log(16, greatest(m.behind, 1)))) as distance
        from (
            select k.topic_id, k.partition, k."offset",
                   max(k."offset") over (partition by k.topic_id, k.partition) - k."offset" as behind
            from exactbatch.fingerprint k
            where k.pipeline = :pipeline
              and (k.topic_id, k.partition) in (select * from unnest(:topic_id::uuid[], :partition::integer[]))
        ) m
    ) n
) t
where f.pipeline = :pipeline and f.topic_id = t.topic_id and f.partition = t.partition and f."offset" = t."offset"
  and t.is_superfluous;
