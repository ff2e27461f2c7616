-- What operators see of runs and batches: runs that found nothing, the time of each stage, and Spark's application.

create table exactbatch.empty_run (
    pipeline        text not null references exactbatch.pipeline on update cascade,
    dag_id          text not null,
    run_id          text not null,
    clear_number    integer not null,
    planned_at      timestamptz not null default clock_timestamp(),
    primary key (pipeline, dag_id, run_id)
);
comment on table exactbatch.empty_run is
    'A DAG run whose plan was empty: there was nothing new. Clearing it processes nothing.';
comment on column exactbatch.empty_run.clear_number is 'How often the run had been cleared when this was planned.';
-- exactbatch prune deletes the oldest ones.
create index empty_run_by_time on exactbatch.empty_run (pipeline, planned_at);

alter table exactbatch.batch
    add column stages jsonb,
    add column application_id text;
comment on column exactbatch.batch.stages is
    'Milliseconds by stage, of the plan and of the launch that committed the batch: {"plan": 12, "stage": 3400, …}.';
comment on column exactbatch.batch.application_id is
    'The ID of the Spark application that last started to process the batch.';
