"""What pipelines have not processed yet: the age of the first such record, and logs that contradict stored offsets."""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.model import LogPartition, convert_time
from exactbatch.offsets import TopicPartition


class Stored(Protocol):
    """A stored offset, and the ID of the topic that it belongs to."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        ...

    @property
    def next_offset(self) -> int:
        """The first offset that is not accounted for."""
        ...

    @property
    def topic_id(self) -> UUID:
        """The topic's ID."""
        ...


class FirstOffset(NamedTuple):
    """Where unprocessed records begin, and whether an open transaction holds all of them back."""

    offset: int
    is_held_back: bool


def first_offsets(
    logs: Iterable[LogPartition], stored: Mapping[TopicPartition, Stored]
) -> dict[TopicPartition, FirstOffset]:
    """Return where the unprocessed records of each partition begin, if it has any. Pure.

    A partition without a stored offset begins with its log. One whose log contradicts the stored offset is left out.
    """
    found = {}
    for log in logs:
        offset = stored.get(log.topic_partition)
        begin = offset.next_offset if offset else log.earliest
        if begin < log.high_watermark and find_contradiction(offset, log) is None:
            found[log.topic_partition] = FirstOffset(begin, is_held_back=begin >= log.last_stable)
    return found


class OldestRecords(NamedTuple):
    """The timestamps of the first unprocessed records, and the partitions that did not answer within 10 s.

    A partition has no timestamp where only markers of transactions are left, and where it is beyond Python's calendar.
    """

    times: Mapping[TopicPartition, datetime]
    unanswered: Set[TopicPartition]


def first_unprocessed(
    broker: KafkaBroker, logs: Iterable[LogPartition], stored: Mapping[TopicPartition, Stored]
) -> OldestRecords:
    """Look up the timestamp of the first unprocessed record of each partition.

    Where an open transaction holds all of them back, it is the first of these.

    Raises KafkaUnavailable, ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    offsets = first_offsets(logs, stored)
    found: dict[TopicPartition, int | None] = {}
    for is_held_back in (False, True):
        asked = {place: each.offset for place, each in offsets.items() if each.is_held_back == is_held_back}
        found |= broker.first_timestamps(asked, uncommitted=is_held_back)
    times = {place: convert_time(each) for place, each in found.items()}
    return OldestRecords(
        {place: time for place, time in times.items() if time is not None}, offsets.keys() - found.keys()
    )


def find_contradiction(stored: Stored | None, log: LogPartition) -> str | None:
    """Return a sentence on what a log lacks or is, against its stored offset; None if both agree."""
    if stored is None:
        return None
    if stored.topic_id != log.topic_id:
        return f"{log}: the topic was deleted and created again; the next plan will fail."
    if stored.next_offset < log.earliest:
        return f"{log}: retention removed {log.earliest - stored.next_offset} unprocessed offsets."
    if stored.next_offset > log.high_watermark:
        return f"{log}: the log ends at {log.high_watermark}, below the stored offset."
    return None
