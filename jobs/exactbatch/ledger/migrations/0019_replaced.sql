-- Pipeline(replace_unstorable=…): how many records decoded with replaced text.

alter table exactbatch.batch add column replaced bigint;
comment on column exactbatch.batch.replaced is
    'Records that decoded after text that Postgres cannot hold was replaced; null before the commit, and for older batches.';
alter table exactbatch.batch_range add column replaced bigint;
comment on column exactbatch.batch_range.replaced is
    'As in batch, for one range, where ranges are committed one by one (commit="partition"); null otherwise.';
