-- The newest replays, and the newest batches that are not committed, among many that are: exactbatch batches, and the
-- replays that the operator's page draws.
create index batch_unusual on exactbatch.batch (pipeline, batch_id) where kind = 'replay' or status <> 'committed';
