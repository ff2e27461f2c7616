"""What the next batch processes: stored offsets + the log + limits → a plan. Pure, no I/O."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from exactbatch.errors import (
    ConfigurationError,
    LogWentBackwards,
    OffsetsLost,
    PartitionGone,
    StartOutOfRange,
    TopicRecreated,
)
from exactbatch.offsets import Log, OffsetRange
from exactbatch.options import check_types

TopicPartition = tuple[str, int]
OnLoss = Literal["fail", "record"]
Start = Literal["earliest", "latest"] | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPartition:
    """What the broker says of one partition. Offsets satisfy earliest <= last_stable <= high_watermark."""

    topic: str
    partition: int
    topic_id: UUID
    leader_epoch: int | None
    earliest: int
    last_stable: int
    high_watermark: int

    def range(self, from_offset: int, until_offset: int) -> OffsetRange:
        """A range of this partition, [from_offset, until_offset)."""
        return OffsetRange(
            self.topic, self.partition, from_offset, until_offset, self.topic_id, self.leader_epoch
        )

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """The first committed record of a partition at or after a time: its offset, and its own time, in ms."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """Where a pipeline stands in one partition: every offset below `next_offset` is accounted for."""

    topic: str
    partition: int
    next_offset: int
    leader_epoch: int | None
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Covered:
    """A row of exactbatch.coverage: offsets [from_offset, until_offset) of one life of a partition."""

    topic: str
    topic_id: UUID
    partition: int
    from_offset: int
    until_offset: int
    kind: Literal["batch", "loss"]
    batch_id: int | None

    @property
    def log(self) -> Log:
        """The partition of the topic's life that the offsets belong to."""
        return self.topic, self.partition, self.topic_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many offsets one batch may span. None sets no limit.

    `max_records` is shared fairly over the partitions: one with less to give leaves its share to the others.
    """

    max_records: int | None = None
    max_records_per_partition: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("max_records", "max_records_per_partition"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(
                    f"Limits: expected {name} to be 1 or more, or None for no limit, found {value}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One advance: where partitions start that have no stored offset yet, what is lost, what to process.

    `unnamed` are the partitions that start at their earliest because `start`, a mapping or what a group has
    committed, has no offset for them.
    """

    seeds: tuple[StoredOffset, ...]
    losses: tuple[OffsetRange, ...]
    ranges: tuple[OffsetRange, ...]
    unnamed: tuple[TopicPartition, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing to process. Seeds and losses are stored all the same."""
        return not self.ranges


def plan_advance(
    stored: Sequence[StoredOffset],
    log: Sequence[LogPartition],
    *,
    start: Start = "earliest",
    limits: Limits = Limits(),
    on_loss: OnLoss = "fail",
) -> Plan:
    """Plan the next batch of a pipeline.

    `start` applies to topics without any stored offset; a partition that a known topic has gained since
    starts at its earliest offset.

    Raises TopicRecreated, PartitionGone, LogWentBackwards, OffsetsLost and StartOutOfRange, each for the
    first partition that shows it.
    """
    stored_at = {(each.topic, each.partition): each for each in stored}
    known_topics = {each.topic for each in stored}
    _check_partitions_are_there(stored, log)
    _check_start_is_there(start, log, known_topics)
    seeds, losses, positions, unnamed = [], [], [], []
    for partition in sorted(log, key=lambda p: (p.topic, p.partition)):
        offset = stored_at.get((partition.topic, partition.partition))
        if offset is None:
            first_run = partition.topic not in known_topics
            position = _start_of(partition, start) if first_run else partition.earliest
            seeds.append(_stored(partition, position))
            if (
                first_run
                and isinstance(start, Mapping)
                and (partition.topic, partition.partition) not in start
            ):
                unnamed.append((partition.topic, partition.partition))
        else:
            _check_same_log(offset, partition)
            position = max(offset.next_offset, partition.earliest)
            if position > offset.next_offset:
                losses.append(_loss(offset, partition, on_loss))
        positions.append((partition, position))
    takes = share([max(0, p.last_stable - position) for p, position in positions], limits)
    ranges = tuple(
        partition.range(position, position + take)
        for (partition, position), take in zip(positions, takes, strict=True)
        if take
    )
    return Plan(seeds=tuple(seeds), losses=tuple(losses), ranges=ranges, unnamed=tuple(unnamed))


def check_same_logs(stored: Sequence[StoredOffset], log: Sequence[LogPartition]) -> None:
    """Raise TopicRecreated, PartitionGone or LogWentBackwards unless the log is the one that was processed."""
    _check_partitions_are_there(stored, log)
    there = {(each.topic, each.partition): each for each in log}
    for offset in stored:
        _check_same_log(offset, there[offset.topic, offset.partition])


class Coverage:
    """Rows of exactbatch.coverage, none of which overlaps another; those of a range are found without a scan."""

    def __init__(self, rows: Iterable[Covered]) -> None:
        self._of_log: dict[Log, list[Covered]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.from_offset):
            self._of_log[row.log].append(row)

    def overlapping(self, range_: OffsetRange) -> list[Covered]:
        """The rows that have an offset of the range, in their order."""
        rows = self._of_log.get(range_.log, [])
        first = bisect_right(rows, range_.from_offset, key=lambda row: row.until_offset)
        end = bisect_left(rows, range_.until_offset, key=lambda row: row.from_offset)
        return rows[first:end]

    def cut(self, range_: OffsetRange) -> list[Covered]:
        """As overlapping(), of each row what lies in the range."""
        return [
            replace(
                row,
                from_offset=max(row.from_offset, range_.from_offset),
                until_offset=min(row.until_offset, range_.until_offset),
            )
            for row in self.overlapping(range_)
        ]

    def without(self, ranges: Iterable[OffsetRange]) -> list[Covered]:
        """What the rows cover beside ranges, none of which overlaps another."""
        rest = []
        reached = {row: row.from_offset for rows in self._of_log.values() for row in rows}
        for range_ in sorted(ranges, key=lambda each: each.from_offset):
            for row in self.overlapping(range_):
                if reached[row] < range_.from_offset:
                    rest.append(replace(row, from_offset=reached[row], until_offset=range_.from_offset))
                reached[row] = range_.until_offset
        return rest + [
            replace(row, from_offset=end) for row, end in reached.items() if end < row.until_offset
        ]

    def batches(self, range_: OffsetRange) -> set[int]:
        """The batches whose results stand for some offsets of the range."""
        return {row.batch_id for row in self.overlapping(range_) if row.batch_id is not None}


def covered_parts(
    ranges: Sequence[OffsetRange], coverage: Sequence[Covered]
) -> list[tuple[OffsetRange, tuple[int, ...]]]:
    """Each range, and the batches whose results stand for some of its offsets."""
    found = Coverage(coverage)
    return [(range_, tuple(sorted(found.batches(range_)))) for range_ in ranges]


def share(available: Sequence[int], limits: Limits) -> list[int]:
    """How many offsets each partition gives, in the order of `available`.

    Max-min fairness: the smallest partitions are served whole, the others get equal parts of what is left.
    """
    if limits.max_records_per_partition is not None:
        available = [min(each, limits.max_records_per_partition) for each in available]
    if limits.max_records is None:
        return list(available)
    left = limits.max_records
    takes = [0] * len(available)
    waiting = sorted((i for i, each in enumerate(available) if each), key=lambda i: available[i])
    for served, index in enumerate(waiting):
        # Rounding up for the smaller ones would starve the last; rounding down leaves the rest to it.
        takes[index] = min(available[index], left // (len(waiting) - served))
        left -= takes[index]
    return takes


def _stored(partition: LogPartition, next_offset: int) -> StoredOffset:
    return StoredOffset(
        topic=partition.topic,
        partition=partition.partition,
        next_offset=next_offset,
        leader_epoch=partition.leader_epoch,
        topic_id=partition.topic_id,
    )


def _start_of(partition: LogPartition, start: Start) -> int:
    if start == "earliest":
        return partition.earliest
    if start == "latest":
        return partition.last_stable
    assert not isinstance(start, str)
    offset = start.get((partition.topic, partition.partition), partition.earliest)
    if not partition.earliest <= offset <= partition.last_stable:
        raise StartOutOfRange(
            f"{partition}: expected a start offset from {partition.earliest} to {partition.last_stable}, "
            f"where the log stands now, found {offset}. Correct the pipeline's start, or use "
            f"start='earliest'."
        )
    return offset


def _check_partitions_are_there(stored: Collection[StoredOffset], log: Collection[LogPartition]) -> None:
    topics = {each.topic for each in log}
    there = {(each.topic, each.partition) for each in log}
    for offset in stored:
        if offset.topic in topics and (offset.topic, offset.partition) not in there:
            raise PartitionGone(
                f"topic {offset.topic!r}: expected partition {offset.partition}, whose stored offset is "
                f"{offset.next_offset}, found only {len([p for p in log if p.topic == offset.topic])} "
                f"partitions. Kafka never removes a partition: check that bootstrap.servers names the right "
                f"cluster."
            )


def _check_start_is_there(start: Start, log: Collection[LogPartition], known_topics: Set[str]) -> None:
    if isinstance(start, str):
        return
    count = Counter(each.topic for each in log)
    for topic, partition in start:
        if topic in count and topic not in known_topics and partition not in range(count[topic]):
            raise StartOutOfRange(
                f"topic {topic!r}: expected start to name partitions from 0 to {count[topic] - 1}, found "
                f"{partition}. Correct the pipeline's start."
            )


def _check_same_log(offset: StoredOffset, partition: LogPartition) -> None:
    if offset.topic_id != partition.topic_id:
        raise TopicRecreated(
            f"{partition}: expected topic id {offset.topic_id}, found {partition.topic_id}: the topic was "
            f"deleted and created again, so the stored offset {offset.next_offset} says nothing about it. "
            f"Register a pipeline under a new name to load the new topic."
        )
    if offset.next_offset > partition.high_watermark:
        raise LogWentBackwards(
            f"{partition}: expected the log to reach the stored offset {offset.next_offset}, found its end at "
            f"{partition.high_watermark}: records that were processed are no longer in the log (an unclean "
            f"leader election, or another cluster). Check bootstrap.servers; if the log was really cut, "
            f"register a pipeline under a new name with an explicit start."
        )


def _loss(offset: StoredOffset, partition: LogPartition, on_loss: OnLoss) -> OffsetRange:
    # With the log's epoch, not the stored one, which is that of records that are gone.
    lost = partition.range(offset.next_offset, partition.earliest)
    if on_loss == "fail":
        raise OffsetsLost(
            f"{partition}: expected to go on at the stored offset {offset.next_offset}, found that the log "
            f"starts at {partition.earliest}: retention removed {len(lost)} offsets that were not processed. "
            f"Set on_loss='record' on the pipeline to record them as lost and go on from "
            f"{partition.earliest}."
        )
    return lost
