-- What the operator's page draws is found without reading a history of millions of rows.

-- The row that covers an offset, or the one that follows.
create index coverage_in_order on exactbatch.coverage
    (exactbatch.log_key(pipeline, topic_id, partition), upper(offsets));
-- The exceptions among the rows of batches.
create index coverage_exceptions on exactbatch.coverage (pipeline, topic_id, partition, lower(offsets))
    where kind <> 'batch';
