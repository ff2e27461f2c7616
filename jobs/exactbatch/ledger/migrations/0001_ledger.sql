-- The ledger: what was planned, what was committed, and where every pipeline stands.
-- The names of these tables and columns are a public contract.

create extension if not exists btree_gist;

create table exactbatch.pipeline (
    name            text primary key,
    -- The identity of what a pipeline has written so far; it may not change unnoticed.
    target          text not null,
    sink            text not null,
    key             text[] not null default '{}',
    lineage         text not null check (lineage in ('record', 'batch')),
    registered_at   timestamptz not null default now()
);
comment on table exactbatch.pipeline is 'One pipeline, registered by exactbatch init; its row is the lock of the pipeline.';

create table exactbatch.stored_offset (
    pipeline        text not null references exactbatch.pipeline,
    topic           text not null,
    partition       integer not null check (partition >= 0),
    next_offset     bigint not null check (next_offset >= 0),
    leader_epoch    integer,
    topic_id        uuid not null,
    updated_at      timestamptz not null default now(),
    primary key (pipeline, topic, partition)
);
comment on table exactbatch.stored_offset is 'Where a pipeline stands in one partition: every offset below next_offset is accounted for.';

create table exactbatch.batch (
    batch_id        bigint generated always as identity primary key,
    pipeline        text not null references exactbatch.pipeline,
    kind            text not null check (kind in ('advance', 'replay')),
    origin          text not null check (origin in ('schedule', 'manual', 'backfill', 'clear', 'cli')),
    dag_id          text,
    run_id          text,
    generation      integer not null default 0,
    status          text not null default 'planned' check (status in ('planned', 'committed', 'superseded')),
    records         bigint,
    rows            bigint,
    rejected        bigint,
    tombstones      bigint,
    planned_at      timestamptz not null default clock_timestamp(),
    committed_at    timestamptz,
    unique (pipeline, dag_id, run_id, generation),
    check ((status = 'committed') = (committed_at is not null)),
    check (status <> 'committed' or records is not null and rows is not null and rejected is not null
                                    and tombstones is not null)
);
comment on table exactbatch.batch is 'One planned unit of work. Only a planned batch can become committed or superseded.';

-- The planner looks for the advance that a new one supersedes: there is at most one.
create unique index batch_planned_advance on exactbatch.batch (pipeline)
    where kind = 'advance' and status = 'planned';

create table exactbatch.batch_range (
    batch_id        bigint not null references exactbatch.batch,
    topic           text not null,
    partition       integer not null check (partition >= 0),
    from_offset     bigint not null check (from_offset >= 0),
    until_offset    bigint not null,
    topic_id        uuid not null,
    leader_epoch    integer,
    records         bigint,
    primary key (batch_id, topic, partition, from_offset),
    check (from_offset < until_offset)
);
comment on table exactbatch.batch_range is 'One range [from_offset, until_offset) of a batch, frozen when it was planned.';

create table exactbatch.coverage (
    pipeline        text not null references exactbatch.pipeline,
    topic           text not null,
    topic_id        uuid not null,
    partition       integer not null check (partition >= 0),
    offsets         int8range not null check (not isempty(offsets)),
    kind            text not null check (kind in ('batch', 'loss')),
    batch_id        bigint references exactbatch.batch,
    check ((kind = 'batch') = (batch_id is not null)),
    -- The database itself refuses to count a record twice.
    constraint coverage_counts_once exclude using gist
        (pipeline with =, topic_id with =, partition with =, offsets with &&)
);
comment on table exactbatch.coverage is 'Which batch''s results stand for which offsets, or that they were lost before they were processed.';

create table exactbatch.rejected_record (
    pipeline        text not null references exactbatch.pipeline,
    topic_id        uuid not null,
    partition       integer not null,
    "offset"        bigint not null,
    topic           text not null,
    key             bytea,
    value           bytea,
    headers         jsonb not null,
    reason          text not null,
    batch_id        bigint not null references exactbatch.batch,
    primary key (pipeline, topic_id, partition, "offset")
);
comment on table exactbatch.rejected_record is
    'One record that could not be decoded. headers is a list of [name, value in base64 or null].';
