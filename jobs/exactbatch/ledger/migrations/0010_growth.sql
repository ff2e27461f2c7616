-- The cost of plans, batches, replays and status does not grow with the history.

-- Where a pipeline began in a partition is kept: to find it took all ranges of all batches.
alter table exactbatch.stored_offset add column first_offset bigint check (first_offset >= 0);
comment on column exactbatch.stored_offset.first_offset is
    'Where the pipeline began in the partition: below it lies history, which only replays cover.';
with began as (
    select b.pipeline, r.topic_id, r.partition, min(r.from_offset) as first_offset
    from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where b.kind = 'advance' and (b.status = 'committed' or r.records is not null)
    group by b.pipeline, r.topic_id, r.partition
    union all
    select pipeline, topic_id, partition, min(lower(offsets)) from exactbatch.coverage
    where kind = 'loss'
    group by pipeline, topic_id, partition
), first as (
    select pipeline, topic_id, partition, min(first_offset) as first_offset from began
    group by pipeline, topic_id, partition
)
update exactbatch.stored_offset s set first_offset = f.first_offset
from first f where f.pipeline = s.pipeline and f.topic_id = s.topic_id and f.partition = s.partition;
update exactbatch.stored_offset set first_offset = next_offset where first_offset is null;
alter table exactbatch.stored_offset alter column first_offset set not null;

-- The newest batches of one of many pipelines.
create index batch_of_pipeline on exactbatch.batch (pipeline, batch_id);
-- The latest of many resolved times, and one of them.
create index time_boundary_of_pipeline on exactbatch.time_boundary (pipeline, boundary);

-- The same rule as before, that no offset is covered twice, over a key of fixed length: text and uuid made the index
-- slow to write. Two partitions with the same key, one chance in 2^64, would be refused, never counted twice.
create function exactbatch.log_key(pipeline text, topic_id uuid, partition integer) returns bigint
    language sql immutable parallel safe
    return uuid_hash_extended(topic_id, hashtextextended(pipeline, partition::bigint));
comment on function exactbatch.log_key is 'A hash of one partition of a topic, as one pipeline has processed it.';
alter table exactbatch.coverage drop constraint coverage_counts_once,
    add constraint coverage_counts_once exclude using gist
        (exactbatch.log_key(pipeline, topic_id, partition) with =, offsets with &&);

-- Old batches can be folded: exactbatch prune.
alter table exactbatch.coverage
    add column newest_batch_id bigint,
    drop constraint coverage_kind_check,
    add constraint coverage_kind_check check (kind in ('batch', 'loss', 'pruned')),
    add constraint coverage_pruned_check check ((kind = 'pruned') = (newest_batch_id is not null));
comment on column exactbatch.coverage.newest_batch_id is
    'The newest of the batches whose rows of coverage were folded into this one (kind = ''pruned'').';
alter table exactbatch.batch add column pruned text check (pruned in ('whole', 'part', 'none'));
comment on column exactbatch.batch.pruned is
    'Set when exactbatch prune has folded the batch: whether its results stand for all of its offsets, a part or none.';

create or replace function exactbatch.refuse_change_of_the_past() returns trigger language plpgsql as $$
declare
    kept record := new;
begin
    if tg_op = 'UPDATE' and tg_table_name in ('batch', 'stored_offset') and pg_trigger_depth() > 1 then
        -- The foreign key cascades, because the pipeline was renamed.
        kept.pipeline := old.pipeline;
    end if;
    -- One `if` inside the other: PL/pgSQL looks up every field that a condition names.
    if tg_table_name = 'batch' then
        if old.status <> 'planned' then
            if tg_op = 'UPDATE' then
                if old.announced_at is null then
                    kept.announced_at := null;
                end if;
                if old.pruned is null or old.pruned = 'whole' and new.pruned = 'part' then
                    kept.pruned := old.pruned;
                end if;
                if kept is not distinct from old then
                    return new;
                end if;
            end if;
            raise 'batch % is %: its row can not be changed any more', old.batch_id, old.status
                using errcode = 'restrict_violation';
        end if;
        if tg_op = 'UPDATE' and new.pruned is not null then
            raise 'batch % is planned: it can not be pruned', old.batch_id using errcode = 'restrict_violation';
        end if;
    elsif tg_table_name = 'batch_range' then
        if (select status <> 'planned' and (tg_op <> 'DELETE' or pruned is null)
            from exactbatch.batch where batch_id = old.batch_id) then
            raise 'batch % is not planned: its ranges can not be changed any more', old.batch_id
                using errcode = 'restrict_violation';
        end if;
    elsif kept.next_offset < old.next_offset
          or (kept.pipeline, kept.topic, kept.partition, kept.topic_id, kept.first_offset)
             is distinct from (old.pipeline, old.topic, old.partition, old.topic_id, old.first_offset) then
        raise 'the stored offset % of %[%] can only move forward', old.next_offset, old.topic, old.partition
            using errcode = 'restrict_violation';
    end if;
    return case tg_op when 'DELETE' then old else new end;
end $$;
