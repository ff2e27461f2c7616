"""Ranges of a time window whose offsets are known. Pure, no I/O."""

from collections.abc import Mapping, Sequence
from typing import Final

from exactbatch.model import LogPartition, StoredOffset
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.planning.request import RequestedRange

_SHOWN: Final = 5


def window_ranges(
    stored: Sequence[StoredOffset],
    starts: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
) -> list[RequestedRange]:
    """Return the processed offsets of a time window: those below the stored offsets.

    `starts` and `ends` give the offsets of the window's start and end; None, or a missing partition, is a time in
    the future.
    """
    requested = []
    for offset in stored:
        head = offset.next_offset
        start, end = starts.get(offset.topic_partition), ends.get(offset.topic_partition)
        from_offset = head if start is None else start
        until_offset = head if end is None else min(end, head)
        if from_offset < until_offset:
            requested.append(RequestedRange(*offset.topic_partition, from_offset, until_offset))
    return requested


def beyond_ranges(
    stored: Sequence[StoredOffset],
    partitions: Sequence[LogPartition],
    starts: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
) -> tuple[OffsetRange, ...]:
    """Return the offsets of a time window at or above the stored offsets, for topics that have stored offsets.

    A partition that was added to such a topic is processed from its earliest offset.
    """
    heads = {offset.topic_partition: offset.next_offset for offset in stored}
    topics = {offset.topic for offset in stored}
    beyond = []
    for partition in partitions:
        start, end = starts.get(partition.topic_partition), ends.get(partition.topic_partition)
        if partition.topic not in topics or start is None:
            continue
        from_offset = max(start, heads.get(partition.topic_partition, partition.earliest))
        until_offset = partition.last_stable if end is None else min(end, partition.last_stable)
        if from_offset < until_offset:
            beyond.append(partition.range(from_offset, until_offset))
    return tuple(beyond)


def beyond_text(beyond: Sequence[OffsetRange]) -> str:
    """Say how many offsets of a window are above the stored offsets, and which."""
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    return (
        f"{sum(map(len, beyond))} offsets of the window are above the stored offsets: "
        f"{', '.join(map(str, beyond[:_SHOWN]))}{more}"
    )
