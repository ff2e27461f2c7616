"""Send the results of a pipeline that the topic does not have yet.

One Kafka transaction after another carries the next results of the outbox. The ledger records before each what it
will carry, and after its commit that the topic has it. A forwarder that starts takes over: it fences every other one
(in the ledger, and at the broker, which ends their transaction), and then learns from the topic itself what it has.
"""

import logging
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from exactbatch.errors import (
    ConfigurationError,
    Fenced,
    KafkaUnavailable,
    NotRegistered,
    ResultsDiverged,
    ResultTooLarge,
    TopicRecreated,
)
from exactbatch.failpoints import failpoint
from exactbatch.forwarding.producer import OVERHEAD, TRANSACTION_TIMEOUT, ResultProducer
from exactbatch.forwarding.sent import TopicState, read_state, wait_for_settled_partitions
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import may_be_same
from exactbatch.ledger import PendingResult, Stream, Streams
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import Settings
from exactbatch.to_topic import ToTopic

logger = logging.getLogger(__name__)

# At most, of one Kafka transaction.
_RESULTS: Final = 10_000
_BYTES: Final = 16 * 1024 * 1024
# How many offsets of each partition are read before anything is sent to a topic for the first time.
_LOOK_BACK: Final = 1000


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a forwarder did: how many results it sent, and up to which number the topic has them."""

    topic: str
    sent: int
    sent_sequence: int
    unsent: int

    def __str__(self) -> str:
        rest = f"; {self.unsent:,} more were committed in the meantime" if self.unsent else ""
        return (
            f"{self.sent:,} results sent to the topic {self.topic!r}, which now has every result up to number "
            f"{self.sent_sequence:,}{rest}"
        )


def forward_results(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    *,
    accept_repeats: bool = False,
    progress: Callable[[int, int], None] = lambda _sent, _total: None,
) -> Forwarded:
    """Send all results that were committed before the call, in their order; `progress` gets how many, and of how many.

    With `accept_repeats`, what the topic has and the ledger does not know is left as it is, and all results of the
    outbox are sent.

    Raises Fenced if another forwarder takes over, ResultsDiverged, ResultTooLarge, TopicMissing and TopicRecreated
    before anything is sent, and KafkaUnavailable, ReadFailed and PostgresUnavailable, after which a retry goes on.
    """
    before, forward = find_stream(connection, pipeline)
    if not before.unsent and before.attempted_sequence is None:
        return Forwarded(before.topic, 0, before.sent_sequence, 0)
    return _Forwarder(connection, settings, pipeline.name, forward).run(accept_repeats, progress)


def find_stream(connection: Connection, pipeline: Pipeline) -> tuple[Stream, ToTopic]:
    """Return the stream of a pipeline's results, with the number of those that wait, and how they are sent.

    Raises ConfigurationError if the pipeline forwards no results, and NotRegistered.
    """
    if pipeline.forward is None:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} forwards no results: it has no forward=ToTopic(…)"
        )
    with transaction(connection):
        streams = Streams(connection)
        streams.check(pipeline)
        stream = streams.read(pipeline.name)
    if stream is None:
        raise NotRegistered(
            f"pipeline {pipeline.name!r} is not registered. Run `exactbatch register` for it."
        )
    return stream, pipeline.forward


class _Forwarder:
    def __init__(self, connection: Connection, settings: Settings, pipeline: str, forward: ToTopic) -> None:
        self._connection, self._settings, self._forward = connection, settings, forward
        self._broker = KafkaBroker(settings.kafka)
        self._results = _RESULTS  # of the next transaction
        self._id = UUID(int=secrets.randbits(128))
        # From here on no earlier forwarder records anything in the ledger, nor begins another transaction.
        with transaction(connection):
            self._stream = Streams(connection).take(pipeline, self._id)

    def run(self, accept_repeats: bool, progress: Callable[[int, int], None]) -> Forwarded:
        topic_id = self._broker.topic_ids([self._stream.topic])[self._stream.topic]
        self._check_topic_id(topic_id, accept_repeats)
        producer = ResultProducer(
            self._settings.kafka,
            self._stream,
            compression=self._forward.compression,
            max_message_bytes=self._forward.max_bytes + OVERHEAD,
        )
        with closing(producer):
            # From here on no earlier forwarder commits a transaction, so the topic tells what is sent.
            attempted = self._stream.attempted_sequence or 0
            self._reconcile(topic_id, accept_repeats)
            if (failed := attempted - self._stream.sent_sequence) > 0:
                # A transaction that takes too long would do so again: a quota or a network allows no more in its time.
                self._results = max(1, min(failed, self._results) // 2)
            self._check_sizes()
            sent, until = 0, self._stream.last_sequence
            total = until - self._stream.sent_sequence
            while self._stream.sent_sequence < until:
                progress(sent, total)
                sent += self._send(producer, topic_id)
                self._results = min(_RESULTS, 2 * self._results)
            progress(sent, total)
        unsent = self._current().unsent
        return Forwarded(self._stream.topic, sent, self._stream.sent_sequence, unsent)

    def _send(self, producer: ResultProducer, topic_id: UUID) -> int:
        """Send the next results in one transaction, and record it; return how many they are."""
        stream = self._stream
        with transaction(self._connection):
            streams = Streams(self._connection)
            streams.hold(stream, self._id)  # another forwarder deletes what it has sent
            results = streams.read_pending(stream, results=self._results, max_bytes=_BYTES)
            self._check_complete(results)
            until = results[-1].sequence
            streams.note_attempt(stream, until)
        failpoint("forward.after_attempt")
        try:
            offsets = producer.send(results)
        except Fenced as error:
            with transaction(self._connection):
                Streams(self._connection).hold(stream, self._id)
            raise KafkaUnavailable(
                f"topic {stream.topic!r}: the brokers ended a transaction of {len(results)} results, which took longer "
                f"than {TRANSACTION_TIMEOUT:g} s. The next try sends half as many at a time: nothing is lost or sent "
                f"twice.",
                topic=stream.topic,
            ) from error
        next_offsets = {int(partition): offset for partition, offset in stream.next_offsets.items()}
        for partition, (first, last) in offsets.items():
            if first < next_offsets.get(partition, 0):
                raise self._recreated(
                    f"partition {partition} took a message at offset {first}, where the topic had others before"
                )
            next_offsets[partition] = last + 1
        self._confirm(until, topic_id, next_offsets)
        return len(results)

    def _confirm(self, sequence: int, topic_id: UUID, next_offsets: dict[int, int]) -> None:
        with transaction(self._connection):
            Streams(self._connection).confirm_sent(self._stream, self._id, sequence, topic_id, next_offsets)
            failpoint("forward.before_confirm")
        failpoint("forward.after_confirm")
        self._stream = replace(
            self._stream,
            sent_sequence=sequence,
            attempted_sequence=None,
            topic_id=topic_id,
            next_offsets={str(partition): offset for partition, offset in next_offsets.items()},
        )

    def _reconcile(self, topic_id: UUID, accept_repeats: bool) -> None:
        """Compare the ledger with the topic, and record what a forwarder sent that could not record it.

        Raises ResultsDiverged if the topic has results that are not those of the ledger, unless `accept_repeats`.
        """
        partitions = wait_for_settled_partitions(self._broker, self._stream.topic)
        if accept_repeats:
            ends = {each.partition: each.last_stable for each in partitions}
            self._confirm(self._stream.sent_sequence, topic_id, ends)
            return
        for each in partitions:
            known = self._stream.next_offsets.get(str(each.partition), 0)
            if each.last_stable < known:
                raise self._recreated(
                    f"partition {each.partition} ends at offset {each.last_stable}, and had results up to {known}"
                )
        if self._stream.topic_id is None:
            # The topic should have no result. The last messages tell if the ledger once knew of some.
            first = {str(each.partition): max(0, each.last_stable - _LOOK_BACK) for each in partitions}
            self._stream = replace(self._stream, next_offsets=first)
        state = read_state(self._settings.kafka, self._stream, partitions)
        sent = self._sent_according_to(state)
        if sent > self._stream.sent_sequence:
            logger.info("the topic %s has results up to %s already", self._stream.topic, sent)
        self._confirm(sent, topic_id, dict(state.next_offsets))

    def _sent_according_to(self, state: TopicState) -> int:
        """Return the number up to which the topic has all results. Raises Fenced and ResultsDiverged."""
        stream, newest = self._stream, state.newest
        with transaction(self._connection):
            streams = Streams(self._connection)
            streams.hold(stream, self._id)
            plan = None if newest is None else streams.find_plan(stream, newest.sequence)
        if newest is None or newest.sequence <= stream.sent_sequence:
            if stream.attempted_sequence is not None and state.lost:
                raise ResultsDiverged(
                    f"pipeline {stream.pipeline!r}: it is unknown whether the topic {stream.topic!r} ever had the "
                    f"results {stream.sent_sequence + 1} to {stream.attempted_sequence}: a forwarder ended while it "
                    f"sent them, and the broker has removed records of partition {state.lost[0]} since. Nothing was "
                    f"sent. To send them, perhaps for the second time: exactbatch forward {stream.pipeline} "
                    f"--accept-repeats"
                )
            return stream.sent_sequence
        if plan != newest.plan_id:
            raise ResultsDiverged(
                f"{stream.topic}[{newest.partition}] offset {newest.offset}: the topic has the result "
                f"{newest.sequence} of plan {newest.plan_id}, and the ledger has "
                f"{'no such result' if plan is None else f'another one of plan {plan}'}: the database was restored or "
                f"failed over to an earlier state, and its next batches give some results again. Nothing was sent. To "
                f"send all {stream.unsent} that wait, some perhaps for the second time: exactbatch forward "
                f"{stream.pipeline} --accept-repeats",
                topic=stream.topic,
                partition=newest.partition,
                from_offset=newest.offset,
                until_offset=newest.offset + 1,
            )
        return newest.sequence

    def _check_topic_id(self, topic_id: UUID, accept_repeats: bool) -> None:
        known = self._stream.topic_id
        if known is not None and not may_be_same(self._stream.topic, known, topic_id) and not accept_repeats:
            raise self._recreated(f"its ID was {self._stream.topic_id} and is now {topic_id}")

    def _recreated(self, how: str) -> TopicRecreated:
        stream = self._stream
        return TopicRecreated(
            f"the topic {stream.topic!r}, to which pipeline {stream.pipeline!r} forwards, was deleted and created "
            f"again, lost its newest messages in an unclean election of a leader, or is that of another cluster: "
            f"{how}. It lacks some or all of the {stream.sent_sequence} results that were sent before. To go on with "
            f"those that wait, {stream.unsent}: exactbatch forward {stream.pipeline} --accept-repeats",
            topic=stream.topic,
        )

    def _check_sizes(self) -> None:
        """Raise ResultTooLarge if a result that waits is larger than the topic or ToTopic allows."""
        stream, limit = self._stream, self._forward.max_bytes
        because = f"max_bytes={limit} of ToTopic"
        topic_limit = self._broker.max_message_bytes(stream.topic)
        if topic_limit is not None and topic_limit - OVERHEAD < limit:
            limit = topic_limit - OVERHEAD
            because = f"the topic's max.message.bytes={topic_limit}, less {OVERHEAD} bytes for headers,"
        with transaction(self._connection):
            found = Streams(self._connection).find_too_large(stream, limit)
        if found is not None:
            sequence, batch_id, key, size = found
            raise ResultTooLarge(
                f"result {sequence} of batch {batch_id} of pipeline {stream.pipeline!r}, with the key "
                f"{(key or 'null')[:200]}, has {size:,} bytes, and {because} allows {limit:,}. Nothing was sent. "
                f"Raise the topic's max.message.bytes to at least {size + OVERHEAD:,}, and max_bytes of ToTopic to "
                f"at least {size:,}.",
                topic=stream.topic,
                batch_id=batch_id,
            )

    def _check_complete(self, results: list[PendingResult]) -> None:
        """Raise ResultsDiverged unless the outbox has the next results without a gap, and knows their batches."""
        stream = self._stream
        expected = list(range(stream.sent_sequence + 1, stream.sent_sequence + 1 + len(results)))
        if (
            not results
            or [each.sequence for each in results] != expected
            or None in [r.plan_id for r in results]
        ):
            raise ResultsDiverged(
                f"pipeline {stream.pipeline!r}: exactbatch.outbox lacks results after {stream.sent_sequence}, although "
                f"{stream.last_sequence} were committed: rows of it or of exactbatch.batch were deleted. Nothing of "
                f"this transaction was sent. Restore them."
            )

    def _current(self) -> Stream:
        with transaction(self._connection):
            current = Streams(self._connection).read(self._stream.pipeline)
        assert current is not None
        return current
