"""The records of one partition: as Arrow columns, as one block of flat arrays, which compiled code reads, or one by
one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from exactbatch.formats.message.record_headers import Header, header_size, last_headers, read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
NO_TIMESTAMP = -1  # milliseconds: the record has none
_key = methodcaller("key")
_value = methodcaller("value")
_timestamp = methodcaller("timestamp")


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """n records, ordered by offset; every array but `data` has n elements.

    data           the bytes of all values
    starts, ends   where each value lies in `data`, as the half-open range [start, end)
    offsets        in the log, ascending
    timestamps_ms  Kafka's timestamps, milliseconds since 1970 UTC
    present        false for a record with a null value, and for one whose timestamp Records.timestamps() gives as
                   null; its start, end and timestamp mean nothing
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record. `headers` are as read_headers() returns them."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any

    @property
    def size(self) -> int:
        """The bytes of its value, its key, and the names and values of its headers."""
        return len(self.value or b"") + len(self.key or b"") + header_size(self.headers)


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

    def joined_values(self) -> tuple[Bytes, Int64s, Flags]:
        """Return the bytes of all n values, the n + 1 bounds between them, and false for a null value."""
        values = self.values()
        _, bounds, data = values.buffers()
        return (
            np.frombuffer(data or b"", np.uint8),
            np.frombuffer(bounds or bytes(4), np.int32, len(values) + 1).astype(np.int64),
            values.is_valid().to_numpy(zero_copy_only=False),
        )

    @abstractmethod
    def milliseconds(self) -> Int64s:
        """Kafka's timestamps, in milliseconds UTC, as they were sent; NO_TIMESTAMP for a record without one."""

    @abstractmethod
    def sizes(self) -> Int64s:
        """The bytes of each record: of its value, its key, and the names and values of its headers."""

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
    def record(self, index: int) -> KafkaRecord:
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

    def milliseconds(self) -> Int64s:
        """See Records."""
        # timestamp() returns a pair (type, milliseconds). A record without a time has -1, or no type and 0.
        pairs = np.array(list(map(_timestamp, self._messages)), np.int64).reshape(-1, 2)
        return np.where(pairs[:, 0] == TIMESTAMP_NOT_AVAILABLE, NO_TIMESTAMP, pairs[:, 1])

    def sizes(self) -> Int64s:
        """See Records."""
        sizes = np.fromiter(map(len, self._messages), np.int64, len(self._messages))
        sizes += np.fromiter((len(key or b"") for key in map(_key, self._messages)), np.int64, len(sizes))
        return sizes + np.fromiter(map(header_size, self.headers()), np.int64, len(sizes))

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

    def record(self, index: int) -> KafkaRecord:
        """See Records."""
        message = self._messages[index]
        [headers] = read_headers([message])
        return KafkaRecord(int(self.offset_array[index]), message.key(), message.value(), headers)

    def part(self, start: int, stop: int) -> "MessageRecords":
        """See Records."""
        return MessageRecords(self._messages[start:stop], self.offset_array[start:stop])

    def take(self, indexes: Sequence[int]) -> "MessageRecords":
        """See Records."""
        return MessageRecords([self._messages[at] for at in indexes], self.offset_array[list(indexes)])
