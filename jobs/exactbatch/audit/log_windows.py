"""Read one partition of the log for the auditor, in blocks of records, with a separate consumer."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from exactbatch.audit.report import Offsets
from exactbatch.errors import ReadFailed
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.consumer import (
    FetchPosition,
    Throttling,
    check_in_log,
    concerns_reading,
    is_cluster,
)
from exactbatch.kafka.errors import event_error
from exactbatch.model import LogPartition

# How many messages to request at a time: few at first, because they may be large, then as many as fit into these bytes.
_MESSAGES: Final = 10_000
_FIRST_MESSAGES: Final = 100
_BLOCK_BYTES: Final = 32 * 1024 * 1024

_error = methodcaller("error")
_offset = methodcaller("offset")


@dataclass(frozen=True, slots=True)
class Block:
    """Some records of a partition: offsets, ascending; those of null values; and the messages."""

    offsets: Offsets
    nulls: Offsets
    messages: Sequence[Message]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Block":
        """Return the block of these messages, none of which is an event."""
        nulls = [message.offset() for message in messages if not len(message) and message.value() is None]
        return cls(np.array(list(map(_offset, messages)), np.int64), np.array(nulls, np.int64), messages)

    def cut(self, end: int) -> tuple["Block", "Block"]:
        """Return the records below `end` and those from it on."""
        at, null_at = (bisect_left(offsets, end) for offsets in (self.offsets, self.nulls))
        return (
            Block(self.offsets[:at], self.nulls[:null_at], self.messages[:at]),
            Block(self.offsets[at:], self.nulls[null_at:], self.messages[at:]),
        )


_NOTHING: Final = Block.of([])


class LogWindows:
    """Reads one partition from `begin` to `head`, in windows of offsets."""

    _TIMEOUT: Final = 60.0  # seconds without progress

    def __init__(
        self,
        properties: Mapping[str, Any],
        partition: LogPartition,
        begin: int,
        head: int,
        cluster_id: str | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._position = max(begin, partition.earliest)
        self._partition = partition
        self._ahead = _NOTHING
        self._size = _FIRST_MESSAGES
        self._fetched = FetchPosition(partition.topic, partition.partition)
        self._throttling = Throttling()
        self._consumer: Consumer | None = None
        if self._position < head:
            callbacks = {"stats_cb": self._fetched, "throttle_cb": self._throttling}
            self._consumer = Consumer({**reader_properties(properties), **callbacks})
            self._consumer.assign([TopicPartition(partition.topic, partition.partition, self._position)])
            self.check_cluster()

    def window(self, end: int) -> Iterator[Block]:
        """Yield the records below `end` that no earlier window has returned.

        Raises ReadFailed if a record is damaged, or if nothing arrives for a while.
        """
        block, self._ahead = self._ahead.cut(end)
        if len(block.offsets):
            yield block
        passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
        while self._consumer is not None and self._position < end:
            messages = self._consumer.consume(self._size, 0.1)
            records = self._records(self._consumer, messages)
            if records:
                block, self._ahead = Block.of(records).cut(end)
                if len(block.offsets):
                    yield block
            if messages:
                deadline = time.monotonic() + self._TIMEOUT
            if self._fetched.offset > passed:
                passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
            if time.monotonic() > max(deadline, self._throttling.until + self._TIMEOUT):
                raise ReadFailed(
                    f"{self._partition}: nothing could be read from offset {self._position} to {end} for "
                    f"{self._TIMEOUT:g} s. Check that the broker is up."
                )

    def _records(self, consumer: Consumer, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the records among the messages of one consume(), and move the position behind all of them."""
        records = messages
        end_of_log = 0
        if any(map(_error, messages)):
            records = [message for message in messages if message.error() is None]
            end_of_log = max((self._end_of_log(message) for message in messages), default=0)
        if records:
            last = records[-1].offset() or 0
            check_in_log(consumer, self._partition.topic, self._partition.partition, last)
            self._position = last + 1
            bytes_ = sum(map(len, records))
            self._size = max(
                1, min(_MESSAGES, self._size * 10, _BLOCK_BYTES * len(records) // max(1, bytes_))
            )
        self._position = max(self._position, end_of_log)
        return records

    def _end_of_log(self, message: Message) -> int:
        """Return the offset of an end-of-log event, 0 for a record. Raises the error of any other event."""
        error = message.error()
        if error is None:
            return 0
        if error.code() == KafkaError._PARTITION_EOF:
            return message.offset() or 0
        if concerns_reading(message):
            where = f"{self._partition.topic}[{self._partition.partition}] from {self._position}"
            raise event_error(where, self._partition.topic, self._partition.partition, message)
        return 0

    @property
    def next_offset(self) -> int:
        """The first record at or past the window's end; if none was read yet, the position in the log."""
        return int(self._ahead.offsets[0]) if len(self._ahead.offsets) else self._position

    def check_cluster(self) -> None:
        """Raise ConfigurationError if the consumer reads another cluster than that of the plan."""
        if self._consumer is not None:
            is_cluster(self._consumer, self._partition, self._partition.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
