"""Read one partition of the log for the auditor, in blocks of records, with a separate consumer."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.log_records import LogRecords
from exactbatch.errors import ReadFailed
from exactbatch.kafka.client_errors import event_error
from exactbatch.kafka.client_properties import ANSWER_TIMEOUT, reader_properties
from exactbatch.kafka.close_consumer import close_consumer
from exactbatch.kafka.consumer import ClusterClient, Signals, check_ascending, check_in_log, is_cluster
from exactbatch.kafka.events import Event, concerns_reading, is_out_of_range
from exactbatch.model import LogPartition

# How many records to request at a time: few at first, because they may be large, then as many as fit into these bytes.
_RECORDS: Final = 10_000
_FIRST_RECORDS: Final = 100
_BLOCK_BYTES: Final = 32 * 1024 * 1024
_WAIT: Final = 0.1  # seconds to wait for a full block

_offset = methodcaller("offset")


@dataclass(frozen=True, slots=True)
class Block:
    """Some records of a partition: offsets, ascending; those of null values; and the records."""

    offsets: Offsets
    nulls: Offsets
    records: LogRecords

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Block":
        """Return the block of these messages; none is an event."""
        nulls = [message.offset() for message in messages if not len(message) and message.value() is None]
        offsets = np.array(list(map(_offset, messages)), np.int64)
        return cls(offsets, np.array(nulls, np.int64), LogRecords(messages))

    def cut(self, end: int) -> tuple["Block", "Block"]:
        """Return the records below `end` and those from it on."""
        at, null_at = (bisect_left(offsets, end) for offsets in (self.offsets, self.nulls))
        records, count = self.records, len(self.offsets)
        return (
            Block(self.offsets[:at], self.nulls[:null_at], records.part(0, at)),
            Block(self.offsets[at:], self.nulls[null_at:], records.part(at, count)),
        )


_NOTHING: Final = Block.of([])


class _RequestSize:
    """How many records to request at a time."""

    def __init__(self) -> None:
        self.records = _FIRST_RECORDS

    def learn(self, records: int, bytes_: int) -> None:
        """Take in how many bytes the last records had."""
        if records:
            self.records = max(1, min(_RECORDS, self.records * 10, _BLOCK_BYTES * records // max(1, bytes_)))


class _Messages:
    """Reads records."""

    def __init__(self, config: Mapping[str, Any], signals: Signals) -> None:
        self.client = Consumer({**config, **signals.callbacks()})
        self._signals = signals
        self._size = _RequestSize()

    def read(self) -> tuple[Block, int | None, Event | None]:
        """Return records, the end of the log if it was reached, and an error that concerns reading.

        Unlike the batch path's reader, it also returns the records that come after the error.
        """
        read = self.client.consume(self._size.records, _WAIT)
        self._signals.receive()
        messages = [message for message in read if message.error() is None]
        end_of_log, error = events_among(message for message in read if message.error() is not None)
        self._size.learn(len(messages), sum(map(len, messages)))
        return Block.of(messages), end_of_log, error


def events_among(events: Iterable[Event]) -> tuple[int | None, Event | None]:
    """Return the end of the log, if one of the events is about it, and the last error that concerns reading."""
    end_of_log, error = None, None
    for event in events:
        kafka_error = event.error()
        if kafka_error is not None and kafka_error.code() == KafkaError._PARTITION_EOF:
            end_of_log = event.offset()
        elif concerns_reading(event):
            error = event
    return end_of_log, error


def start_after(client: ClusterClient, partition: LogPartition, position: int, event: Event) -> int:
    """Return where the log starts now, if retention has removed the records from `position` on since the audit began.

    Raises the error of the event otherwise.
    """
    if is_out_of_range(event):
        where = TopicPartition(*partition.topic_partition)
        start, _ = client.get_watermark_offsets(where, timeout=ANSWER_TIMEOUT)
        if start > position:
            return start
    raise event_error(f"{partition} from {position}", *partition.topic_partition, event)


class LogWindows:
    """Reads one partition from `begin` to `head`, in windows of offsets.

    `earliest` is where the log starts; it moves if the reader finds that retention has removed what comes next.
    """

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
        self.earliest = partition.earliest
        self._position = max(begin, self.earliest)
        self._partition = partition
        self._ahead = _NOTHING
        self._signals = Signals()
        self._reader: _Messages | None = None
        if self._position < head:
            config = reader_properties(properties)
            self._reader = _Messages(config, self._signals)
            self._reader.client.assign([TopicPartition(*partition.topic_partition, self._position)])
            self.check_cluster()

    def window(self, end: int) -> Iterator[Block]:
        """Yield the records below `end` that no earlier window has returned.

        Raises ReadFailed if a record is damaged, or if nothing arrives for a while.
        """
        block, self._ahead = self._ahead.cut(end)
        if len(block.offsets):
            yield block
        key = self._partition.topic_partition
        passed, deadline = self._signals.fetched.of(key), time.monotonic() + self._TIMEOUT
        while self._reader is not None and self._position < end:
            read, end_of_log, error = self._reader.read()
            if len(read.offsets):
                check_ascending(read.offsets, *key, self._position)
                check_in_log(self._reader.client, *key, int(read.offsets[-1]))
                self._position = int(read.offsets[-1]) + 1
                block, self._ahead = read.cut(end)
                if len(block.offsets):
                    yield block
            if error is not None:
                client = self._reader.client
                self._position = self.earliest = start_after(client, self._partition, self._position, error)
                client.assign([TopicPartition(*key, self._position)])
            self._position = max(self._position, end_of_log or 0)
            if len(read.offsets) or end_of_log is not None or error is not None:
                deadline = time.monotonic() + self._TIMEOUT
            if self._signals.fetched.of(key) > passed:
                passed, deadline = self._signals.fetched.of(key), time.monotonic() + self._TIMEOUT
            if time.monotonic() > max(deadline, self._signals.throttling.until + self._TIMEOUT):
                raise ReadFailed(
                    f"{self._partition}: nothing could be read from offset {self._position} to {end} for "
                    f"{self._TIMEOUT:g} s. Check that the broker is up."
                )

    @property
    def next_offset(self) -> int:
        """The first record at or past the window's end; if none was read yet, the position in the log."""
        return int(self._ahead.offsets[0]) if len(self._ahead.offsets) else self._position

    def check_cluster(self) -> None:
        """Raise ConfigurationError if the consumer reads another cluster than the plan."""
        if self._reader is not None:
            is_cluster(self._reader.client, self._partition, self._partition.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        if self._reader is not None:
            close_consumer(self._reader.client)
