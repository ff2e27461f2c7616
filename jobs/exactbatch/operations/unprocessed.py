"""What pipelines have not processed yet: the age of the first such record, and logs that contradict stored offsets."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.model import LogPartition, StoredOffset
from exactbatch.offsets import TopicPartition


def first_unprocessed(
    broker: KafkaBroker, logs: Iterable[LogPartition], stored: Mapping[TopicPartition, StoredOffset]
) -> dict[TopicPartition, datetime]:
    """Return the timestamp of the first unprocessed record of each partition that has one.

    Where an open transaction holds all of them back, it is the first of these. A partition is left out where only
    markers of transactions are left, and if it does not answer within 10 s.

    Raises KafkaUnavailable, ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    committed, held_back = {}, {}
    for log in logs:
        offset = stored.get(log.topic_partition)
        if contradiction_of(offset, log) is None:
            position = offset.next_offset if offset else log.earliest
            if position < log.last_stable:
                committed[log.topic_partition] = position
            elif position < log.high_watermark:
                held_back[log.topic_partition] = position
    found = {**broker.first_timestamps(committed), **broker.first_timestamps(held_back, uncommitted=True)}
    return {place: datetime.fromtimestamp(each / 1000, UTC) for place, each in found.items()}


def contradiction_of(stored: StoredOffset | None, log: LogPartition) -> str | None:
    """Return a sentence on what a log lacks or is, against its stored offset; None if both agree."""
    if stored is None:
        return None
    if stored.topic_id != log.topic_id:
        return f"{log}: the topic was deleted and created again; the next plan will fail."
    if stored.next_offset < log.earliest:
        return f"{log}: retention removed {log.earliest - stored.next_offset} unprocessed offsets."
    if stored.next_offset > log.high_watermark:
        return f"{log}: the log ends at {log.high_watermark}, below the stored offset."
    return None
