"""Check that logs still have the records that the ledger knows: otherwise they are not the logs that were processed."""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from exactbatch.errors import StoredOffsetBeyondLog
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import is_named, known_as
from exactbatch.kafka.record_digests import ComparedRecords
from exactbatch.model import Fingerprint, LogPartition, StoredOffset
from exactbatch.offsets import OffsetRange

logger = logging.getLogger(__name__)
# Partitions that one fetch can answer for: it takes some milliseconds, with and without new records.
_ALWAYS: Final = 200
_SHOWN: Final = 10


def known_logs(
    broker: KafkaBroker,
    topics: Sequence[str],
    stored: Sequence[StoredOffset],
    known: Sequence[Fingerprint],
) -> tuple[LogPartition, ...]:
    """Return the logs that were processed, as KafkaBroker.processed_partitions() does.

    Raises what it raises; but if a log ends below the stored offset, and has another record at the offset of a known
    one, what check_records() raises.
    """
    try:
        return broker.processed_partitions(topics, stored)
    except StoredOffsetBeyondLog:
        partitions = known_as(stored, broker.known_partitions(topics))
        check_records(broker, known, processed(stored, partitions))
        raise


def processed(stored: Iterable[StoredOffset], partitions: Iterable[LogPartition]) -> list[LogPartition]:
    """Return the partitions with processed offsets."""
    known = {offset.topic_partition for offset in stored if offset.next_offset}
    return [partition for partition in partitions if partition.topic_partition in known]


def worth_comparing(stored: Sequence[StoredOffset], partitions: Iterable[LogPartition]) -> list[LogPartition]:
    """Return the processed partitions that have new records, and as many others as cost nothing: a plan over
    thousands of partitions must not read them all to find that nothing is new."""
    next_offsets = {offset.topic_partition: offset.next_offset for offset in stored}
    is_new = {
        each: each.last_stable > next_offsets[each.topic_partition] for each in processed(stored, partitions)
    }
    return sorted(is_new, key=lambda each: not is_new[each])[: max(_ALWAYS, sum(is_new.values()))]


def check_records(
    broker: KafkaBroker, known: Sequence[Fingerprint], partitions: Sequence[LogPartition]
) -> None:
    """Raise TopicRecreated or LogTruncated for a log that has another record at the offset of a known one.

    Logs a warning if a topic has no ID and no known record is left to compare. Raises ReadFailed, and
    ConfigurationError if an ACL denies reading.
    """
    compared = broker.compare_fingerprints(known, partitions)
    for _, error in sorted(compared.errors.items()):
        raise error
    warn_of_unknown(compared, partitions)


def warn_of_unknown(compared: ComparedRecords, partitions: Iterable[LogPartition]) -> None:
    """Log a warning about compared partitions without a known topic ID or record."""
    named = {each.topic_partition for each in partitions if is_named(each.topic, each.topic_id)}
    if unknown := [each for each in compared.unknown if each in named]:
        logger.warning(
            "%s partitions have no known record left to compare, and the brokers send no topic IDs: nothing would tell "
            "a topic that was deleted and created again: %s",
            len(unknown),
            ", ".join(f"{topic}[{partition}]" for topic, partition in unknown[:_SHOWN]),
        )


def check_known_ranges(
    broker: KafkaBroker, ranges: Sequence[OffsetRange], known: Sequence[Fingerprint]
) -> None:
    """Check as check_records() does, after ranges were read, those of topics that have no ID: if the logs are the
    processed ones now, they were all along."""
    named = {each.topic_partition for each in ranges if is_named(each.topic, each.topic_id)}
    known = [each for each in known if each.topic_partition in named]
    if not known:
        return
    partitions = known_as(ranges, broker.known_partitions(sorted({topic for topic, _ in named})))
    check_records(broker, known, [each for each in partitions if each.topic_partition in named])
