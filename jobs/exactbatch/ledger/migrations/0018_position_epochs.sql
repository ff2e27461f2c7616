-- Epochs of positions: a source whose positions begin again, and whose changes count as newer from an offset on.

create table exactbatch.position_epoch (
    pipeline        text not null references exactbatch.pipeline on update cascade,
    epoch           integer not null check (epoch > 0),
    topic           text not null,
    partition       integer not null,
    from_offset     bigint not null check (from_offset >= 0),
    begun_at        timestamptz not null default clock_timestamp(),
    primary key (pipeline, epoch, topic, partition)
);
comment on table exactbatch.position_epoch is
    'Where the positions of the source begin again: changes from this offset of the partition on are newer than all before. All changes of a partition that joined later belong to the epoch.';
