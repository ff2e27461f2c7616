"""Check that a topic is still the one that was processed: same ID and partitions, not truncated. Pure, no I/O."""

from collections.abc import Collection, Sequence

from exactbatch.errors import PartitionGone, StoredOffsetBeyondLog, TopicRecreated
from exactbatch.model import LogPartition, StoredOffset


def check_same_logs(stored: Sequence[StoredOffset], partitions: Sequence[LogPartition]) -> None:
    """Raise TopicRecreated, PartitionGone or StoredOffsetBeyondLog unless the logs are the processed ones."""
    check_partitions_exist(stored, partitions)
    by_partition = {partition.topic_partition: partition for partition in partitions}
    for offset in stored:
        check_same_log(offset, by_partition[offset.topic_partition])


def check_partitions_exist(stored: Collection[StoredOffset], partitions: Collection[LogPartition]) -> None:
    """Raise PartitionGone for a stored offset whose topic exists without its partition."""
    topics = {partition.topic for partition in partitions}
    existing = {partition.topic_partition for partition in partitions}
    for offset in stored:
        if offset.topic in topics and offset.topic_partition not in existing:
            count = sum(partition.topic == offset.topic for partition in partitions)
            raise PartitionGone(
                f"{offset.topic}[{offset.partition}]: the partition does not exist, although its stored offset is "
                f"{offset.next_offset}; the topic has {count} partitions. Kafka never removes a partition: check "
                f"that bootstrap.servers names the right cluster.",
                topic=offset.topic,
                partition=offset.partition,
            )


def check_same_log(offset: StoredOffset, partition: LogPartition) -> None:
    """Raise TopicRecreated or StoredOffsetBeyondLog unless the partition is the one that was processed."""
    if offset.topic_id != partition.topic_id:
        raise TopicRecreated(
            f"{partition}: the topic was deleted and created again: its ID was {offset.topic_id}, and is "
            f"{partition.topic_id}. The stored offset {offset.next_offset} does not apply to the new topic. "
            f"Register a pipeline under a new name to load it.",
            topic=partition.topic,
            partition=partition.partition,
        )
    if offset.next_offset > partition.high_watermark:
        raise StoredOffsetBeyondLog(
            f"{partition}: the log ends at {partition.high_watermark}, below the stored offset "
            f"{offset.next_offset}: it lost records that were processed (an unclean leader election, or "
            f"another cluster). Check bootstrap.servers; if the log was really truncated, register a pipeline "
            f"under a new name with an explicit start.",
            topic=partition.topic,
            partition=partition.partition,
            from_offset=partition.high_watermark,
            until_offset=offset.next_offset,
        )
