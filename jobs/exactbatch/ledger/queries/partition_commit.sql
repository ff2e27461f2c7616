-- The statements of commit="partition", which executors run through ADBC or psycopg2: parameters are numbered. In each of
-- them $1 is the batch_id and, where they are used, $2, $3 and $4 are the topic, partition and from_offset of the range.
-- A transaction takes its locks in the order batch, then stored offset; it never locks the pipeline.

-- name: bind_transaction
-- Let this transaction write rows of one pipeline ($1) only. ADBC reads no column of the type void.
select 1 from exactbatch.bind_transaction($1);

-- name: range_state
-- The plan that has the number of the batch, the state of the batch, and whether the range is committed.
select b.plan_id, b.status, r.records is not null
from exactbatch.batch b left join exactbatch.batch_range r
    on r.batch_id = b.batch_id and r.topic = $2 and r.partition = $3 and r.from_offset = $4
where b.batch_id = $1;

-- name: share_batch
-- Lock the batch alone, shared, so that no other transaction can supersede it before this one ends.
select plan_id, status from exactbatch.batch where batch_id = $1 for share;

-- name: lock_stored_offset
-- Where a pipeline ($1) stands in a topic ($2) and partition ($3), held until this transaction ends.
select next_offset, topic_id from exactbatch.stored_offset
where pipeline = $1 and topic = $2 and partition = $3
for update;

-- name: insert_range_rejects
-- Keep the rejects of the range, which are in a temporary table; return how many there are.
with inserted as (
    insert into exactbatch.rejected_record
        (pipeline, topic_id, partition, "offset", topic, key, value, headers, reason, batch_id)
    select b.pipeline, r.topic_id, r.partition, s."offset", r.topic, s.key, s.value, s.headers::jsonb,
           s.reason, r.batch_id
    from pg_temp.exactbatch_rejects s, exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where r.batch_id = $1 and r.topic = $2 and r.partition = $3 and r.from_offset = $4
    returning 1
)
select count(*) from inserted;

-- name: account_range
-- Write the coverage and the counts of the range (records $5, rows $6, rejected $7, tombstones $8, replaced $9) and move the
-- stored offset to its end; return how many rows of each were written.
with this as (
    select b.pipeline, r.* from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where batch_id = $1 and topic = $2 and partition = $3 and from_offset = $4
), covered as (
    insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
    select pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'batch', batch_id from this
    returning 1
), counted as (
    update exactbatch.batch_range set records = $5, rows = $6, rejected = $7, tombstones = $8, replaced = $9
    where batch_id = $1 and topic = $2 and partition = $3 and from_offset = $4 and records is null
    returning 1
), moved as (
    update exactbatch.stored_offset s
    set next_offset = this.until_offset, leader_epoch = this.leader_epoch, updated_at = clock_timestamp()
    from this
    where s.pipeline = this.pipeline and s.topic = this.topic and s.partition = this.partition
    returning 1
)
select (select count(*) from covered), (select count(*) from counted), (select count(*) from moved);
