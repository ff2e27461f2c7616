"""The records of one partition: as Arrow columns, as one block of flat arrays, or one by one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS
from exactbatch.formats.record_headers import Header, last_headers, read_headers
from exactbatch.kafka.record_block import RecordBlock

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

NO_TIMESTAMP = -1  # milliseconds: the record has none

_key = methodcaller("key")
_value = methodcaller("value")
_timestamp = methodcaller("timestamp")


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `headers` are as read_headers() returns them."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any


class Records(ABC):
    """Some records of one partition, ordered by offset; each column is made when it is requested.

    offset_array: the offsets, ascending
    """

    offset_array: Int64s

    def __len__(self) -> int:
        return len(self.offset_array)

    def offsets(self) -> pa.Int64Array:
        """Offsets, ascending."""
        return pa.array(self.offset_array)

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC.

        Null if the record has none, or one that neither Arrow nor Postgres can hold in microseconds, for example
        from a producer that sends nanoseconds.
        """
        times = self.milliseconds()
        usable = _usable(times)
        return pa.array(times, pa.int64(), mask=None if usable.all() else ~usable).cast(
            pa.timestamp("ms", "UTC")
        )

    def block(self) -> RecordBlock:
        """The records as flat arrays, with their values one after the other."""
        data, bounds, has_value = self.joined_values()
        times = self.milliseconds()
        return RecordBlock(
            data=data,
            starts=bounds[:-1].view(np.uint64),
            ends=bounds[1:].view(np.uint64),
            offsets=self.offset_array,
            timestamps_ms=times,
            present=has_value & _usable(times),
        )

    @abstractmethod
    def joined_values(self) -> tuple[Bytes, Int64s, Flags]:
        """Return the bytes of all n values, the n + 1 bounds between them, and false for a null value."""

    @abstractmethod
    def milliseconds(self) -> Int64s:
        """Kafka's timestamps, in milliseconds UTC, as they were sent; NO_TIMESTAMP for a record without one."""

    @abstractmethod
    def sizes(self) -> Int64s:
        """The bytes of each value; 0 for a null value."""

    @abstractmethod
    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""

    @abstractmethod
    def values(self) -> pa.BinaryArray:
        """Value bytes; null for a null value."""

    @abstractmethod
    def headers(self) -> list[Any]:
        """The headers of each record, as read_headers() returns them."""

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See Messages."""
        return last_headers(self.headers(), name)

    @abstractmethod
    def leader_epoch(self, index: int) -> int | None:
        """The epoch of the leader that wrote a record; None if the broker does not report it."""

    @abstractmethod
    def record(self, index: int) -> Record:
        """One record with all its parts. This is slow: for a few of the records."""

    @abstractmethod
    def part(self, start: int, stop: int) -> "Records":
        """The records [start, stop) of these."""

    @abstractmethod
    def take(self, indexes: Sequence[int]) -> "Records":
        """The records at these indexes, ascending."""


def _usable(times: Int64s) -> Flags:
    """True for a timestamp that timestamps() does not give as null."""
    usable: Flags = (
        (times != NO_TIMESTAMP) & (times >= EARLIEST_TIMESTAMP_MS) & (times <= LATEST_TIMESTAMP_MS)
    )
    return usable


class MessageRecords(Records):
    """Records that confluent_kafka holds, each in an object."""

    def __init__(self, messages: Sequence[Message], offsets: Int64s) -> None:
        self._messages, self.offset_array = messages, offsets

    def joined_values(self) -> tuple[Bytes, Int64s, Flags]:
        """See Records."""
        values = list(map(_value, self._messages))
        bounds = np.zeros(len(values) + 1, np.int64)
        np.cumsum(self.sizes(), out=bounds[1:])
        data = np.frombuffer(b"".join(filter(None, values)), np.uint8)
        return data, bounds, np.array([value is not None for value in values], bool)

    def milliseconds(self) -> Int64s:
        """See Records."""
        # timestamp() returns a pair (type, milliseconds). A record without a time has -1, or no type and 0.
        pairs = np.array(list(map(_timestamp, self._messages)), np.int64).reshape(-1, 2)
        return np.where(pairs[:, 0] == TIMESTAMP_NOT_AVAILABLE, NO_TIMESTAMP, pairs[:, 1])

    @cached_property
    def _sizes(self) -> Int64s:
        return np.fromiter(map(len, self._messages), np.int64, len(self._messages))

    def sizes(self) -> Int64s:
        """See Records."""
        return self._sizes

    def keys(self) -> pa.BinaryArray:
        """See Records."""
        return pa.array(list(map(_key, self._messages)), pa.binary())

    def values(self) -> pa.BinaryArray:
        """See Records."""
        return pa.array(list(map(_value, self._messages)), pa.binary())

    def headers(self) -> list[Any]:
        """See Records."""
        return read_headers(self._messages)

    def leader_epoch(self, index: int) -> int | None:
        """See Records."""
        return self._messages[index].leader_epoch()

    def record(self, index: int) -> Record:
        """See Records."""
        message = self._messages[index]
        [headers] = read_headers([message])
        return Record(int(self.offset_array[index]), message.key(), message.value(), headers)

    def part(self, start: int, stop: int) -> "MessageRecords":
        """See Records."""
        return MessageRecords(self._messages[start:stop], self.offset_array[start:stop])

    def take(self, indexes: Sequence[int]) -> "MessageRecords":
        """See Records."""
        return MessageRecords([self._messages[at] for at in indexes], self.offset_array[list(indexes)])
