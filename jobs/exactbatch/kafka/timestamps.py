"""Look up single records: one in each of many partitions, and the first of a range with a timestamp before a time."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from exactbatch.errors import KafkaUnavailable
from exactbatch.kafka.client_errors import concerns_reading, connection_refused, event_error, split_events
from exactbatch.kafka.client_properties import limit_fetches, reader_properties
from exactbatch.kafka.consumer import POLL, Signals, closing_consumer
from exactbatch.model import FoundRecord
from exactbatch.offsets import OffsetRange
from exactbatch.offsets import TopicPartition as Partition

_TIMEOUT: Final = 10.0  # seconds, for all partitions together
_AT_A_TIME: Final = 200  # partitions; each has one fetch in memory
_FETCH: Final = 64 * 1024  # bytes
_REMOVED: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_SAMPLE: Final = 2000  # records

Answer = TypeVar("Answer")


def first_timestamps(
    properties: Mapping[str, Any], positions: Mapping[Partition, int], *, uncommitted: bool = False
) -> dict[Partition, int | None]:
    """Return the timestamp, in ms since 1970, of the first record at or after an offset of each partition.

    Reads committed records only, unless `uncommitted`. It is None where there is no such record, where retention has
    passed it by, and where records have no timestamp. Partitions are left out that did not answer within 10 s.

    Raises ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    return first_records(properties, positions, timestamp_of, uncommitted=uncommitted, timeout=_TIMEOUT)


def first_records(
    properties: Mapping[str, Any],
    positions: Mapping[Partition, int],
    convert: Callable[[Message], Answer],
    *,
    uncommitted: bool = False,
    timeout: float,
) -> dict[Partition, Answer | None]:
    """Return what `convert` makes of the first record at or after an offset of each partition, through one consumer.

    Reads committed records only, unless `uncommitted`. None stands where there is no such record, and where retention
    has passed it by. Partitions are left out that did not answer within `timeout` seconds for all together.

    Raises ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    limits = {"queued.min.messages": 1, "log_level": 0}
    signals = Signals()
    config = {**limit_fetches(reader_properties(properties), _FETCH), **limits, **signals.callbacks()}
    if uncommitted:
        config["isolation.level"] = "read_uncommitted"
    found: dict[Partition, Answer | None] = {}
    deadline = time.monotonic() + timeout
    with closing_consumer(Consumer(config)) as consumer:
        places = sorted(positions)
        for first in range(0, len(places), _AT_A_TIME):
            waiting = set(places[first : first + _AT_A_TIME])
            consumer.assign([TopicPartition(*place, positions[place]) for place in waiting])
            while waiting and time.monotonic() < deadline:
                for message in consumer.consume(len(waiting), POLL):
                    place = message.topic() or "", message.partition() or 0
                    if _is_answer(message) and place in waiting:
                        waiting.remove(place)
                        consumer.incremental_unassign([TopicPartition(*place)])
                        found[place] = None if message.error() else convert(message)
                signals.receive()
    return found


def timestamp_of(message: Message) -> int | None:
    """Return the timestamp of a record, in ms since 1970; None without one."""
    timestamp = message.timestamp()[1]
    return timestamp if timestamp >= 0 else None


def _is_answer(message: Message) -> bool:
    """True for a record, and for an event that says that there is none. Raises the error of another event."""
    error, topic, partition = message.error(), message.topic(), message.partition()
    if error is None or error.code() == KafkaError._PARTITION_EOF or error.code() in _REMOVED:
        return True
    if concerns_reading(message):
        raise event_error(f"{topic}[{partition}]", topic or "", partition or 0, message)
    return False


_SEARCH_TIMEOUT: Final = 20.0  # seconds without progress


def first_before(properties: Mapping[str, Any], range_: OffsetRange, at: datetime) -> FoundRecord | None:
    """Return the first committed record of the range with a timestamp before `at`.

    Looks at the first _SAMPLE records only; returns None if there is no such record among them.

    Raises KafkaUnavailable, ReadFailed, TokenUnavailable, and ConfigurationError if the brokers do not accept the
    login, or an ACL denies reading.
    """
    milliseconds = math.ceil(at.timestamp() * 1000)
    limits = {"queued.min.messages": _SAMPLE, "queued.max.messages.kbytes": 8 * 1024, "log_level": 0}
    signals = Signals()
    config = {**reader_properties(properties), **limits, **signals.callbacks()}
    with closing_consumer(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(range_.topic, range_.partition, range_.from_offset)])
        seen, passed, deadline = 0, range_.from_offset, time.monotonic() + _SEARCH_TIMEOUT
        while seen < _SAMPLE:
            messages, end_of_log, error = split_events(consumer.consume(_SAMPLE - seen, POLL))
            signals.receive()
            for message in messages:
                record = FoundRecord(message.offset() or 0, message.timestamp()[1])
                if record.offset >= range_.until_offset:
                    return None
                if 0 <= record.timestamp < milliseconds:
                    return record
            if error is not None:
                raise event_error(range_, range_.topic, range_.partition, error)
            if end_of_log is not None:
                return None
            seen += len(messages)
            if (fetched := signals.fetched.of(range_.topic_partition)) > passed:
                passed, deadline = fetched, time.monotonic() + _SEARCH_TIMEOUT
            if time.monotonic() > deadline:
                if (refusal := connection_refused(properties, signals.errors.last)) is not None:
                    raise type(refusal)(f"{range_}: {refusal}", **range_.place)
                raise KafkaUnavailable(
                    f"{range_}: the broker sent no record for {_SEARCH_TIMEOUT:.0f} s. Check that the brokers are up, "
                    f"and try again.",
                    **range_.place,
                )
        return None
