"""The records of one partition as Arrow columns."""

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from exactbatch.formats.message import read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS

_key = methodcaller("key")
_value = methodcaller("value")
_timestamp = methodcaller("timestamp")


class Records:
    """Some records of one partition, ordered by offset; each column is made when it is requested."""

    def __init__(self, messages: Sequence[Message], offsets: Sequence[int]) -> None:
        self.messages = messages
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self.messages)

    def offsets(self) -> pa.Int64Array:
        """Offsets, ascending."""
        return pa.array(self._offsets, pa.int64())

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        return pa.array(list(map(_key, self.messages)), pa.binary())

    def values(self) -> pa.BinaryArray:
        """Value bytes; null for a null value."""
        return pa.array(list(map(_value, self.messages)), pa.binary())

    def headers(self) -> list[Any]:
        """The headers of each record, as read_headers() returns them."""
        return read_headers(self.messages)

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC.

        Null if the record has none (-1), or one that neither Arrow nor Postgres can hold in microseconds, for
        example from a producer that sends nanoseconds.
        """
        # timestamp() returns a pair (type, milliseconds). A record without a time has -1, or no type and 0.
        types, milliseconds = map(list, zip(*map(_timestamp, self.messages), strict=True))
        if TIMESTAMP_NOT_AVAILABLE in types:
            milliseconds = [ms if kind else None for kind, ms in zip(types, milliseconds, strict=True)]
        times = pa.array(milliseconds, pa.int64())
        least, greatest = pc.min_max(times).as_py().values()
        if least is not None and (least < 0 or greatest > LATEST_TIMESTAMP_MS):
            fits = pc.and_(
                pc.greater_equal(times, EARLIEST_TIMESTAMP_MS), pc.less_equal(times, LATEST_TIMESTAMP_MS)
            )
            times = pc.if_else(pc.and_(fits, pc.not_equal(times, -1)), times, None)
        return times.cast(pa.timestamp("ms", "UTC"))
