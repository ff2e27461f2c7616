-- Results go back to Kafka: the stream of each pipeline, and what has been committed and not been sent yet.

create table exactbatch.forward (
    pipeline            text primary key references exactbatch.pipeline on update cascade,
    stream_id           bigint not null unique generated always as identity,
    stream              text not null unique,
    topic               text not null,
    topic_id            uuid,
    last_sequence       bigint not null default 0,
    sent_sequence       bigint not null default 0,
    attempted_sequence  bigint,
    next_offsets        jsonb not null default '{}',
    forwarder           uuid,
    sent_at             timestamptz,
    check (0 <= sent_sequence and sent_sequence <= last_sequence),
    check (attempted_sequence > sent_sequence and attempted_sequence <= last_sequence)
);
comment on table exactbatch.forward is 'The results that a pipeline forwards to a topic, numbered in the order of their commits.';
comment on column exactbatch.forward.stream is 'Names the stream in the header of each message; it is also the transactional.id. It ends with the stream_id, so no later stream has it. A renamed pipeline keeps it.';
comment on column exactbatch.forward.topic_id is 'The ID of the topic; null before anything was sent.';
comment on column exactbatch.forward.last_sequence is 'The number of the newest result that was committed here; 0: none.';
comment on column exactbatch.forward.sent_sequence is 'The topic has all results up to this number.';
comment on column exactbatch.forward.attempted_sequence is 'The last result of a Kafka transaction whose outcome is not recorded yet; null: there is none.';
comment on column exactbatch.forward.next_offsets is 'By partition of the topic: the offset below which there is no result after sent_sequence.';
comment on column exactbatch.forward.forwarder is 'The forwarder that may send; an earlier one is fenced.';

-- No foreign key, and no other index: it has a row for each result, which is deleted when it has been sent.
create table exactbatch.outbox (
    stream_id           bigint not null,
    sequence            bigint not null,
    batch_id            bigint not null,
    change              text not null check (change in ('row', 'retracted', 'deleted')),
    key                 bytea,
    value               bytea,
    primary key (stream_id, sequence)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02);
comment on table exactbatch.outbox is 'Results that were committed and are not known to be in their topic yet: keys and values of messages.';
