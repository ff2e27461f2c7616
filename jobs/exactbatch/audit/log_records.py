"""Values, keys, headers and timestamps of records that the auditor has read."""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from exactbatch.audit.audit_result import Offsets
from exactbatch.formats.message.record_headers import Header, last_headers, read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS

_NO_TIMESTAMP: Final = 0  # RD_KAFKA_TIMESTAMP_NOT_AVAILABLE, the type of timestamp of a record without one

_value = methodcaller("value")
_key = methodcaller("key")
_timestamp = methodcaller("timestamp")


class LogRecords:
    """Records of one partition, in the order of their offsets."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def part(self, start: int, stop: int) -> "LogRecords":
        """Return some of them, by their positions."""
        return LogRecords(self._messages[start:stop])

    def take(self, positions: Offsets) -> "LogRecords":
        """Return those at some positions, which ascend."""
        return LogRecords([self._messages[position] for position in positions.tolist()])

    def values(self) -> pa.BinaryArray:
        """Value bytes; null for a null value."""
        return pa.array(list(map(_value, self._messages)), pa.binary())

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        return pa.array(list(map(_key, self._messages)), pa.binary())

    def headers(self) -> list[Any]:
        """Headers of each record, as read_headers() returns them."""
        return read_headers(self._messages)

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See Messages."""
        return last_headers(self.headers(), name)

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC; null for a record without one (-1), and for a timestamp that
        Postgres cannot store in microseconds."""
        told = np.array(list(map(_timestamp, self._messages)), np.int64).reshape(-1, 2)
        kinds, milliseconds = told[:, 0], told[:, 1]
        unset = (
            (kinds == _NO_TIMESTAMP)
            | (milliseconds == -1)
            | (milliseconds < EARLIEST_TIMESTAMP_MS)
            | (milliseconds > LATEST_TIMESTAMP_MS)
        )
        return pa.array(milliseconds.astype("datetime64[ms]"), pa.timestamp("ms", "UTC"), mask=unset)
