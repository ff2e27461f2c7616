"""Resolve the times of a window to offsets, and pin the offsets in the ledger."""

from collections.abc import Mapping
from datetime import UTC, datetime

from exactbatch.errors import OffsetsLost
from exactbatch.ledger import NearbyTimeBoundaries, TimeBoundaries
from exactbatch.model import LogPartition
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.situation import BEGINNING, FirstRecords, Situation
from exactbatch.planning.time_window import beyond_ranges, window_ranges


def resolve_window(
    boundaries: TimeBoundaries, pipeline: Pipeline, request: ReplayRequest, situation: Situation, *, pin: bool
) -> tuple[list[RequestedRange], tuple[OffsetRange, ...]]:
    """Return the processed offsets of the request's window, and its offsets above the stored offsets.

    With `pin`, a time keeps its offset from now on, if the first record at or after it is known. A time without a
    record is not pinned: a record that is sent later may belong to it. Nor is one whose first record retention may
    have removed.

    Raises OffsetsLost, unless `available_only`, if retention may have removed the start of the window.
    """
    assert request.window is not None
    now = datetime.now(UTC)
    nearby = {at: boundaries.read_nearby(pipeline, situation.partitions, at) for at in request.window}
    if not request.available_only and request.window[0] <= now:
        _check_start_not_removed(request.window, situation, nearby[request.window[0]])
    offsets: list[dict[TopicPartition, int | None]] = []
    for at in request.window:
        if at > now:
            # A future time has no offset: its records may not have been sent yet.
            offsets.append({})
            continue
        resolved, to_pin = {}, {}
        for partition in situation.partitions:
            first = situation.first_records[at].get(partition.topic_partition)
            neighbours = nearby[at][partition.topic_partition]
            offset = neighbours.between(partition.last_stable if first is None else first.offset)
            resolved[partition.topic_partition] = offset
            if (
                first is not None
                and neighbours.pinned is None
                and not _may_be_removed(partition, situation.first_records, at)
            ):
                to_pin[partition] = offset
        if pin:
            boundaries.pin(pipeline, at, to_pin)
        offsets.append({**resolved})
    starts, ends = offsets
    return (
        window_ranges(situation.stored, starts, ends),
        beyond_ranges(situation.stored, situation.partitions, starts, ends),
    )


def _may_be_removed(partition: LogPartition, first_records: FirstRecords, at: datetime) -> bool:
    """True if retention may have removed the first record of a time: the record found is the first in the log."""
    key = partition.topic_partition
    return partition.earliest > 0 and first_records[at].get(key) == first_records[BEGINNING].get(key)


def _check_start_not_removed(
    window: tuple[datetime, datetime],
    situation: Situation,
    nearby: Mapping[TopicPartition, NearbyTimeBoundaries],
) -> None:
    """Raise OffsetsLost if retention may have removed the start of a window, or all of it.

    That cannot be excluded once the window starts at the first record in the log, or the log has no record from
    the window's start on. A start that is pinned is known: plan_replay() checks that the log still holds it.
    """
    processed = {offset.topic_partition for offset in situation.stored}
    for partition in situation.partitions:
        if (
            partition.topic_partition in processed
            and nearby[partition.topic_partition].pinned is None
            and _may_be_removed(partition, situation.first_records, window[0])
        ):
            start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
            raise OffsetsLost(
                f"{partition}: the log starts at offset {partition.earliest}, after the start of the window "
                f"{start} to {end} UTC: retention may have removed a part of the window. To replay the rest, "
                f"and keep the results of the removed offsets as they are, set available_only.",
                topic=partition.topic,
                partition=partition.partition,
            )
