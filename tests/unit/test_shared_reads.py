"""Small ranges that are read together give what each gives by itself: its records or its error."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from exactbatch.errors import ExactbatchError, OffsetsLost, ReadFailed
from exactbatch.kafka import reader
from exactbatch.kafka.reader import SharedReads
from exactbatch.kafka.records import MessageRecords, Records
from exactbatch.offsets import OffsetRange

SIZE = 1000  # bytes of each value


class Value:
    """A message with a value alone."""

    def __len__(self) -> int:
        return SIZE

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None


def range_of(partition: int, records: int = 10) -> OffsetRange:
    return OffsetRange("t", partition, 0, records, UUID(int=0))


class Log:
    """A log whose reads are noted; `lost` are the errors of ranges, and `gone` the error of all reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.together: list[list[int]] = []
        self.alone: list[int] = []
        self.lost: dict[int, ExactbatchError] = {}
        self.gone: ExactbatchError | None = None
        self.open = 0
        monkeypatch.setattr(reader, "read_together", self.read_together)
        monkeypatch.setattr(reader, "read_range", self.read_range)

    def read_together(
        self, ranges: Mapping[OffsetRange, int | None], _properties: Any, **_: Any
    ) -> Iterator[tuple[OffsetRange, Records]]:
        self.together.append([range_.partition for range_ in ranges])
        self.open += 1
        try:
            for half in (0, 1):
                for range_ in ranges:
                    if range_.partition in self.lost:
                        raise self.lost[range_.partition]
                    middle = len(range_) // 2
                    yield range_, _records(*((0, middle), (middle, len(range_)))[half])
            if self.gone is not None:
                raise self.gone
        finally:
            self.open -= 1

    def read_range(self, range_: OffsetRange, *_: Any, **__: Any) -> Iterator[Records]:
        self.alone.append(range_.partition)
        if range_.partition in self.lost:
            raise self.lost[range_.partition]
        yield _records(0, len(range_))


def _records(start: int, stop: int) -> Records:
    messages: Any = [Value() for _ in range(start, stop)]
    return MessageRecords(messages, np.arange(start, stop))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def reads_of(*ranges: OffsetRange) -> SharedReads:
    return SharedReads(dict.fromkeys(ranges), {}, timeout=1, cluster_id=None)


def offsets(reads: SharedReads, range_: OffsetRange) -> list[int]:
    return [offset for records in reads.read(range_) for offset in records.offset_array.tolist()]


def test_all_ranges_are_read_at_the_first_request(log: Log) -> None:
    ranges = [range_of(each) for each in range(5)]
    reads = reads_of(*ranges)
    assert log.together == []
    for range_ in reversed(ranges):
        assert offsets(reads, range_) == list(range(10))
    assert log.together == [[0, 1, 2, 3, 4]]
    assert log.alone == []


def test_a_range_that_is_requested_again_is_read_again(log: Log) -> None:
    first, second = range_of(0), range_of(1)
    reads = reads_of(first, second)
    assert offsets(reads, first) == offsets(reads, first) == list(range(10))
    assert log.alone == [0]
    assert offsets(reads, second) == list(range(10))
    assert len(log.together) == 1


def test_ranges_with_large_records_are_read_in_smaller_groups(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_HELD_BYTES", 25 * SIZE)
    ranges = [range_of(each) for each in range(5)]
    reads = reads_of(*ranges)
    for range_ in ranges:
        assert offsets(reads, range_) == list(range(10))
    assert log.together[0] == [0, 1, 2, 3, 4]
    assert all(len(group) * 10 * SIZE <= 25 * SIZE for group in log.together[1:])
    assert sorted([*(each for group in log.together[1:] for each in group), *log.alone]) == [0, 1, 2, 3, 4]
    assert log.open == 0, "a read that was abandoned is closed"


def test_the_error_of_one_range_is_no_error_of_the_others(log: Log) -> None:
    ranges = [range_of(each) for each in range(4)]
    log.lost = {
        1: OffsetsLost("1 is lost", **ranges[1].place),
        3: OffsetsLost("3 is lost", **ranges[3].place),
    }
    reads = reads_of(*ranges)
    assert offsets(reads, ranges[0]) == list(range(10))
    with pytest.raises(OffsetsLost, match="1 is lost"):
        offsets(reads, ranges[1])
    assert offsets(reads, ranges[2]) == list(range(10))
    with pytest.raises(OffsetsLost, match="3 is lost"):
        offsets(reads, ranges[3])
    assert log.together == [[0, 1, 2, 3], [0, 2, 3], [0, 2]]


def test_an_error_after_the_last_record_is_an_error_of_all_ranges(log: Log) -> None:
    """Such as another cluster: no record of the group may be given out."""
    ranges = [range_of(each) for each in range(3)]
    log.gone = ReadFailed("the cluster is unknown", **ranges[0].place)
    reads = reads_of(*ranges)
    for range_ in ranges:
        with pytest.raises(ReadFailed, match="the cluster is unknown"):
            offsets(reads, range_)
    assert len(log.together) == 1


def test_what_is_given_out_is_not_held_any_more(log: Log) -> None:
    ranges = [range_of(each) for each in range(2)]
    reads = reads_of(*ranges)
    with closing(reads.read(ranges[0])) as reading:  # type: ignore[type-var] # it is a generator
        next(reading)
        assert ranges[0] not in reads._read
