-- Batches that fail: what was said last, and since when.

create table exactbatch.batch_failure (
    batch_id        bigint primary key references exactbatch.batch,
    failures        integer not null default 1 check (failures > 0),
    first_failed_at timestamptz not null default clock_timestamp(),
    failed_at       timestamptz not null default clock_timestamp(),
    error           text not null,
    message         text not null,
    retryable       boolean not null
);
comment on table exactbatch.batch_failure is
    'One batch whose processing has failed: how often, and the error of the last time. A driver that was killed leaves none.';
