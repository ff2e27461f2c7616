"""Plan a replay: requested ranges + stored offsets + the log → a plan. Pure, no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from exactbatch.coverage import Coverage
from exactbatch.errors import OffsetsLost, ReplayRefused
from exactbatch.kafka.identity import check_same_logs
from exactbatch.model import Covered, LogPartition, StoredOffset
from exactbatch.offsets import OffsetRange, PartitionKey, TopicPartition, union
from exactbatch.planning.request import RequestedRange


@dataclass(frozen=True, slots=True)
class Widening:
    """Offsets of a batch that were not requested, and are processed again because the rest of the batch is."""

    batch_id: int
    range: OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The plan of one replay.

    ranges     offsets to process
    removed    requested offsets that retention has removed from the log
    compacted  requested offsets below a replay horizon: `exactbatch compact` dropped changes there
    widened    offsets to process that were not requested, because their batches are replayed as a whole
    beyond     offsets of a time window above the stored offsets; the next advance processes them
    """

    ranges: tuple[OffsetRange, ...]
    removed: tuple[OffsetRange, ...] = ()
    compacted: tuple[OffsetRange, ...] = ()
    widened: tuple[Widening, ...] = ()
    beyond: tuple[OffsetRange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to process."""
        return not self.ranges


def plan_replay(
    requested: Sequence[RequestedRange],
    stored: Sequence[StoredOffset],
    partitions: Sequence[LogPartition],
    *,
    coverage: Sequence[Covered] = (),
    horizons: Mapping[PartitionKey, int] = MappingProxyType({}),
    lineage: Literal["record", "batch"] = "record",
    available_only: bool = False,
    beyond: tuple[OffsetRange, ...] = (),
) -> ReplayPlan:
    """Plan a replay of exactly the requested ranges; `beyond` goes into the plan unchanged.

    With lineage="batch" only whole batches can be retracted, so the plan is widened to all that `coverage` holds
    of each batch that it touches. `horizons` gives for a partition the offset below which changes were compacted.

    Raises ReplayRefused for ranges that are reversed, overlap, end above the stored offset or name an unknown
    partition; unless `available_only`, ReplayRefused for offsets below a horizon and OffsetsLost for offsets
    that retention has removed; and TopicRecreated, PartitionGone or StoredOffsetBeyondLog if the log is not the
    one that was processed.
    """
    heads = {offset.topic_partition: offset for offset in stored}
    for range_ in requested:
        _check_processed(range_, heads)
    _check_overlaps(requested)
    topics = {range_.topic for range_ in requested}
    check_same_logs([offset for offset in stored if offset.topic in topics], partitions)
    by_partition = {partition.topic_partition: partition for partition in partitions}
    wanted = [by_partition[r.topic_partition].range(r.from_offset, r.until_offset) for r in requested]
    widened: list[Widening] = []
    if lineage == "batch":
        _check_not_pruned(wanted, coverage)
        widened = _widen(wanted, coverage, by_partition)
    compacted, above = _cut_at_horizons(union([*wanted, *(w.range for w in widened)]), horizons)
    if compacted and not available_only:
        raise ReplayRefused(_compacted_message(compacted[0], above, horizons), **compacted[0].place)
    batches = Coverage(coverage)
    removed = []
    ranges = []
    for offsets in above:
        earliest = by_partition[offsets.topic_partition].earliest
        lost, remaining = offsets.cut(earliest)
        if lost is not None:
            if lineage == "batch":
                _check_in_no_batch(lost, batches, earliest)
            if not available_only:
                raise OffsetsLost(_lost_message(offsets, lost, remaining, earliest), **lost.place)
            removed.append(lost)
        if remaining is not None:
            ranges.append(remaining)
    return ReplayPlan(
        ranges=tuple(ranges),
        removed=tuple(removed),
        compacted=tuple(compacted),
        widened=tuple(widened),
        beyond=beyond,
    )


def check_above_horizons(
    batch_id: int, ranges: Iterable[OffsetRange], horizons: Mapping[PartitionKey, int]
) -> None:
    """Raise ReplayRefused if a planned replay reaches below a horizon, which has then moved since."""
    compacted, above = _cut_at_horizons(ranges, horizons)
    if compacted:
        raise ReplayRefused(
            f"batch {batch_id}: {_compacted_message(compacted[0], above, horizons)} The horizon has moved since "
            f"this replay was planned. Nothing was written; plan the replay again.",
            batch_id=batch_id,
            **compacted[0].place,
        )


def _check_processed(range_: RequestedRange, heads: Mapping[TopicPartition, StoredOffset]) -> None:
    """Raise ReplayRefused unless the pipeline has processed all offsets of the range."""
    if not 0 <= range_.from_offset < range_.until_offset:
        raise ReplayRefused(
            f"{range_}: a range needs 0 <= from_offset < until_offset (until_offset is exclusive). Correct the "
            f"range.",
            **range_.place,
        )
    head = heads.get(range_.topic_partition)
    if head is None:
        raise ReplayRefused(_unknown_message(range_, heads), **range_.place)
    if range_.until_offset > head.next_offset:
        raise ReplayRefused(
            f"{range_}: the range ends above the stored offset {head.next_offset}, up to which the pipeline has "
            f"processed the log. End it at {head.next_offset}; the next run processes the offsets above.",
            **range_.place,
        )


def _unknown_message(range_: RequestedRange, heads: Iterable[TopicPartition]) -> str:
    partitions = sorted(partition for topic, partition in heads if topic == range_.topic)
    if partitions:
        return (
            f"{range_}: the pipeline has no stored offset for this partition of topic {range_.topic!r}, only "
            f"for {_listed(partitions)}. Correct the range; the next run processes partitions that the "
            f"pipeline has not reached yet."
        )
    topics = ", ".join(sorted({repr(topic) for topic, _ in heads})) or "none"
    return (
        f"{range_}: the pipeline has no stored offset for topic {range_.topic!r}; the topics with stored "
        f"offsets are: {topics}. Correct the range: a replay covers topics that the pipeline reads and has "
        f"processed."
    )


def _check_overlaps(requested: Sequence[RequestedRange]) -> None:
    ordered = sorted(requested, key=lambda r: (r.topic_partition, r.from_offset))
    for one, other in pairwise(ordered):
        if one.topic_partition == other.topic_partition and other.from_offset < one.until_offset:
            raise ReplayRefused(f"the ranges {one} and {other} overlap. Join them.", **other.place)


def _widen(
    wanted: Sequence[OffsetRange],
    coverage: Sequence[Covered],
    partitions: Mapping[TopicPartition, LogPartition],
) -> list[Widening]:
    """Return the offsets of touched batches that are outside the wanted ranges."""
    batches = Coverage(coverage)
    touched = {batch_id for range_ in wanted for batch_id in batches.batches(range_)}
    rows = [row for row in coverage if row.batch_id in touched]
    for row in rows:
        partition = partitions.get(row.topic_partition)
        if partition is None or partition.topic_id != row.topic_id:
            raise ReplayRefused(
                f"{row.topic!r} is no longer a topic of the pipeline, or was created again, and batch "
                f"{row.batch_id}, which can only be replayed as a whole (lineage='batch'), covers offsets of it. "
                f"Replay ranges that do not touch this batch.",
                topic=row.topic,
                partition=row.partition,
                batch_id=row.batch_id,
            )
    outside = sorted(Coverage(rows).without(wanted), key=lambda row: (row.topic_partition, row.from_offset))
    return [
        Widening(row.batch_id, partitions[row.topic_partition].range(row.from_offset, row.until_offset))
        for row in outside
        if row.batch_id is not None
    ]


def _check_not_pruned(wanted: Sequence[OffsetRange], coverage: Sequence[Covered]) -> None:
    """Raise ReplayRefused for offsets whose batches were folded: it is not known which batches are to be replaced."""
    folded = Coverage(row for row in coverage if row.kind == "pruned")
    for range_ in wanted:
        for row in folded.cut(range_):
            raise ReplayRefused(
                f"{range_}: exactbatch prune has folded the batches of offsets {row.from_offset} to "
                f"{row.until_offset}, and only whole batches can be replayed (lineage='batch'). Replay offsets that "
                f"were not folded, from {row.until_offset} on.",
                topic=row.topic,
                partition=row.partition,
                from_offset=row.from_offset,
                until_offset=row.until_offset,
            )


def _check_in_no_batch(lost: OffsetRange, batches: Coverage, earliest: int) -> None:
    """Raise OffsetsLost if a batch covers any of the offsets that retention has removed."""
    if batch_ids := batches.batches(lost):
        raise OffsetsLost(
            f"{lost}: retention removed these offsets of batch {min(batch_ids)} (log starts at {earliest}), "
            f"and its rows can only be replaced as a whole (lineage='batch'). The replay is refused: it would "
            f"lose the results of these offsets.",
            batch_id=min(batch_ids),
            **lost.place,
        )


def _cut_at_horizons(
    ranges: Iterable[OffsetRange], horizons: Mapping[PartitionKey, int]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the parts of the ranges below the horizons of their partitions, and the parts at or above them."""
    cuts = [range_.cut(horizons.get(range_.key, 0)) for range_ in ranges]
    return [low for low, _ in cuts if low is not None], [high for _, high in cuts if high is not None]


def _compacted_message(
    low: OffsetRange, above: Sequence[OffsetRange], horizons: Mapping[PartitionKey, int]
) -> str:
    return (
        f"{low}: these offsets are below {horizons[low.key]}, the replay horizon of {low.topic}[{low.partition}]: "
        f"exactbatch compact has dropped changes there, and dropped changes cannot be restored. "
        + (
            f"To replay the {sum(map(len, above))} offsets above the horizon, and keep the results of the rest as "
            f"they are, set available_only."
            if above
            else "None of them can be replayed; their results stay as they are."
        )
    )


def _lost_message(
    range_: OffsetRange, lost: OffsetRange, remaining: OffsetRange | None, earliest: int
) -> str:
    return (
        f"{range_}: retention removed {len(lost)} of these {len(range_)} offsets (log starts at {earliest}). "
        + (
            f"To replay the rest, {remaining}, and keep the results of the removed offsets as they are, set "
            f"available_only."
            if remaining is not None
            else "None of them can be replayed; their results stay as they are."
        )
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) < 10 else f"{numbers[0]} to {numbers[-1]}"
