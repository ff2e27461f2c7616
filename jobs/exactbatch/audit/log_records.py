"""Values, keys, headers and timestamps of records that the auditor has read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS
from exactbatch.formats.record_headers import Header, last_headers, read_headers

_NO_TIMESTAMP: Final = 0  # RD_KAFKA_TIMESTAMP_NOT_AVAILABLE, the type of timestamp of a record without one

_value = methodcaller("value")
_key = methodcaller("key")
_timestamp = methodcaller("timestamp")


class LogRecords(Protocol):
    """Records of one partition, in the order of their offsets."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> "LogRecords":
        """Return some of them, by their positions."""
        ...

    def values(self) -> pa.BinaryArray:
        """Value bytes; null for a null value."""
        ...

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        ...

    def headers(self) -> list[Any]:
        """Headers of each record, as read_headers() returns them."""
        ...

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See Messages."""
        ...

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC; null for a record without one (-1), and for a timestamp that
        Postgres cannot store in microseconds."""
        ...


class MessageRecords:
    """Records that are objects of confluent_kafka."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def part(self, start: int, stop: int) -> "MessageRecords":
        """See LogRecords."""
        return MessageRecords(self._messages[start:stop])

    def values(self) -> pa.BinaryArray:
        """See LogRecords."""
        return pa.array(list(map(_value, self._messages)), pa.binary())

    def keys(self) -> pa.BinaryArray:
        """See LogRecords."""
        return pa.array(list(map(_key, self._messages)), pa.binary())

    def headers(self) -> list[Any]:
        """See LogRecords."""
        return read_headers(self._messages)

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See LogRecords."""
        return last_headers(self.headers(), name)

    def timestamps(self) -> pa.TimestampArray:
        """See LogRecords."""
        told = np.array(list(map(_timestamp, self._messages)), np.int64).reshape(-1, 2)
        return timestamps_of(told[:, 0], told[:, 1])


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """Records whose values, keys and timestamps have been copied into arrays, and their headers, if they are read."""

    _values: pa.BinaryArray
    _keys: pa.BinaryArray
    _timestamps: pa.TimestampArray
    _headers: list[Any] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def part(self, start: int, stop: int) -> "CopiedRecords":
        """See LogRecords."""
        values, keys, timestamps = (
            part.slice(start, stop - start) for part in (self._values, self._keys, self._timestamps)
        )
        headers = None if self._headers is None else self._headers[start:stop]
        return CopiedRecords(values, keys, timestamps, headers)

    def values(self) -> pa.BinaryArray:
        """See LogRecords."""
        return self._values

    def keys(self) -> pa.BinaryArray:
        """See LogRecords."""
        return self._keys

    def headers(self) -> list[Any]:
        """See LogRecords. Raise NotImplementedError if they are not read."""
        if self._headers is None:
            raise NotImplementedError
        return self._headers

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See LogRecords. Raise what headers() raises."""
        return last_headers(self.headers(), name)

    def timestamps(self) -> pa.TimestampArray:
        """See LogRecords."""
        return self._timestamps


def timestamps_of(
    kinds: npt.NDArray[np.integer[Any]], milliseconds: npt.NDArray[np.int64]
) -> pa.TimestampArray:
    """Return what LogRecords.timestamps() does, for librdkafka's types of timestamps and milliseconds since 1970."""
    unset = (
        (kinds == _NO_TIMESTAMP)
        | (milliseconds == -1)
        | (milliseconds < EARLIEST_TIMESTAMP_MS)
        | (milliseconds > LATEST_TIMESTAMP_MS)
    )
    return pa.array(milliseconds.astype("datetime64[ms]"), pa.timestamp("ms", "UTC"), mask=unset)
