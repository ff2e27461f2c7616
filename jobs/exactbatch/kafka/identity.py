"""Check that a topic is still the one that was processed: same ID and partitions, not truncated. Pure, no I/O.

Some brokers send no topic IDs: their topics are identified by their names, and by records that were processed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid5

from exactbatch.errors import (
    ConfigurationError,
    LogTruncated,
    PartitionGone,
    StoredOffsetBeyondLog,
    TopicRecreated,
)
from exactbatch.model import Fingerprint, LogPartition, StoredOffset, convert_time
from exactbatch.offsets import OffsetRange

# Kafka's own IDs are random ones (version 4), so none of them is one of these (version 5).
_NAMED: Final = UUID("5f0b2a3c-6f0e-4d0b-9a55-8f6f3c1d7e21")


def named_id(topic: str) -> UUID:
    """Return what stands for the ID of a topic whose brokers send none."""
    return uuid5(_NAMED, topic)


def is_named(topic: str, topic_id: UUID) -> bool:
    """True if the ID only says what the topic is called."""
    return topic_id == named_id(topic)


def may_be_same(topic: str, known: UUID, now: UUID) -> bool:
    """True unless the IDs tell that a topic is not the one that was processed under the `known` ID.

    A topic that is known by its name only may have an ID `now`, since its brokers were upgraded.
    """
    return known == now or is_named(topic, known)


def known_as(
    known: Iterable[StoredOffset | OffsetRange], partitions: Iterable[LogPartition]
) -> tuple[LogPartition, ...]:
    """Return the partitions under the IDs of stored offsets or ranges, where these only say what a topic is called."""
    named = {each.topic for each in known if is_named(each.topic, each.topic_id)}
    return tuple(
        replace(partition, topic_id=named_id(partition.topic)) if partition.topic in named else partition
        for partition in partitions
    )


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
    if not may_be_same(offset.topic, offset.topic_id, partition.topic_id):
        if is_named(partition.topic, partition.topic_id):
            raise ConfigurationError(
                f"{partition}: the brokers send no topic ID, and the topic that was processed has the ID "
                f"{offset.topic_id}. Check that bootstrap.servers names the right cluster, and that older brokers did "
                f"not take the place of its own.",
                topic=partition.topic,
                partition=partition.partition,
            )
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


def changed_record(
    partition: LogPartition, known: Fingerprint, same_before: Fingerprint | None
) -> LogTruncated | TopicRecreated:
    """Return the error for a partition that has another record at the offset of a `known` one.

    `same_before` is an older record that is still there: the log was cut after it. Without one, the topic is another
    one, unless its ID says that it is the same: then its log was cut, or its disks were restored.
    """
    where = partition.range(known.offset, known.offset + 1).place
    record = f"offset {known.offset} had a record {_written(known)}, and has another one now"
    if same_before is None and is_named(partition.topic, partition.topic_id):
        return TopicRecreated(
            f"{partition}: the topic was deleted and created again, or is that of another cluster: {record}. The "
            f"offsets that were processed do not apply to this topic. Check bootstrap.servers; register a pipeline "
            f"under a new name to load it.",
            **where,
        )
    kept = "" if same_before is None else f", while offset {same_before.offset} is unchanged"
    return LogTruncated(
        f"{partition}: the log was truncated below {known.offset + 1}, up to which it was processed, and has grown "
        f"again: {record}{kept}. Run `exactbatch audit` to compare the target with the log, and register a pipeline "
        f"under a new name to load the log as it is now.",
        **where,
    )


def _written(record: Fingerprint) -> str:
    at = convert_time(record.timestamp)
    return "without a time" if at is None else f"of {at:%Y-%m-%d %H:%M:%S} UTC"
