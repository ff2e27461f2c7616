"""Records of a test in the form in which a batch reads them from Kafka."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from exactbatch.kafka.records import NO_TIMESTAMP, Int64s, Records
from exactbatch.kafka.records import Record as ReadRecord
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.testing.record import Record


class GivenRecords(Records):
    """Some records of one partition."""

    def __init__(self, records: Sequence[Record], offsets: Int64s) -> None:
        self._records, self.offset_array = records, offsets

    def milliseconds(self) -> Int64s:
        """See Records."""
        times = [record.milliseconds for record in self._records]
        return np.array([NO_TIMESTAMP if time is None else time for time in times], np.int64)

    def sizes(self) -> Int64s:
        """See Records."""
        return np.array([self.record(index).size for index in range(len(self))], np.int64)

    def keys(self) -> pa.BinaryArray:
        """See Records."""
        return pa.array([as_bytes(record.key) for record in self._records], pa.binary())

    def values(self) -> pa.BinaryArray:
        """See Records."""
        return pa.array([as_bytes(record.value) for record in self._records], pa.binary())

    def headers(self) -> list[Any]:
        """See Records."""
        return [_headers(record) for record in self._records]

    def leader_epoch(self, index: int) -> int | None:  # noqa: ARG002
        """See Records: there is no leader."""
        return None

    def record(self, index: int) -> ReadRecord:
        """See Records."""
        record = self._records[index]
        offset = int(self.offset_array[index])
        return ReadRecord(offset, as_bytes(record.key), as_bytes(record.value), _headers(record))

    def part(self, start: int, stop: int) -> "GivenRecords":
        """See Records."""
        return GivenRecords(self._records[start:stop], self.offset_array[start:stop])

    def take(self, indexes: Sequence[int]) -> "GivenRecords":
        """See Records."""
        return GivenRecords([self._records[index] for index in indexes], self.offset_array[list(indexes)])


class GivenReads:
    """Reads ranges of the records of a test."""

    def __init__(self, records: Mapping[TopicPartition, Sequence[Record]]) -> None:
        self._records = records

    def read(self, range_: OffsetRange) -> Iterator[Records]:
        """Yield the records of a range, whose offsets are their positions."""
        offsets = np.arange(range_.from_offset, range_.until_offset, dtype=np.int64)
        yield GivenRecords(
            self._records[range_.topic_partition][range_.from_offset : range_.until_offset], offsets
        )


def as_bytes(part: bytes | str | None) -> bytes | None:
    """Return a key, value or header as bytes; text in UTF-8."""
    return part.encode() if isinstance(part, str) else part


def _headers(record: Record) -> list[tuple[str, bytes | None]] | None:
    pairs = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
    return [(name, as_bytes(value)) for name, value in pairs] or None
