-- Rejects are grouped by what their reasons have in common: the page in Airflow looks at 10,000 of them at a time, so
-- text in quotes and numbers, which differ from record to record, are taken out once, when a reject is written.

alter table exactbatch.rejected_record add column kind text not null generated always as (left(
    regexp_replace(regexp_replace(left(reason, 2000), '''[^'']*''|"[^"]*"', '…', 'g'), '\d+', '#', 'g'), 200
)) stored;
comment on column exactbatch.rejected_record.kind is
    'The beginning of the reason without text in quotes and numbers, which differ from record to record: rejects of one kind form a group.';
