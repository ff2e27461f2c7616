-- Whether pipelines are overdue, and views for dashboards.

alter table exactbatch.pipeline add column freshness interval check (freshness > interval '0');
comment on column exactbatch.pipeline.freshness is
    'The age from which an unprocessed record makes the pipeline overdue, as it was registered last; null: it never is.';

-- The newest commits of a pipeline, and those of a time, among millions.
create index batch_committed on exactbatch.batch (pipeline, committed_at) where committed_at is not null;

-- The views run with the rights of their owner: a role that may read them needs no right on the tables. None of them
-- has contents of records, nor messages of errors and reasons of rejects, which may quote them.

create view exactbatch.pipeline_state as
select p.name as pipeline, p.target, p.sink, p.topics, p.registered_at,
       newest.committed_at as last_commit_at,
       extract(epoch from now() - newest.committed_at)::double precision as seconds_since_commit,
       newest.batch_id as last_batch_id,
       open.batch_id as open_batch_id,
       waiting.planned_at as waiting_since,
       failed.batch_id as failing_batch_id, failed.failures, failed.failed_at, failed.error, failed.retryable,
       extract(epoch from p.freshness)::double precision as freshness_seconds,
       case when p.freshness is not null then coalesce(now() - waiting.planned_at > p.freshness, false) end as overdue
from exactbatch.pipeline p
left join lateral (
    select b.batch_id, b.committed_at from exactbatch.batch b
    where b.pipeline = p.name and b.committed_at is not null and b.kind = 'advance'
    order by b.committed_at desc limit 1
) newest on true
left join exactbatch.batch open on open.pipeline = p.name and open.kind = 'advance' and open.status = 'planned'
-- Comparisons of rows: with `pipeline = …`, Postgres may walk the primary key instead, past all other pipelines.
left join lateral (
    select b.planned_at from exactbatch.batch b
    where (b.pipeline, b.batch_id) > (p.name, coalesce(newest.batch_id, 0)) and b.pipeline <= p.name
      and (b.kind = 'replay' or b.status <> 'committed') and b.kind = 'advance'
    order by b.pipeline, b.batch_id limit 1
) waiting on open.batch_id is not null
left join lateral (
    select f.batch_id, f.failures, f.failed_at, f.error, f.retryable
    from (
        select b.batch_id from exactbatch.batch b
        where (b.pipeline, b.batch_id) > (p.name, coalesce(newest.batch_id, 0)) and b.pipeline <= p.name
          and (b.kind = 'replay' or b.status <> 'committed') and b.kind = 'advance'
        order by b.pipeline desc, b.batch_id desc limit 10
    ) b join exactbatch.batch_failure f using (batch_id)
    order by f.batch_id desc limit 1
) failed on true;
comment on view exactbatch.pipeline_state is
    'One pipeline: its newest committed advance, what is planned and fails, and whether it is overdue as far as the ledger knows.';

create view exactbatch.batch_history as
select b.batch_id, b.pipeline, b.kind, b.origin, b.status, b.dag_id, b.run_id, b.planned_at, b.committed_at,
       extract(epoch from b.committed_at - b.planned_at)::double precision as seconds,
       b.records, b.rows, b.rejected, b.tombstones, b.dropped,
       f.failures, f.first_failed_at, f.failed_at, f.error, f.retryable
from exactbatch.batch b left join exactbatch.batch_failure f using (batch_id);
comment on view exactbatch.batch_history is 'One batch, in whatever status, with its counts and its failures.';

create view exactbatch.open_batches as
select b.batch_id, b.pipeline, b.kind, b.origin, b.dag_id, b.run_id, b.planned_at,
       extract(epoch from now() - b.planned_at)::double precision as seconds_open,
       f.failures, f.first_failed_at, f.failed_at, f.error, f.retryable
from (
    -- Each part has an index of its own.
    select * from exactbatch.batch where kind = 'advance' and status = 'planned'
    union all
    select * from exactbatch.batch where kind = 'replay' and status = 'planned'
) b left join exactbatch.batch_failure f using (batch_id);
comment on view exactbatch.open_batches is 'One batch that is planned: it runs, waits for a retry, or is left over.';

create view exactbatch.partition_state as
select s.pipeline, s.topic, s.topic_id, s.partition, s.first_offset, s.next_offset, s.updated_at,
       extract(epoch from now() - s.updated_at)::double precision as seconds_since_update,
       h."offset" as horizon
from exactbatch.stored_offset s
left join exactbatch.replay_horizon h using (pipeline, topic_id, partition);
comment on view exactbatch.partition_state is 'Where a pipeline stands in one partition.';
