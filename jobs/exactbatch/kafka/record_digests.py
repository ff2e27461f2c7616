"""Fingerprints: digests of a few processed records of each partition, by which another log is noticed.

Topic IDs and leader epochs do not tell all: some brokers send none, and restored disks repeat them.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Message

from exactbatch.errors import ExactbatchError
from exactbatch.kafka.identity import changed_record
from exactbatch.kafka.timestamps import first_records, timestamp_of
from exactbatch.model import Fingerprint, LogPartition
from exactbatch.offsets import OffsetRange, TopicPartition

# The last offsets of a range that may have no record: markers of transactions, and what compaction removed.
_BACK: Final = (1, 2, 16, 256)
_DIGEST_BYTES: Final = 16
_TIMEOUT: Final = 20.0  # seconds, for all partitions together


@dataclass(frozen=True, slots=True)
class _Found:
    """A record of the log."""

    offset: int
    timestamp: int | None
    digest: bytes

    def of(self, range_: OffsetRange) -> Fingerprint:
        """Return its fingerprint, in the partition of a range."""
        return Fingerprint(
            range_.topic, range_.partition, range_.topic_id, self.offset, self.timestamp, self.digest
        )


@dataclass(frozen=True, slots=True)
class ComparedRecords:
    """What a comparison of the log with fingerprints has found.

    `errors` has the partitions whose log is not the one that was processed. In those that are `unknown`, no record was
    left to compare, or the broker did not send it in time.
    """

    errors: Mapping[TopicPartition, ExactbatchError]
    unknown: Sequence[TopicPartition]


def take_fingerprints(
    properties: Mapping[str, Any], ranges: Iterable[OffsetRange], *, of_first: bool = False
) -> list[Fingerprint]:
    """Return a fingerprint of a record near the end of each range, or `of_first` record; a partition has one range.

    Ranges without a committed record, and those whose record the broker did not send in time, are left out.

    Raises ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    remaining = {range_.topic_partition: range_ for range_ in ranges}
    found, deadline = [], time.monotonic() + _TIMEOUT
    for back in (None,) if of_first else (*_BACK, None):
        if not remaining:
            break
        starts = {
            place: range_.from_offset if back is None else max(range_.from_offset, range_.until_offset - back)
            for place, range_ in remaining.items()
        }
        answers = first_records(properties, starts, _describe, timeout=deadline - time.monotonic())
        for place, range_ in list(remaining.items()):
            known = answers.get(place)
            if known is not None and known.offset < range_.until_offset:
                found.append(known.of(range_))
                del remaining[place]
            elif place not in answers or starts[place] == range_.from_offset:
                del remaining[place]
    return found


def compare_fingerprints(
    properties: Mapping[str, Any], known: Iterable[Fingerprint], partitions: Sequence[LogPartition]
) -> ComparedRecords:
    """Compare the newest known record of each partition with the log, and older ones where it is no longer there.

    Raises ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    by_place = defaultdict(list)
    for fingerprint in sorted(known, key=lambda each: each.offset, reverse=True):
        by_place[fingerprint.topic_partition].append(fingerprint)
    comparable = {
        partition: [
            each
            for each in by_place[partition.topic_partition]
            if partition.earliest <= each.offset < partition.last_stable
        ]
        for partition in partitions
    }
    deadline = time.monotonic() + _TIMEOUT
    equal, changed = _compare(properties, comparable, deadline, until_equal=True)
    # Older records say whether all of the log is another one, or its end.
    same_before, _ = _compare(
        properties,
        {
            partition: [each for each in comparable[partition] if each.offset < changed[partition].offset]
            for partition in changed
        },
        deadline + _TIMEOUT,
        until_equal=False,
    )
    return ComparedRecords(
        {
            partition.topic_partition: changed_record(partition, fingerprint, same_before.get(partition))
            for partition, fingerprint in changed.items()
        },
        [each.topic_partition for each in partitions if each not in equal and each not in changed],
    )


def _compare(
    properties: Mapping[str, Any],
    known: Mapping[LogPartition, Sequence[Fingerprint]],
    deadline: float,
    *,
    until_equal: bool,
) -> tuple[dict[LogPartition, Fingerprint], dict[LogPartition, Fingerprint]]:
    """Compare fingerprints, in their order, until a record of the partition is equal; return those that are equal, and
    those that differ. With `until_equal`, a record that differs ends the comparison, too. `deadline` is a time of the
    monotonic clock."""
    equal: dict[LogPartition, Fingerprint] = {}
    changed: dict[LogPartition, Fingerprint] = {}
    for index in range(max(map(len, known.values()), default=0)):
        asked = {
            partition: fingerprints[index]
            for partition, fingerprints in known.items()
            if index < len(fingerprints)
            and partition not in equal
            and not (until_equal and partition in changed)
        }
        if not asked:
            break
        places = {partition.topic_partition: each.offset for partition, each in asked.items()}
        answers = first_records(properties, places, _describe, timeout=deadline - time.monotonic())
        for partition, each in asked.items():
            found = answers.get(partition.topic_partition)
            if found is None or found.offset != each.offset:
                continue  # compaction removes records, and retention passes them by
            (equal if found.digest == each.digest else changed)[partition] = each
    return equal, changed


def _describe(message: Message) -> _Found:
    timestamp = timestamp_of(message)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (message.key(), message.value()):
        assert not isinstance(part, str)
        digest.update(b"\0" if part is None else b"\1" + len(part).to_bytes(8, "big") + part)
    digest.update(b"\0" if timestamp is None else b"\1" + timestamp.to_bytes(8, "big", signed=True))
    return _Found(message.offset() or 0, timestamp, digest.digest())
