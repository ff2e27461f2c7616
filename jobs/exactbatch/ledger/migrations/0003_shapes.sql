-- Results of every shape: records that a transform drops, ranges that are committed one by one, and changes
-- that were compacted.

alter table exactbatch.batch add column dropped bigint;
update exactbatch.batch set dropped = 0 where status = 'committed';
alter table exactbatch.batch add check (status <> 'committed' or dropped is not null);
comment on column exactbatch.batch.dropped is
    'Records that decoded and gave no row, because the transform left them out. records = records with rows + rejected + tombstones + dropped.';

alter table exactbatch.batch_range
    add column rows bigint,
    add column rejected bigint,
    add column tombstones bigint;
comment on column exactbatch.batch_range.rows is
    'With rejected and tombstones: what one range gave, where ranges are committed one by one (commit="partition"); null otherwise.';

create table exactbatch.replay_horizon (
    pipeline        text not null references exactbatch.pipeline,
    topic           text not null,
    topic_id        uuid not null,
    partition       integer not null check (partition >= 0),
    "offset"        bigint not null check ("offset" > 0),
    compacted_at    timestamptz not null default now(),
    primary key (pipeline, topic_id, partition)
);
comment on table exactbatch.replay_horizon is
    'Offsets below this one cannot be replayed any more: exactbatch compact has dropped what they contributed beside the latest.';
