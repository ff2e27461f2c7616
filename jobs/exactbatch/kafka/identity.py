"""Check that a topic is still the one that was processed: same id, same partitions, no truncation. Pure."""

from collections.abc import Collection, Sequence

from exactbatch.errors import LogWentBackwards, PartitionGone, TopicRecreated
from exactbatch.model import LogPartition, StoredOffset


def check_same_logs(stored: Sequence[StoredOffset], log: Sequence[LogPartition]) -> None:
    """Raise TopicRecreated, PartitionGone or LogWentBackwards unless the log is the one that was processed."""
    check_partitions_exist(stored, log)
    there = {(each.topic, each.partition): each for each in log}
    for offset in stored:
        check_same_log(offset, there[offset.topic, offset.partition])


def check_partitions_exist(stored: Collection[StoredOffset], log: Collection[LogPartition]) -> None:
    topics = {each.topic for each in log}
    there = {(each.topic, each.partition) for each in log}
    for offset in stored:
        if offset.topic in topics and (offset.topic, offset.partition) not in there:
            raise PartitionGone(
                f"topic {offset.topic!r}: expected partition {offset.partition}, whose stored offset is "
                f"{offset.next_offset}, found only {len([p for p in log if p.topic == offset.topic])} "
                f"partitions. Kafka never removes a partition: check that bootstrap.servers names the right "
                f"cluster."
            )


def check_same_log(offset: StoredOffset, partition: LogPartition) -> None:
    if offset.topic_id != partition.topic_id:
        raise TopicRecreated(
            f"{partition}: expected topic id {offset.topic_id}, found {partition.topic_id}: the topic was "
            f"deleted and created again, so the stored offset {offset.next_offset} says nothing about it. "
            f"Register a pipeline under a new name to load the new topic."
        )
    if offset.next_offset > partition.high_watermark:
        raise LogWentBackwards(
            f"{partition}: expected the log to reach the stored offset {offset.next_offset}, found its end at "
            f"{partition.high_watermark}: records that were processed are no longer in the log (an unclean "
            f"leader election, or another cluster). Check bootstrap.servers; if the log was really cut, "
            f"register a pipeline under a new name with an explicit start."
        )
