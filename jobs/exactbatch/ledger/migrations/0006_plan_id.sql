-- A batch is the one that was planned, not another one that got its number after the ledger went back in time.

-- A restore, or the promotion of a replica that lags, takes the sequence of batch_id back as well: the number of a
-- batch that was lost is issued again.
alter table exactbatch.batch add column plan_id uuid not null default gen_random_uuid() unique;
comment on column exactbatch.batch.plan_id is
    'Which plan this is: random, so that it never comes again. batch_id does, when the database is restored or fails over.';
