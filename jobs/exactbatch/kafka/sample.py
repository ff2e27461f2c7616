"""Read some of the committed records of topics: the newest, the oldest, and some in between; nothing is written."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from exactbatch.errors import OffsetsLost
from exactbatch.kafka.reader import read_together
from exactbatch.kafka.records import Records
from exactbatch.model import LogPartition
from exactbatch.offsets import OffsetRange, TopicPartition

_MOST_PARTITIONS: Final = 100  # that a sample reads: each is a request to a broker
_BETWEEN: Final = 4  # places between the oldest and the newest records of a partition
_GROWTH: Final = 4
_READ_TIMEOUT: Final = 20.0  # seconds without progress


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a sample reads at most: records, bytes of values, and seconds."""

    records: int
    bytes: int = 32 * 1024 * 1024
    seconds: float = 30.0


@dataclass(slots=True)
class Sample:
    """Records of one or more topics, in parts that each come from one partition, ascending in each partition.

    `partitions` are all of the topics, and `read` those of them that the sample is from. `ended_by` is the bound that
    ended it early: "bytes" or "seconds".
    """

    partitions: Sequence[LogPartition]
    read: Sequence[LogPartition]
    parts: list[tuple[OffsetRange, Records]] = field(default_factory=list)
    ended_by: str | None = None

    def __len__(self) -> int:
        return sum(len(records) for _, records in self.parts)

    @property
    def offsets(self) -> int:
        """Offsets of the whole log: at least as many as committed records."""
        return sum(each.last_stable - each.earliest for each in self.partitions)


def sample(
    properties: Mapping[str, Any],
    partitions: Sequence[LogPartition],
    bounds: Bounds,
    *,
    newest_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sample:
    """Read committed records of partitions: half of them the newest, the others the oldest and some in between.

    With `newest_only`, all are the newest. Where a log has fewer records than offsets, as after compaction, older
    offsets are read until there are enough. `progress` gets the number of records read and wanted.

    Raises what read_together() raises, but for offsets that retention removes meanwhile.
    """
    found = Sample(partitions, _spread([each for each in partitions if each.last_stable > each.earliest]))
    if not found.read:
        return found
    reading = _Reading(properties, found, bounds, progress)
    each = max(1, math.ceil(bounds.records / len(found.read)))
    # Windows are read from their beginning: small ones first, so that a bound leaves out the oldest of them.
    span = math.ceil(each / _GROWTH) if newest_only else math.ceil(each / 2)
    enough = bounds.records if newest_only else bounds.records / 2
    left = {place.topic_partition: place.last_stable for place in found.read}
    is_first = True
    while windows := [
        place.range(max(place.earliest, left[place.topic_partition] - span), left[place.topic_partition])
        for place in found.read
        if left[place.topic_partition] > place.earliest
    ]:
        reading.read(windows)
        left |= {window.topic_partition: window.from_offset for window in windows}
        span *= _GROWTH
        if is_first and not newest_only:
            for old in _old_windows(found.read, each):
                reading.read(old)
        is_first = False
        if len(found) >= enough or found.ended_by is not None:
            break
    if newest_only:
        found.parts = _newest(found.parts, bounds.records)
    found.parts.sort(key=lambda part: (part[0].topic, part[0].partition, int(part[1].offset_array[0])))
    return found


class _Reading:
    """Reads ranges into a sample until a bound is reached; offsets that were read are not read again."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        found: Sample,
        bounds: Bounds,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._properties, self._found, self._bounds, self._progress = properties, found, bounds, progress
        self._deadline = time.monotonic() + bounds.seconds
        self._bytes = 0
        self._done: dict[TopicPartition, list[OffsetRange]] = {}

    def read(self, windows: Sequence[OffsetRange]) -> None:
        """Read ranges of different partitions, without what was read before."""
        for ranges in self._rounds(windows):
            if self._found.ended_by is None:
                self._read(ranges)

    def _rounds(self, windows: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
        """Yield the offsets that are not read yet, in rounds of at most one range of each partition."""
        waiting: dict[TopicPartition, list[OffsetRange]] = {}
        for window in windows:
            unread = [window]
            for done in self._done.get(window.topic_partition, ()):
                unread = [part for each in unread for part in each.without(done)]
            self._done.setdefault(window.topic_partition, []).append(window)
            waiting[window.topic_partition] = unread
        while ranges := [unread.pop() for unread in waiting.values() if unread]:
            yield ranges

    def _read(self, ranges: Sequence[OffsetRange]) -> None:
        epochs: dict[OffsetRange, int | None] = dict.fromkeys(ranges)
        reading = read_together(
            epochs, self._properties, timeout=_READ_TIMEOUT, cluster_id=None, keeps_records=True
        )
        try:
            with closing(reading):
                for range_, records in reading:
                    self._found.parts.append((range_, records))
                    self._bytes += int(records.sizes().sum())
                    if self._progress is not None:
                        self._progress(min(len(self._found), self._bounds.records), self._bounds.records)
                    if self._bytes >= self._bounds.bytes:
                        self._found.ended_by = "bytes"
                    elif time.monotonic() > self._deadline:
                        self._found.ended_by = "seconds"
                    if self._found.ended_by is not None:
                        return
        except OffsetsLost:
            return  # retention removed the oldest records meanwhile: the others are the sample


def _newest(parts: Sequence[tuple[OffsetRange, Records]], count: int) -> list[tuple[OffsetRange, Records]]:
    """Return the records with the latest timestamps, the later offset first if these are equal."""
    places = [
        (timestamp, offset, number, index)
        for number, (_, records) in enumerate(parts)
        for index, (timestamp, offset) in enumerate(
            zip(records.milliseconds().tolist(), records.offset_array.tolist(), strict=True)
        )
    ]
    kept: dict[int, list[int]] = {}
    for _, _, number, index in sorted(places, reverse=True)[:count]:
        kept.setdefault(number, []).append(index)
    return [(parts[number][0], parts[number][1].take(sorted(indexes))) for number, indexes in kept.items()]


def _spread(partitions: Sequence[LogPartition]) -> list[LogPartition]:
    """Return at most _MOST_PARTITIONS partitions, evenly spread over all of them."""
    if len(partitions) <= _MOST_PARTITIONS:
        return list(partitions)
    step = len(partitions) / _MOST_PARTITIONS
    return [partitions[int(number * step)] for number in range(_MOST_PARTITIONS)]


def _old_windows(partitions: Sequence[LogPartition], each: int) -> Iterator[list[OffsetRange]]:
    """Yield the oldest offsets of each partition, a quarter of `each`, and windows at places in between."""
    yield [_window(place, place.earliest, max(1, each // 4)) for place in partitions]
    for number in range(1, _BETWEEN + 1):
        yield [
            _window(
                place,
                place.earliest + (place.last_stable - place.earliest) * number // (_BETWEEN + 1),
                max(1, each // (4 * _BETWEEN)),
            )
            for place in partitions
        ]


def _window(place: LogPartition, start: int, size: int) -> OffsetRange:
    return place.range(start, min(place.last_stable, start + size))
