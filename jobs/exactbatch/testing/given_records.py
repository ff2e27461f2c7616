"""Records of a test in the form in which a batch reads them from Kafka."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from exactbatch.kafka.records import MessageRecords, Records
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.testing.record import Record


class GivenReads:
    """Reads ranges of the records of a test."""

    def __init__(self, records: Mapping[TopicPartition, Sequence[Record]]) -> None:
        self._records = records

    def read(self, range_: OffsetRange) -> Iterator[Records]:
        """Yield the records of a range, whose offsets are their positions."""
        offsets = np.arange(range_.from_offset, range_.until_offset, dtype=np.int64)
        given = self._records[range_.topic_partition][range_.from_offset : range_.until_offset]
        yield MessageRecords(list(map(_message, given)), offsets)


def as_bytes(part: bytes | str | None) -> bytes | None:
    """Return a key, value or header as bytes; text in UTF-8."""
    return part.encode() if isinstance(part, str) else part


def _message(record: Record) -> Message:
    """Return a record as confluent_kafka reads it, by the constructor that is for tests."""
    pairs = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
    time = record.milliseconds
    return Message(
        key=as_bytes(record.key),
        value=as_bytes(record.value),
        headers=[(name, as_bytes(value)) for name, value in pairs] or None,
        timestamp=(TIMESTAMP_NOT_AVAILABLE, 0) if time is None else (TIMESTAMP_CREATE_TIME, time),
    )
