-- The statements of commit="partition", which executors run. A range is a row of exactbatch.batch_range.

-- name: is_range_committed$
-- Whether a range is committed.
select records is not null from exactbatch.batch_range
where batch_id = :batch_id and topic = :topic and partition = :partition and from_offset = :from_offset;

-- name: lock_stored_offset^
-- Where a pipeline stands in a partition, held until this transaction ends.
select next_offset, topic_id from exactbatch.stored_offset
where pipeline = :pipeline and topic = :topic and partition = :partition
for update;

-- name: account_range^
-- Write the coverage and the counts of the range and move the stored offset to its end; return how many rows of each were
-- written.
with this as (
    select b.pipeline, r.* from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where batch_id = :batch_id and topic = :topic and partition = :partition and from_offset = :from_offset
), covered as (
    insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
    select pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'batch', batch_id from this
    returning 1
), counted as (
    update exactbatch.batch_range
    set records = :records, rows = :rows, rejected = :rejected, tombstones = :tombstones, replaced = :replaced
    where batch_id = :batch_id and topic = :topic and partition = :partition and from_offset = :from_offset
      and records is null
    returning 1
), moved as (
    update exactbatch.stored_offset s
    set next_offset = this.until_offset, leader_epoch = this.leader_epoch, updated_at = clock_timestamp()
    from this
    where s.pipeline = this.pipeline and s.topic = this.topic and s.partition = this.partition
    returning 1
)
select (select count(*) from covered) as covered, (select count(*) from counted) as counted,
       (select count(*) from moved) as moved;
