"""Divide the offsets of an audit into units, which workers compare independently of each other. Pure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

# The most offsets to compare at a time. Each takes a few bytes of memory, and each window one query for its rows, which
# reads the whole table if there is no index.
WINDOW: Final = 16_000_000
# A unit may be this much larger than its share, as a factor: partitions of nearly the same size stay whole.
_SLACK: Final = 1.1


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets [start, end) of one partition. The first slice of a partition also finds what is below it, from offset
    zero, and the last one what is above it."""

    partition: int
    start: int
    end: int
    is_first: bool = True
    is_last: bool = True

    def __len__(self) -> int:
        return self.end - self.start

    def cut(self, offset: int) -> tuple["Slice", "Slice"]:
        """Return the slices below an offset and from it on."""
        return replace(self, end=offset, is_last=False), replace(self, start=offset, is_first=False)


@dataclass(frozen=True, slots=True)
class Unit:
    """Slices of partitions of one topic, which one worker compares."""

    topic: str
    topic_id: UUID
    slices: tuple[Slice, ...]

    def __len__(self) -> int:
        return sum(map(len, self.slices))


def divide_into_units(partitions: Iterable[tuple[str, UUID, Slice]], parts: int) -> list[Unit]:
    """Divide whole partitions (topic, topic ID, slice) into about `parts` units of similar sizes.

    A partition is cut only where it is larger than a unit.
    """
    whole = list(partitions)
    largest = math.ceil(sum(len(slice_) for _, _, slice_ in whole) / parts * _SLACK)
    units: list[Unit] = []
    for topic, topic_id, slice_ in whole:
        for piece in _pieces(slice_, largest):
            last = units[-1] if units else None
            if last is not None and last.topic_id == topic_id and len(last) + len(piece) <= largest:
                units[-1] = replace(last, slices=(*last.slices, piece))
            else:
                units.append(Unit(topic, topic_id, (piece,)))
    return units


def _pieces(slice_: Slice, largest: int) -> Iterator[Slice]:
    """Cut a slice into equal pieces of at most `largest` offsets."""
    count = math.ceil(len(slice_) / largest) if largest else 1
    for number in range(count, 1, -1):
        piece, slice_ = slice_.cut(slice_.start + math.ceil(len(slice_) / number))
        yield piece
    yield slice_


def group_into_windows(slices: Sequence[Slice], size: int) -> Iterator[list[Slice]]:
    """Group slices to compare at the same time, of at most `size` offsets together; a larger one stays alone.

    No group has two slices of one partition.
    """
    group: list[Slice] = []
    for slice_ in slices:
        if group and sum(map(len, group)) + len(slice_) > size:
            yield group
            group = []
        group.append(slice_)
    if group:
        yield group
