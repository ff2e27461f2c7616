-- Results that go back to Kafka: exactbatch.forward and exactbatch.outbox. {Stream} stands for the columns of Stream.

-- name: get_stream^
-- The stream of a pipeline.
select {Stream} from exactbatch.forward where pipeline = :pipeline;

-- name: insert_stream!
-- Begin a stream; name_stream follows.
insert into exactbatch.forward (pipeline, stream, topic) values (:pipeline, '', :topic);

-- name: name_stream!
-- Give a new stream a name that no other has, before or after it.
update exactbatch.forward set stream = 'exactbatch.' || pipeline || '.' || topic || '.' || stream_id
where pipeline = :pipeline;

-- name: delete_stream!
-- End a stream that has nothing to send.
delete from exactbatch.forward
where pipeline = :pipeline and sent_sequence = last_sequence and attempted_sequence is null;

-- name: number_results^
-- Take the next numbers of a stream, which stays locked until the commit: numbers are in the order of commits.
update exactbatch.forward set last_sequence = last_sequence + :results
where pipeline = :pipeline
returning stream_id, last_sequence - :results as sequence;

-- name: take_stream!
-- Let a forwarder take the place of any other.
update exactbatch.forward set forwarder = :forwarder where pipeline = :pipeline;

-- name: hold_stream^
-- Lock the stream of a forwarder that no other has replaced: until the commit, none replaces it or records anything.
select stream_id from exactbatch.forward
where stream_id = :stream_id and forwarder = :forwarder
for no key update;

-- name: pending_results
-- The next results to send, up to so many of them, and so many bytes unless the first alone has more.
select sequence, batch_id, plan_id, kind, change, key, value
from (
    select o.sequence, o.batch_id, b.plan_id, b.kind, o.change, o.key, o.value,
           sum(coalesce(octet_length(o.key), 0) + coalesce(octet_length(o.value), 0)) over (order by o.sequence)
               as bytes,
           row_number() over (order by o.sequence) as place
    from exactbatch.outbox o left join exactbatch.batch b using (batch_id)
    where o.stream_id = :stream_id and o.sequence > :after and o.sequence <= :after + :results
    order by o.sequence
) pending
where bytes <= :bytes or place = 1
order by sequence;

-- name: result_plan^
-- The plan of the batch of a result that has not been sent.
select b.plan_id from exactbatch.outbox o join exactbatch.batch b using (batch_id)
where o.stream_id = :stream_id and o.sequence = :sequence;

-- name: too_large_result^
-- The first result whose key and value have more bytes than a message may have.
select sequence, batch_id, convert_from(left_key, 'UTF8') as key, bytes
from (
    select sequence, batch_id, key as left_key,
           coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) as bytes
    from exactbatch.outbox where stream_id = :stream_id and sequence > :after
) pending
where bytes > :bytes order by sequence limit 1;

-- name: note_attempt!
-- Note which results the next Kafka transaction sends.
update exactbatch.forward set attempted_sequence = :until where stream_id = :stream_id;

-- name: confirm_sent!
-- Record that the topic has all results up to a number.
update exactbatch.forward
set sent_sequence = :sequence, attempted_sequence = null, topic_id = :topic_id, next_offsets = :next_offsets,
    sent_at = case when :sequence > sent_sequence then clock_timestamp() else sent_at end
where stream_id = :stream_id and forwarder = :forwarder;

-- name: delete_sent!
-- Delete results that the topic has. Those up to :previous were deleted before: without this bound, the search would
-- pass over all of them, as long as another session's snapshot keeps them from being vacuumed.
delete from exactbatch.outbox where stream_id = :stream_id and sequence > :previous and sequence <= :sequence;

-- name: oldest_unsent^
-- When the oldest result that was not sent was committed.
select b.committed_at
from exactbatch.forward f
join exactbatch.outbox o on o.stream_id = f.stream_id and o.sequence = f.sent_sequence + 1
join exactbatch.batch b using (batch_id)
where f.pipeline = :pipeline;
