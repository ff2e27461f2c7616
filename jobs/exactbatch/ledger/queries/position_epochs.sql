-- The rows of exactbatch.position_epoch.

-- name: position_epochs
-- Where the epochs of these pipelines begin.
select pipeline, epoch, topic, partition, from_offset
from exactbatch.position_epoch where pipeline = any(:pipelines::text[]);

-- name: insert_position_epoch!
-- Begin an epoch in these partitions.
insert into exactbatch.position_epoch (pipeline, epoch, topic, partition, from_offset)
select :pipeline, :epoch, e.* from unnest(:topic::text[], :partition::integer[], :from_offset::bigint[]) e;
