-- Digests of a few processed records of each partition: a log that has other records at their offsets is another one,
-- whatever its topic ID and leader epochs are.

create table exactbatch.fingerprint (
    pipeline        text not null references exactbatch.pipeline on update cascade,
    topic           text not null,
    topic_id        uuid not null,
    partition       integer not null,
    "offset"        bigint not null,
    timestamp_ms    bigint,
    digest          bytea not null,
    taken_at        timestamptz not null default now(),
    primary key (pipeline, topic_id, partition, "offset")
);
comment on table exactbatch.fingerprint is
    'A processed record, by which another log is noticed: at most eight of each partition, the sparser the farther they are behind the stored offset.';
comment on column exactbatch.fingerprint.timestamp_ms is
    'The record''s timestamp, in milliseconds since 1970; null without one.';
comment on column exactbatch.fingerprint.digest is 'Of key, value and timestamp of the record; BLAKE2b, 16 bytes.';

create trigger writer_inserts after insert on exactbatch.fingerprint referencing new table as written
    for each statement execute function exactbatch.check_writer();
create trigger writer_updates after update on exactbatch.fingerprint referencing old table as written
    for each statement execute function exactbatch.check_writer();
create trigger writer_deletes after delete on exactbatch.fingerprint referencing old table as written
    for each statement execute function exactbatch.check_writer();
create trigger history before truncate on exactbatch.fingerprint
    for each statement execute function exactbatch.refuse_truncate();
