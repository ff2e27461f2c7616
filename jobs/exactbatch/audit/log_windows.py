"""Read one partition of the log for the auditor, in blocks of records, with a separate consumer."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from exactbatch.audit.native_offsets import OffsetConsumer, events_among
from exactbatch.audit.report import Offsets
from exactbatch.errors import ReadFailed
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.consumer import Event, Signals, check_ascending, check_in_log, is_cluster
from exactbatch.kafka.errors import event_error
from exactbatch.kafka.native_library import LibraryUnusable, load_library
from exactbatch.model import LogPartition

# How many records to request at a time: few at first, because they may be large, then as many as fit into these bytes.
_RECORDS: Final = 10_000
_FIRST_RECORDS: Final = 100
_BLOCK_BYTES: Final = 32 * 1024 * 1024
_WAIT: Final = 0.1  # seconds to wait for so many
# Offsets: below, reading without objects gains nothing.
_NATIVE_FROM: Final = 10_000

_offset = methodcaller("offset")


@dataclass(frozen=True, slots=True)
class Block:
    """Some records of a partition: offsets, ascending; those of null values; and the messages, if they were read."""

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


class _Messages:
    """Reads records as objects, which also have their values."""

    def __init__(self, config: Mapping[str, Any], signals: Signals) -> None:
        self.client = Consumer({**config, **signals.callbacks()})
        self._signals = signals
        self._size = _FIRST_RECORDS

    def read(self) -> tuple[Block, int | None, Event | None]:
        """Return records, the end of the log if it was reached, and an error that concerns reading.

        Unlike the batch path's reader, it also returns the records that come after the error.
        """
        read = self.client.consume(self._size, _WAIT)
        self._signals.receive()
        messages = [message for message in read if message.error() is None]
        end_of_log, error = events_among(message for message in read if message.error() is not None)
        if messages:
            fitting = _BLOCK_BYTES * len(messages) // max(1, sum(map(len, messages)))
            self._size = max(1, min(_RECORDS, self._size * 10, fitting))
        return Block.of(messages), end_of_log, error


class _Offsets:
    """Reads the offsets of records, without objects."""

    def __init__(self, library: Any, config: Mapping[str, Any], signals: Signals) -> None:
        self._consumer = OffsetConsumer(library, config, signals)
        self.client = self._consumer.client

    def read(self) -> tuple[Block, int | None, Event | None]:
        """Return what _Messages.read() does, with blocks that have no messages."""
        offsets, nulls, end_of_log, error = self._consumer.read(_RECORDS, _WAIT)
        return Block(offsets, nulls, ()), end_of_log, error


class LogWindows:
    """Reads one partition from `begin` to `head`, in windows of offsets; with `values`, blocks have messages."""

    _TIMEOUT: Final = 60.0  # seconds without progress

    def __init__(
        self,
        properties: Mapping[str, Any],
        partition: LogPartition,
        begin: int,
        head: int,
        cluster_id: str | None = None,
        *,
        values: bool = False,
    ) -> None:
        self._cluster_id = cluster_id
        self._position = max(begin, partition.earliest)
        self._partition = partition
        self._ahead = _NOTHING
        self._signals = Signals()
        self._reader: _Messages | _Offsets | None = None
        if self._position < head:
            config = reader_properties(properties)
            is_native = not values and head - self._position >= _NATIVE_FROM
            self._reader = _reader(config, self._signals, is_native=is_native)
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
                raise event_error(f"{self._partition} from {self._position}", *key, error)
            self._position = max(self._position, end_of_log or 0)
            if len(read.offsets) or end_of_log is not None:
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
        """Raise ConfigurationError if the consumer reads another cluster than that of the plan."""
        if self._reader is not None:
            is_cluster(self._reader.client, self._partition, self._partition.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        if self._reader is not None:
            self._reader.client.close()


def _reader(config: Mapping[str, Any], signals: Signals, *, is_native: bool) -> _Messages | _Offsets:
    if is_native:
        with suppress(LibraryUnusable):
            return _Offsets(load_library(), config, signals)
    return _Messages(config, signals)
