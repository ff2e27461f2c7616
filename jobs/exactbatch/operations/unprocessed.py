"""Measure what pipelines have not processed yet: the age of the first such record, whether it has waited for longer
than the pipeline's `freshness`, logs that contradict stored offsets, and how far results are sent to their topic.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import may_be_same
from exactbatch.ledger import Streams
from exactbatch.model import LogPartition, convert_time
from exactbatch.offsets import TopicPartition

_DECIDES = "The ledger decides what status, lag, doctor, dashboards and the page in Airflow show."


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
    if not may_be_same(log.topic, stored.topic_id, log.topic_id):
        return f"{log}: the topic was deleted and created again; the next plan will fail."
    if stored.next_offset < log.earliest:
        return f"{log}: retention removed {log.earliest - stored.next_offset} unprocessed offsets."
    if stored.next_offset > log.high_watermark:
        return f"{log}: the log ends at {log.high_watermark}, below the stored offset."
    return None


def is_overdue(
    freshness: timedelta | None, oldest: datetime | None, now: datetime, *, is_known: bool = True
) -> bool | None:
    """Return whether a pipeline is overdue: whether its oldest unprocessed record is older than `freshness`.

    freshness  as the pipeline is registered; without one, the answer is None
    oldest     the timestamp of the oldest unprocessed record; None if there is none, or if it is not known
    now        the time of the comparison; like `oldest`, with a time zone
    is_known   False if there may be an older record: the answer is then True or None

    A pipeline without unprocessed records is never overdue, however long ago its last batch was.
    """
    if freshness is None:
        return None
    if oldest is not None and now - oldest > freshness:
        return True
    return False if is_known else None


def overdue_text(freshness: timedelta | None, oldest: datetime | None, now: datetime) -> str | None:
    """Return why a pipeline is overdue, without a full stop at the end; None if it is not."""
    if freshness is None or oldest is None or not is_overdue(freshness, oldest, now):
        return None
    return (
        f"overdue: its oldest unprocessed record is {_whole_seconds(now - oldest)} old, and freshness allows "
        f"{freshness}"
    )


def differing_freshness(own: timedelta | None, registered: timedelta | None) -> str | None:
    """Return a sentence on a pipeline that was not registered again after its freshness changed; None if both agree."""
    if own == registered:
        return None
    return f"its freshness is {_text(own)} in its code and {_text(registered)} in the ledger. {_DECIDES}"


def _text(freshness: timedelta | None) -> str:
    return "not set" if freshness is None else str(freshness)


def _whole_seconds(age: timedelta) -> timedelta:
    return timedelta(seconds=int(age.total_seconds()))


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The results of a pipeline that go to a topic.

    sent_sequence  the topic has all results up to this number
    unsent         how many later ones were committed
    oldest         when the oldest of these was committed; None if there is none
    sent_at        when results were last sent; None before the first time
    """

    topic: str
    sent_sequence: int
    unsent: int
    oldest: datetime | None
    sent_at: datetime | None

    def __str__(self) -> str:
        if not self.unsent:
            return f"the topic {self.topic} has all {self.sent_sequence:,} results"
        lacks = f"the topic {self.topic} lacks {self.unsent:,} results"
        if self.oldest is None:
            return lacks
        return f"{lacks}, of which the oldest was committed at {self.oldest:%Y-%m-%d %H:%M:%S} UTC"


def load_forwarding(streams: Streams, pipeline: str) -> Forwarding | None:
    """Return how far results are sent; None if the pipeline of this name forwards none."""
    if (stream := streams.read(pipeline)) is None:
        return None
    return Forwarding(
        stream.topic,
        stream.sent_sequence,
        stream.unsent,
        streams.find_oldest_unsent(pipeline),
        stream.sent_at,
    )
