-- Launches and their staging tables.

-- name: staging_tables
-- The names of all staging tables that this login, or a role that it has, owns.
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'exactbatch_staging' and c.relkind = 'r' and pg_has_role(c.relowner, 'usage');

-- name: staged_records
-- The number of records from which the staged rows and notes of some task attempts come, and one of them that is in
-- no range of the batch. {rows} and {rejects} are staging tables.
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
