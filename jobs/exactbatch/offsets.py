"""Offset ranges, half-open, as Kafka and Python count: [from_offset, until_offset). Pure, no I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from uuid import UUID

from exactbatch.errors import RangePlace

TopicPartition = tuple[str, int]
# Topic, partition and topic ID: a topic that was deleted and created again has another ID, so its offsets are
# others.
PartitionKey = tuple[str, int, UUID]


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets [from_offset, until_offset) of one partition of the topic with this ID.

    A range counts offsets, not records: compaction and transaction markers leave gaps.
    `leader_epoch` is the epoch of the partition's leader when the range was planned, None if the broker does not
    report it.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: UUID
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset < self.until_offset:
            raise ValueError(f"expected 0 <= from_offset < until_offset, found {self}")

    def __len__(self) -> int:
        """Number of offsets in the range."""
        return self.until_offset - self.from_offset

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def key(self) -> PartitionKey:
        """Topic, partition and topic ID."""
        return self.topic, self.partition, self.topic_id

    @property
    def place(self) -> RangePlace:
        """The keyword arguments with which an error names this range."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
        }

    def cut(self, offset: int) -> "tuple[OffsetRange | None, OffsetRange | None]":
        """Return the part below an offset and the part at or above it; None for an empty part."""
        if offset <= self.from_offset:
            return None, self
        if offset >= self.until_offset:
            return self, None
        return replace(self, until_offset=offset), replace(self, from_offset=offset)

    def without(self, other: "OffsetRange") -> "list[OffsetRange]":
        """Return the zero to two ranges that remain of this one when the offsets of another are removed."""
        if self.key != other.key:
            return [self]
        below, rest = self.cut(other.from_offset)
        above = rest.cut(other.until_offset)[1] if rest is not None else None
        return [part for part in (below, above) if part is not None]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.from_offset}..{self.until_offset}"


def split_ranges(ranges: Sequence[OffsetRange], *, parts: int, smallest: int) -> list[OffsetRange]:
    """Cut large ranges, to get about `parts` splits of similar size.

    A split spans at least `smallest` offsets unless its range is smaller. The splits cover the same
    offsets in the same order.
    """
    if not ranges:
        return []
    target_size = max(smallest, -(-sum(map(len, ranges)) // parts))
    return [
        split
        for range_ in ranges
        for split in _cut_evenly(
            range_, splits=max(1, min(round(len(range_) / target_size), len(range_) // smallest))
        )
    ]


def fill_bins(sizes: Sequence[int], bins: int) -> list[list[int]]:
    """Distribute items of these sizes over at most `bins` bins of similar total size, the largest items first.

    Returns the indexes of the items in each bin; no bin is empty.
    """
    filled: list[list[int]] = [[] for _ in range(min(bins, len(sizes)))]
    by_total = [(0, bin_) for bin_ in range(len(filled))]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        total, bin_ = heappop(by_total)
        filled[bin_].append(index)
        heappush(by_total, (total + sizes[index], bin_))
    return filled


def group_small(ranges: Sequence[OffsetRange], *, small: int, together: int) -> list[list[int]]:
    """Group ranges of at most `small` offsets, so that a group has at most `together` and no partition twice.

    Returns the indexes of the ranges in each group. A larger range is a group by itself.
    """
    groups: list[list[int]] = []
    sizes: list[int] = []
    first_without: dict[TopicPartition, int] = {}  # the first group that may take a range of a partition
    for index, range_ in enumerate(ranges):
        if len(range_) > small:
            continue
        at = first_without.get(range_.topic_partition, 0)
        while at < len(groups) and sizes[at] + len(range_) > together:
            at += 1
        if at == len(groups):
            groups.append([])
            sizes.append(0)
        groups[at].append(index)
        sizes[at] += len(range_)
        first_without[range_.topic_partition] = at + 1
    return groups + [[index] for index, range_ in enumerate(ranges) if len(range_) > small]


def merge(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Join adjacent ranges of the same partition; partitions and offsets come out in order.

    Raises ValueError if two ranges overlap.
    """
    merged: list[OffsetRange] = []
    for range_ in sorted(ranges, key=lambda r: (*r.key, r.from_offset)):
        last = merged[-1] if merged else None
        if last is None or last.key != range_.key or last.until_offset < range_.from_offset:
            merged.append(range_)
        elif last.until_offset == range_.from_offset:
            merged[-1] = replace(last, until_offset=range_.until_offset)
        else:
            raise ValueError(f"expected ranges that do not overlap, found {last} and {range_}")
    return merged


def union(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets that are in any of the ranges; like merge(), but the ranges may overlap."""
    joined: list[OffsetRange] = []
    for range_ in sorted(ranges, key=lambda r: (*r.key, r.from_offset)):
        last = joined[-1] if joined else None
        if last is None or last.key != range_.key or last.until_offset < range_.from_offset:
            joined.append(range_)
        elif last.until_offset < range_.until_offset:
            joined[-1] = replace(last, until_offset=range_.until_offset)
    return joined


def _cut_evenly(range_: OffsetRange, *, splits: int) -> Iterable[OffsetRange]:
    """Cut one range into splits whose sizes differ by at most one offset."""
    size, larger = divmod(len(range_), splits)
    start = range_.from_offset
    for index in range(splits):
        end = start + size + (index < larger)
        yield replace(range_, from_offset=start, until_offset=end)
        start = end
