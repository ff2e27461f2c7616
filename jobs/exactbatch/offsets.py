"""Offset ranges, half-open, as Kafka and Python count: [from_offset, until_offset)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from uuid import UUID

from exactbatch.errors import Place

# The partition of one life of a topic: topic, partition, topic id.
Log = tuple[str, int, UUID]


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets [from_offset, until_offset) of one partition of one life of a topic.

    A range counts offsets, not records: compaction and transaction markers leave holes.
    `leader_epoch` is the epoch of the partition's leader when the range was planned; it is None where
    the broker does not tell.
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
        """How many offsets the range spans."""
        return self.until_offset - self.from_offset

    @property
    def log(self) -> Log:
        """The partition of the topic's life that the offsets belong to."""
        return self.topic, self.partition, self.topic_id

    @property
    def place(self) -> Place:
        """The keyword arguments with which an error names this range."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
        }

    def cut(self, offset: int) -> "tuple[OffsetRange | None, OffsetRange | None]":
        """What lies below an offset, and what lies at or above it; None for nothing."""
        if offset <= self.from_offset:
            return None, self
        if offset >= self.until_offset:
            return self, None
        return replace(self, until_offset=offset), replace(self, from_offset=offset)

    def without(self, other: "OffsetRange") -> "list[OffsetRange]":
        """What is left of this range without another one."""
        if self.log != other.log:
            return [self]
        below, rest = self.cut(other.from_offset)
        above = rest.cut(other.until_offset)[1] if rest is not None else None
        return [each for each in (below, above) if each is not None]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.from_offset}..{self.until_offset}"


def split(ranges: Sequence[OffsetRange], *, parts: int, smallest: int) -> list[OffsetRange]:
    """Cut large ranges so that about `parts` pieces of similar size come out.

    A piece spans at least `smallest` offsets unless its range is smaller. The pieces cover the same
    offsets in the same order.
    """
    if not ranges:
        return []
    wanted = max(smallest, -(-sum(map(len, ranges)) // parts))
    return [
        piece
        for each in ranges
        for piece in _cut(each, pieces=max(1, min(round(len(each) / wanted), len(each) // smallest)))
    ]


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Deal things of these sizes into at most so many hands of similar size, largest first; by their indexes.

    No hand is empty.
    """
    dealt: list[list[int]] = [[] for _ in range(min(hands, len(sizes)))]
    smallest = [(0, hand) for hand in range(len(dealt))]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size, hand = heappop(smallest)
        dealt[hand].append(index)
        heappush(smallest, (size + sizes[index], hand))
    return dealt


def merge(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Join ranges of one log that touch; logs and offsets come out in order.

    Raises ValueError when two ranges overlap.
    """
    merged: list[OffsetRange] = []
    for each in sorted(ranges, key=lambda r: (*r.log, r.from_offset)):
        last = merged[-1] if merged else None
        if last is None or last.log != each.log or last.until_offset < each.from_offset:
            merged.append(each)
        elif last.until_offset == each.from_offset:
            merged[-1] = replace(last, until_offset=each.until_offset)
        else:
            raise ValueError(f"expected ranges that do not overlap, found {last} and {each}")
    return merged


def union(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets that are in any of the ranges; as merge(), but ranges of one log may overlap."""
    joined: list[OffsetRange] = []
    for each in sorted(ranges, key=lambda r: (*r.log, r.from_offset)):
        last = joined[-1] if joined else None
        if last is None or last.log != each.log or last.until_offset < each.from_offset:
            joined.append(each)
        elif last.until_offset < each.until_offset:
            joined[-1] = replace(last, until_offset=each.until_offset)
    return joined


def _cut(range_: OffsetRange, *, pieces: int) -> Iterable[OffsetRange]:
    """Cut one range into pieces whose sizes differ by at most one offset."""
    size, larger = divmod(len(range_), pieces)
    start = range_.from_offset
    for index in range(pieces):
        end = start + size + (index < larger)
        yield replace(range_, from_offset=start, until_offset=end)
        start = end
