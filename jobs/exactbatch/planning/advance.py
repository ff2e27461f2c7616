"""Plan the next advance: stored offsets + the log + limits → a plan. Pure, no I/O."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set

from exactbatch.errors import OffsetsLost, StartOutOfRange
from exactbatch.kafka.identity import check_partitions_exist, check_same_log
from exactbatch.model import Limits, LogPartition, OnLoss, Plan, Start, StoredOffset
from exactbatch.offsets import OffsetRange


def plan_advance(
    stored: Sequence[StoredOffset],
    partitions: Sequence[LogPartition],
    *,
    start: Start = "earliest",
    limits: Limits = Limits(),
    on_loss: OnLoss = "fail",
) -> Plan:
    """Plan the next advance of a pipeline.

    `start` applies to topics without any stored offset. A partition that was added to a topic with stored offsets
    starts at offset 0: what retention has removed of it was never processed.

    Raises TopicRecreated, PartitionGone, StoredOffsetBeyondLog, OffsetsLost and StartOutOfRange, each for the
    first partition concerned.
    """
    stored_at = {offset.topic_partition: offset for offset in stored}
    known_topics = {offset.topic for offset in stored}
    check_partitions_exist(stored, partitions)
    _check_start_exists(start, partitions, known_topics)
    seeds, losses, positions, unnamed = [], [], [], []
    for partition in sorted(partitions, key=lambda p: p.topic_partition):
        offset = stored_at.get(partition.topic_partition)
        if partition.topic not in known_topics:
            position = _find_start(partition, start)
            seeds.append(_stored(partition, position))
            if isinstance(start, Mapping) and partition.topic_partition not in start:
                unnamed.append(partition.topic_partition)
        else:
            if offset is None:
                offset = _stored(partition, 0)
                seeds.append(offset)
            check_same_log(offset, partition)
            position = max(offset.next_offset, partition.earliest)
            if position > offset.next_offset:
                losses.append(_loss(offset, partition, on_loss))
        positions.append((partition, position))
    available = [max(0, p.last_stable - position) for p, position in positions]
    takes = take_fairly(available, limits)
    ranges = tuple(
        partition.range(position, position + take)
        for (partition, position), take in zip(positions, takes, strict=True)
        if take
    )
    joining = {partition.topic: partition.topic_id for partition in partitions} if seeds else {}
    return Plan(
        seeds=tuple(seeds),
        losses=tuple(losses),
        ranges=ranges,
        unnamed=tuple(unnamed),
        joining=tuple(sorted(each for each in joining.items() if each[0] not in known_topics)),
        left=sum(available) - sum(takes),
    )


def take_fairly(available: Sequence[int], limits: Limits) -> list[int]:
    """Return how many offsets to take from each partition, in the order of `available`.

    Max-min fairness: the smallest partitions are taken whole, and the others share the rest equally.
    """
    if limits.max_offsets_per_partition is not None:
        available = [min(offsets, limits.max_offsets_per_partition) for offsets in available]
    if limits.max_offsets is None:
        return list(available)
    remaining = limits.max_offsets
    takes = [0] * len(available)
    waiting = sorted((i for i, offsets in enumerate(available) if offsets), key=lambda i: available[i])
    for served, index in enumerate(waiting):
        # Rounding up for the smaller partitions would starve the last one; rounding down leaves it the remainder.
        takes[index] = min(available[index], remaining // (len(waiting) - served))
        remaining -= takes[index]
    return takes


def _stored(partition: LogPartition, next_offset: int) -> StoredOffset:
    return StoredOffset(
        topic=partition.topic,
        partition=partition.partition,
        next_offset=next_offset,
        leader_epoch=partition.leader_epoch,
        topic_id=partition.topic_id,
    )


def _find_start(partition: LogPartition, start: Start) -> int:
    if start == "earliest":
        return partition.earliest
    if start == "latest":
        return partition.last_stable
    assert not isinstance(start, str)
    offset = start.get(partition.topic_partition, partition.earliest)
    if not partition.earliest <= offset <= partition.last_stable:
        raise StartOutOfRange(
            f"{partition}: the start offset {offset} is outside the log, which now spans {partition.earliest} to "
            f"{partition.last_stable}. Correct the pipeline's start, or use start='earliest'.",
            topic=partition.topic,
            partition=partition.partition,
            from_offset=offset,
            until_offset=offset + 1,
        )
    return offset


def _check_start_exists(start: Start, partitions: Collection[LogPartition], known_topics: Set[str]) -> None:
    if isinstance(start, str):
        return
    count = Counter(partition.topic for partition in partitions)
    for topic, partition in start:
        if topic in count and topic not in known_topics and partition not in range(count[topic]):
            raise StartOutOfRange(
                f"{topic}[{partition}]: start names this partition, and the topic has partitions 0 to "
                f"{count[topic] - 1}. Correct the pipeline's start.",
                topic=topic,
                partition=partition,
            )


def _loss(offset: StoredOffset, partition: LogPartition, on_loss: OnLoss) -> OffsetRange:
    # The leader epoch of the log, not the stored one: that belongs to records that were removed.
    lost = partition.range(offset.next_offset, partition.earliest)
    if on_loss == "fail":
        raise OffsetsLost(
            f"{partition}: retention removed {len(lost)} unprocessed offsets (stored offset "
            f"{offset.next_offset}, log starts at {partition.earliest}). Set on_loss='skip' on the pipeline "
            f"to record them as lost and continue at {partition.earliest}.",
            **lost.place,
        )
    return lost
