-- Replays: resolved times, and which life of a DAG run a batch was planned for.

create table exactbatch.time_boundary (
    pipeline        text not null references exactbatch.pipeline,
    topic           text not null,
    topic_id        uuid not null,
    partition       integer not null check (partition >= 0),
    boundary        timestamptz not null,
    "offset"        bigint not null check ("offset" >= 0),
    resolved_at     timestamptz not null default now(),
    primary key (pipeline, topic_id, partition, boundary)
);
comment on table exactbatch.time_boundary is
    'The offset that a time was resolved to, once: offsets from it on belong to the time and later. Neighbouring intervals share it.';

alter table exactbatch.batch
    add column clear_number integer not null default 0,
    add column run_started_at timestamptz;
comment on column exactbatch.batch.generation is
    'Counts the plans of one DAG run: a run that was cleared, or deleted and created again, plans anew.';
comment on column exactbatch.batch.clear_number is 'How often the run had been cleared when this was planned.';
comment on column exactbatch.batch.run_started_at is
    'When that life of the run began; with clear_number it tells an automatic retry from a cleared run and from a new one.';

-- An automatic retry finds the plan of the first try; it cannot make a second one.
create unique index batch_of_run on exactbatch.batch
    (pipeline, dag_id, run_id, clear_number, coalesce(run_started_at, '-infinity'))
    where dag_id is not null;
