"""Look up the timestamp of one record in each of many partitions."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from exactbatch.kafka.client_errors import event_error
from exactbatch.kafka.client_properties import limit_fetches, reader_properties
from exactbatch.kafka.close_consumer import closing_consumer
from exactbatch.kafka.consumer import POLL, Signals
from exactbatch.kafka.events import concerns_reading
from exactbatch.offsets import TopicPartition as Partition

_TIMEOUT: Final = 10.0  # seconds, for all partitions together
_AT_A_TIME: Final = 200  # partitions; each has one fetch in memory
_FETCH: Final = 64 * 1024  # bytes
_REMOVED: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def first_timestamps(
    properties: Mapping[str, Any], positions: Mapping[Partition, int], *, uncommitted: bool = False
) -> dict[Partition, int | None]:
    """Return the timestamp, in ms since 1970, of the first record at or after an offset of each partition.

    Reads committed records only, unless `uncommitted`. It is None where there is no such record, where retention has
    passed it by, and where records have no timestamp. Partitions are left out that did not answer within 10 s.

    Raises ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    limits = {"queued.min.messages": 1, "log_level": 0}
    signals = Signals()
    config = {**reader_properties(limit_fetches(properties, _FETCH)), **limits, **signals.callbacks()}
    if uncommitted:
        config["isolation.level"] = "read_uncommitted"
    found: dict[Partition, int | None] = {}
    deadline = time.monotonic() + _TIMEOUT
    with closing_consumer(Consumer(config)) as consumer:
        places = sorted(positions)
        for first in range(0, len(places), _AT_A_TIME):
            waiting = set(places[first : first + _AT_A_TIME])
            consumer.assign([TopicPartition(*place, positions[place]) for place in waiting])
            while waiting and time.monotonic() < deadline:
                for place, timestamp in _answers(consumer.consume(len(waiting), POLL)):
                    if place in waiting:
                        waiting.remove(place)
                        consumer.incremental_unassign([TopicPartition(*place)])
                        found[place] = timestamp
                signals.receive()
    return found


def _answers(messages: Sequence[Any]) -> list[tuple[Partition, int | None]]:
    """Return what messages say of their partitions: a timestamp, or None if there is no record or no timestamp."""
    answers: list[tuple[Partition, int | None]] = []
    for message in messages:
        place, error = (message.topic(), message.partition()), message.error()
        if error is None:
            timestamp = message.timestamp()[1]
            answers.append((place, timestamp if timestamp >= 0 else None))
        elif error.code() == KafkaError._PARTITION_EOF or error.code() in _REMOVED:
            answers.append((place, None))
        elif concerns_reading(message):
            raise event_error(f"{place[0]}[{place[1]}]", *place, message)
    return answers
