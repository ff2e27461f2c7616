"""The consumers of a read, and the choice between them: confluent_kafka's creates an object for each record.

The one that creates none, where that works and pays, saves 17% to 25% of the time of loads into `layout="by_batch"`, of
flights, events and records that are compressed with zstd (docs/evidence/ablation.md).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import methodcaller
from typing import Any, Protocol

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from exactbatch.compiled.availability import is_available, is_worth_compiling
from exactbatch.kafka.client_errors import Event, split_events
from exactbatch.kafka.consumer import ClusterClient, Signals
from exactbatch.kafka.native_library import LibraryUnusable, load_library
from exactbatch.kafka.records import MessageRecords, Records
from exactbatch.offsets import TopicPartition as Partition

_offset = methodcaller("offset")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch() returned of a partition: records, and then the end of its log or an error.

    `partition` is None for an error that concerns the client. `end_of_log` is the offset of the last end-of-log
    event.
    """

    partition: Partition | None
    records: Records
    end_of_log: int | None = None
    error: Event | None = None


class RangeConsumer(ClusterClient, Protocol):
    """A librdkafka consumer that reads assigned partitions.

    There are two: MessageConsumer, and NativeConsumer, which creates no object for a record.
    """

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions, and no others, from their offsets on."""
        ...

    def fetch(self, count: int, timeout: float) -> Sequence[Fetched]:
        """Return up to `count` records and events, in the order of each partition.

        Waits until there are `count` or `timeout` seconds have passed. Calls the callbacks that are due.
        """
        ...

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Fetch nothing more of these partitions."""
        ...

    def close(self) -> Any:
        """Close the connections and free what the consumer holds. Calls the callbacks that are due."""
        ...


class MessageConsumer(Consumer):
    """A RangeConsumer that creates an object for each record."""

    _only: Partition | None = None  # the partition that is assigned, if it is a single one

    def __init__(self, config: Mapping[str, Any], signals: Signals) -> None:
        """Raises KafkaException for properties that librdkafka refuses."""
        super().__init__({**config, **signals.callbacks()})
        self._signals = signals

    def assign(self, partitions: list[TopicPartition]) -> None:
        """See RangeConsumer."""
        self._only = (partitions[0].topic, partitions[0].partition) if len(partitions) == 1 else None
        super().assign(partitions)

    def fetch(self, count: int, timeout: float) -> Sequence[Fetched]:
        """See RangeConsumer."""
        messages = self.consume(count, timeout)
        self._signals.receive()
        if self._only is not None:
            return [_fetched(self._only, messages)] if messages else []
        by_partition: dict[Partition | None, list[Message]] = {}
        for message in messages:
            by_partition.setdefault(_partition(message), []).append(message)
        return [_fetched(partition, of_partition) for partition, of_partition in by_partition.items()]


def _partition(message: Message) -> Partition | None:
    topic, partition = message.topic(), message.partition()
    return None if topic is None or partition is None else (topic, partition)


def _fetched(partition: Partition | None, messages: Sequence[Message]) -> Fetched:
    records, end_of_log, error = split_events(messages)
    offsets = np.fromiter(map(_offset, records), np.int64, len(records))
    return Fetched(partition, MessageRecords(records, offsets), end_of_log, error)


def open_consumer(
    config: Mapping[str, Any], signals: Signals, *, offsets: int, partitions: int, keeps_records: bool = False
) -> RangeConsumer:
    """Open a consumer that is to read a number of `offsets` in a number of `partitions`; `signals` get its callbacks.

    With `keeps_records`, its records can be read with all their parts after it is closed.

    Raises KafkaException for properties that librdkafka refuses.
    """
    # librdkafka asks for tokens through a callback of confluent_kafka's clients.
    can_be_native = partitions == 1 and not keeps_records and "oauth_cb" not in config
    if can_be_native and is_worth_compiling(offsets) and is_available() and (native := _native()) is not None:
        return native(config, signals)
    return MessageConsumer(config, signals)


@cache
def _native() -> Callable[[Mapping[str, Any], Signals], RangeConsumer] | None:
    """Return what opens a NativeConsumer; None, and a line in the log, if librdkafka cannot be called here."""
    from exactbatch.kafka.native_records import NativeConsumer  # needs the extra `fast`

    try:
        library = load_library()
    except LibraryUnusable as error:
        logger.warning("records are read through objects, which is slower: %s", error)
        return None
    return lambda config, signals: NativeConsumer(library, config, signals)
