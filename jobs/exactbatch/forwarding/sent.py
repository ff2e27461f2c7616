"""Learn from a topic which results it has: the greatest number in its committed messages of a stream."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from exactbatch.errors import KafkaUnavailable, ReadFailed
from exactbatch.formats.message.record_headers import read_headers
from exactbatch.forwarding.producer import PLAN, SEQUENCE, STREAM
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client_errors import acl_missing, connection_refused
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.consumer import Signals, closing_consumer
from exactbatch.ledger import Stream
from exactbatch.model import LogPartition

_PROGRESS_TIMEOUT: Final = 60.0  # seconds
_MESSAGES: Final = 1000  # of one request to librdkafka
_LARGEST: Final = 2**63 - 1  # the largest bigint


@dataclass(frozen=True, slots=True)
class SentResult:
    """The newest result in a topic: its number, the plan of its batch, and where it is."""

    sequence: int
    plan_id: UUID
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a topic has at or after the offsets that the ledger knows.

    newest        the result with the greatest number; None if there is no result
    next_offsets  by partition: the offset up to which the topic was read
    lost          partitions from which the broker has removed records that the ledger does not know
    """

    newest: SentResult | None
    next_offsets: Mapping[int, int]
    lost: tuple[int, ...]


def wait_for_settled_partitions(broker: KafkaBroker, topic: str) -> tuple[LogPartition, ...]:
    """Return the partitions of a topic once no open transaction holds back what is in them now.

    Raises ReadFailed, retryable, if one does for longer than Kafka lets most transactions last.
    """
    ends = {each.partition: each.high_watermark for each in broker.known_partitions([topic])}
    deadline = time.monotonic() + _PROGRESS_TIMEOUT
    while True:
        partitions = broker.known_partitions([topic])
        held = [each for each in partitions if each.last_stable < ends.get(each.partition, 0)]
        if not held:
            return partitions
        if time.monotonic() >= deadline:
            raise ReadFailed(
                f"{topic}[{held[0].partition}] offset {held[0].last_stable}: an open transaction begins there and "
                f"hides later messages, so it is unknown which results the topic has. Nothing was sent. Try again when "
                f"it has ended; `kafka-transactions.sh find-hanging` finds its producer.",
                topic=topic,
                partition=held[0].partition,
                from_offset=held[0].last_stable,
            )
        time.sleep(0.2)


def read_state(
    properties: Mapping[str, Any], stream: Stream, partitions: Sequence[LogPartition]
) -> TopicState:
    """Read the committed messages at or after the offsets that the ledger knows, and find the newest result.

    No producer of the stream may send meanwhile. A partition that the ledger does not know is read from its start.
    Raises ReadFailed and KafkaUnavailable, which are retryable, and ConfigurationError for a missing ACL.
    """
    known = {int(partition): offset for partition, offset in stream.next_offsets.items()}
    lost = tuple(each.partition for each in partitions if known.get(each.partition, 0) < each.earliest)
    starts = {each.partition: max(known.get(each.partition, 0), each.earliest) for each in partitions}
    ends = {each.partition: max(each.last_stable, starts[each.partition]) for each in partitions}
    newest: SentResult | None = None
    for message in _committed(properties, stream.topic, starts, ends):
        found = _parse_result(message, stream.stream)
        if found is not None and (newest is None or found.sequence > newest.sequence):
            newest = found
    return TopicState(newest, ends, lost)


def _committed(
    properties: Mapping[str, Any], topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Message]:
    """Yield the messages of committed transactions in [start, end) of each partition."""
    remaining = {partition for partition, end in ends.items() if starts[partition] < end}
    if not remaining:
        return
    signals = Signals()
    on_error = {"error_cb": signals.callbacks()["error_cb"]}
    consumer = Consumer(
        {**reader_properties(properties), "statistics.interval.ms": 0, "log_level": 0, **on_error}
    )
    with closing_consumer(consumer):
        consumer.assign([TopicPartition(topic, each, starts[each]) for each in sorted(remaining)])
        deadline = time.monotonic() + _PROGRESS_TIMEOUT
        while remaining:
            messages = consumer.consume(_MESSAGES, timeout=0.1)
            signals.receive()
            for message in messages:
                partition, offset, error = message.partition(), message.offset(), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    _check(error, message)
                    continue
                if partition is None or offset is None or partition not in remaining:
                    continue
                deadline = time.monotonic() + _PROGRESS_TIMEOUT
                if error is None and offset < ends[partition]:
                    yield message
                # An end-of-log event has the offset after the last record, markers included.
                if offset >= ends[partition] - (error is None):
                    remaining.discard(partition)
            if remaining and time.monotonic() >= deadline:
                if (refusal := connection_refused(properties, signals.errors.last)) is not None:
                    raise refusal
                raise ReadFailed(
                    f"{topic}[{min(remaining)}]: reading which results the topic has made no progress for "
                    f"{_PROGRESS_TIMEOUT:g} s. Nothing was sent. Try again.",
                    topic=topic,
                    partition=min(remaining),
                )


def _check(error: KafkaError, message: Message) -> None:
    """Raise the error of an event that concerns reading; librdkafka repeats what may pass."""
    topic = message.topic()
    if topic is None and not error.fatal():
        return
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise acl_missing("Read", "topic", str(topic), "learning which results it has")
    raise KafkaUnavailable(
        f"{topic}[{message.partition()}]: reading which results the topic has failed with {error.name()}: "
        f"{error.str()}. Nothing was sent. Try again."
    ) from KafkaException(error)


def _parse_result(message: Message, stream: str) -> SentResult | None:
    """Return the result that a message is; None for messages of others, which may have any headers."""
    (pairs,) = read_headers([message])
    headers: dict[str, bytes | None] = dict(pairs or ())
    if headers.get(STREAM) != stream.encode():
        return None
    try:
        sequence = int(headers.get(SEQUENCE) or b"")
        plan_id = UUID((headers.get(PLAN) or b"").decode())
    except ValueError:
        return None
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return SentResult(sequence, plan_id, partition, offset) if sequence <= _LARGEST else None
