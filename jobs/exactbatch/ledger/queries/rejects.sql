-- Rejected records.

-- name: rejects
-- Rejected records in the order of the log, without their keys, values and headers.
select topic, topic_id, partition, "offset", octet_length(value) as bytes, reason, batch_id
from exactbatch.rejected_record where pipeline = :pipeline
order by topic, topic_id, partition, "offset" limit :limit;

-- name: rejects_by_reason
-- The most frequent reasons, with the number of their records and the first of these; and the number of all reasons
-- and of all rejected records.
select reason, count(*) as records,
       (array_agg(topic || '[' || partition || '] ' || "offset" order by topic, partition, "offset"))[1] as first,
       count(*) over () as reasons, sum(count(*)) over ()::bigint as all_records
from exactbatch.rejected_record where pipeline = :pipeline
group by reason order by count(*) desc, reason limit :limit;

-- name: insert_rejects!
-- Store the staged rejects of some task attempts. {rejects} is a staging table.
with ranges as materialized (
    select topic, topic_id, partition, range_agg(int8range(from_offset, until_offset)) as offsets
    from exactbatch.batch_range where batch_id = :batch_id group by topic, topic_id, partition
)
insert into exactbatch.rejected_record
    (pipeline, topic_id, partition, "offset", topic, key, value, headers, reason, batch_id)
select :pipeline, r.topic_id, s.partition, s."offset", s.topic, s.key, s.value, s.headers::jsonb, s.reason,
       :batch_id
from {rejects} s join ranges r on r.topic = s.topic and r.partition = s.partition and s."offset" <@ r.offsets
where s.task_attempt = any(:attempts);

-- name: delete_rejects!
-- Delete the rejects of some batches in ranges.
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
-- The number of rejects of some batches in each range; ranges are numbered from 1.
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

-- name: batches_of_rejects
-- The batches of the rejects in each range; ranges are numbered from 0.
select distinct r.number - 1 as number, j.batch_id
from unnest(:topic_id::uuid[], :partition::integer[], :from_offset::bigint[], :until_offset::bigint[])
    with ordinality r (topic_id, partition, from_offset, until_offset, number)
cross join lateral (
    select j.batch_id from exactbatch.rejected_record j
    where j.pipeline = :pipeline and j.topic_id = r.topic_id and j.partition = r.partition
      and j."offset" >= r.from_offset and j."offset" < r.until_offset
    offset 0
) j;
