"""Many small ranges are read through one consumer, each exactly, and the error of one is no error of the others."""

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from exactbatch.errors import LogEndedEarly, OffsetsLost
from exactbatch.kafka import reader
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import SharedReads
from exactbatch.offsets import OffsetRange
from support.topics import Topic

MakeTopic = Callable[..., Topic]


def range_of(topic: Topic, partition: int, from_offset: int, until_offset: int) -> OffsetRange:
    return OffsetRange(topic.name, partition, from_offset, until_offset, UUID(int=0))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The consumers that are opened."""
    opened: list[Any] = []
    open_consumer = reader.open_consumer

    def opening(*arguments: Any, **named: Any) -> Any:
        opened.append(open_consumer(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr(reader, "open_consumer", opening)
    return opened


def read(reads: SharedReads, range_: OffsetRange) -> list[tuple[int, bytes | None]]:
    return [
        each
        for records in reads.read(range_)
        for each in zip(records.offset_array.tolist(), records.values().to_pylist(), strict=True)
    ]


def test_ranges_of_many_partitions_are_read_through_one_consumer(
    make_topic: MakeTopic, settings: Any, opened: list[Any]
) -> None:
    topic = make_topic(partitions=40)
    for partition in range(40):
        topic.produce(*(b"%d.%d" % (partition, number) for number in range(30)), partition=partition)
    topic.transaction(b"x", b"y", end="abort", partition=7)  # 30, 31, marker 32
    topic.transaction(b"z", partition=8)  # 30, marker 31
    ranges = [range_of(topic, partition, partition % 10, 20 + partition % 3) for partition in range(40)]
    ranges[7], ranges[8] = range_of(topic, 7, 29, 33), range_of(topic, 8, 31, 32)
    [cluster_id] = {KafkaBroker(settings.kafka).cluster([topic.name])[1]}
    reads = SharedReads(dict.fromkeys(ranges), topic.properties, timeout=10, cluster_id=cluster_id)
    for range_ in reversed(ranges):
        if range_.partition not in (7, 8):
            expected = range(range_.from_offset, range_.until_offset)
            assert read(reads, range_) == [(each, b"%d.%d" % (range_.partition, each)) for each in expected]
    assert read(reads, ranges[7]) == [(29, b"7.29")]
    assert read(reads, ranges[8]) == []
    assert len(opened) == 1


def test_a_range_that_is_lost_and_one_that_ends_early_fail_alone(
    make_topic: MakeTopic, admin: AdminClient, opened: list[Any]
) -> None:
    topic = make_topic(partitions=4)
    for partition in range(4):
        topic.produce(*[b"v"] * 10, partition=partition)
    lost = TopicPartition(topic.name, 1, 5)
    admin.delete_records([lost])[lost].result(30)
    ranges = [range_of(topic, partition, 0, 10) for partition in range(4)]
    reads = SharedReads(dict.fromkeys(ranges), topic.properties, timeout=10, cluster_id=None)
    for range_ in ranges:
        if range_.partition == 1:
            with pytest.raises(OffsetsLost, match="retention removed 5 of these offsets"):
                read(reads, range_)
        else:
            assert read(reads, range_) == [(each, b"v") for each in range(10)]
    assert len(opened) == 2
    early = [range_of(topic, 0, 0, 10), range_of(topic, 2, 0, 12)]
    reads = SharedReads(dict.fromkeys(early), topic.properties, timeout=1, cluster_id=None)
    started = time.monotonic()
    for range_ in early:  # it can be tried again: no range of the group goes on before it is
        with pytest.raises(LogEndedEarly, match=r"\[2\] 0\.\.12: the log has ended at 10"):
            read(reads, range_)
    assert time.monotonic() - started < 15
