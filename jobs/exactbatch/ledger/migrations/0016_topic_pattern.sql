-- Topics by pattern: which topics a pipeline loads, and when each of them joined; pipelines with several targets.

alter table exactbatch.pipeline add column topic_pattern text;
comment on column exactbatch.pipeline.topic_pattern is
    'A regular expression of Python: all topics whose names match it; then topics is empty. Null: topics are named.';

alter table exactbatch.pipeline add column other_targets text not null default '';
comment on column exactbatch.pipeline.other_targets is
    'Further targets that each batch writes in the same transaction, as JSON: [[target, sink, key, version], …]; or empty.';

create table exactbatch.joined_topic (
    pipeline        text not null references exactbatch.pipeline on update cascade,
    topic           text not null,
    topic_id        uuid,
    pattern         text not null,
    start           text not null,
    batch_id        bigint references exactbatch.batch,
    dag_id          text,
    run_id          text,
    joined_at       timestamptz not null default clock_timestamp(),
    primary key (pipeline, topic)
);
comment on table exactbatch.joined_topic is
    'A topic that a plan included for the first time, because it matches the pattern of the pipeline.';
comment on column exactbatch.joined_topic.start is
    'Where it started: earliest, latest, group:NAME or offsets; stored_offset.first_offset has the offsets.';
comment on column exactbatch.joined_topic.batch_id is
    'The batch of that plan; null if it found nothing to process, and for a table that joined: its first batch.';
