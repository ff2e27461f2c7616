-- What binds a transaction to a pipeline.

-- name: bind_transaction!
-- Let this transaction write rows of one pipeline only.
select exactbatch.bind_transaction(:pipeline);
