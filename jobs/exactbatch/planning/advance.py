"""What the next batch processes: stored offsets + the log + limits → a plan. Pure, no I/O."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set

from exactbatch.errors import (
    OffsetsLost,
    StartOutOfRange,
)
from exactbatch.kafka.identity import check_partitions_exist, check_same_log
from exactbatch.model import Limits, LogPartition, OnLoss, Plan, Start, StoredOffset
from exactbatch.offsets import OffsetRange


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
    check_partitions_exist(stored, log)
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
            check_same_log(offset, partition)
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
