"""How far pipelines are behind their logs: in offsets, in time, and against retention."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from exactbatch.errors import TopicMissing
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Definition, Ledger
from exactbatch.model import LogPartition, Retention, StoredOffset
from exactbatch.operations.freshness import is_overdue
from exactbatch.operations.unprocessed import find_contradiction, first_unprocessed
from exactbatch.postgres.connection import Connection, transaction


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition.

    log        what the broker reports
    stored     its stored offset; None if there is none yet
    oldest     timestamp of the first record that is not processed; None without one, and if it is not known
    retention  when the broker removes old records; None if an ACL hides it
    answered   False if the partition did not say in time what its first unprocessed record is
    """

    log: LogPartition
    stored: StoredOffset | None
    oldest: datetime | None
    retention: Retention | None
    answered: bool = True

    @property
    def lag(self) -> int:
        """Number of offsets that are not processed: the LAG of Kafka's consumer groups."""
        return self.log.lag(self.stored.next_offset if self.stored else None)

    @property
    def held_back(self) -> int:
        """Number of offsets from the first open transaction on: part of the lag, and not read before it ends."""
        return self.log.high_watermark - self.log.last_stable

    @property
    def removed_at(self) -> datetime | None:
        """The earliest time at which the broker may remove the oldest unprocessed record for its age.

        None if it never does, or if that is not known. Kafka removes whole segments, by their latest timestamp.
        """
        age = self.retention.age if self.retention else None
        return None if self.oldest is None or age is None else self.oldest + age

    def as_json(self, now: datetime) -> dict[str, Any]:
        """Return its part of `exactbatch lag --json`."""
        return {
            "topic": self.log.topic,
            "partition": self.log.partition,
            "stored": self.stored and self.stored.next_offset,
            "log_end": self.log.high_watermark,
            "lag": self.lag,
            "held_back": self.held_back,
            "oldest": self.oldest,
            "seconds_behind": seconds_since(self.oldest, now),
            "seconds_until_removed": seconds_until(self.removed_at, now),
            "retention_bytes": self.retention and self.retention.bytes,
            "trouble": find_contradiction(self.stored, self.log),
        }


@dataclass(frozen=True, slots=True)
class PipelineLag:
    """A registered pipeline and the lag of its partitions at a time.

    missing    the error for a missing topic
    freshness  the age from which an unprocessed record makes the pipeline overdue; None if it never is
    """

    pipeline: str
    at: datetime
    partitions: tuple[PartitionLag, ...]
    missing: TopicMissing | None = None
    freshness: timedelta | None = None

    @property
    def lag(self) -> int:
        """The sum over all partitions."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def oldest(self) -> datetime | None:
        """The oldest of the timestamps; None if there is none."""
        return _earliest(partition.oldest for partition in self.partitions)

    @property
    def unanswered(self) -> int:
        """How many partitions did not say in time what their first unprocessed record is."""
        return sum(not partition.answered for partition in self.partitions)

    @property
    def removed_at(self) -> datetime | None:
        """The earliest time at which retention may overtake a stored offset; None if it is not known."""
        return _earliest(partition.removed_at for partition in self.partitions)

    @property
    def overdue(self) -> bool | None:
        """Whether the oldest unprocessed record is older than `freshness`; None if it is not known, or without one."""
        return is_overdue(self.freshness, self.oldest, self.at, is_known=not self.unanswered)

    def as_json(self) -> dict[str, Any]:
        """Return its part of `exactbatch lag --json`."""
        return {
            "pipeline": self.pipeline,
            "overdue": self.overdue,
            "freshness_seconds": self.freshness and self.freshness.total_seconds(),
            "lag": self.lag,
            "seconds_behind": seconds_since(self.oldest, self.at),
            "seconds_until_removed": seconds_until(self.removed_at, self.at),
            "error": self.missing and str(self.missing),
            "partitions": [partition.as_json(self.at) for partition in self.partitions],
        }


def load_lag(connection: Connection, broker: KafkaBroker, names: Sequence[str]) -> list[PipelineLag]:
    """Return the lag of the pipelines that are registered under these names; without names, of all.

    Raises NotRegistered, PostgresUnavailable, KafkaUnavailable, and ConfigurationError if an ACL denies reading.
    """
    with transaction(connection):
        ledger = Ledger(connection)
        definitions = (
            [each for name in names for each in ledger.registry.read_or_members(name)]
            if names
            else ledger.registry.read_all()
        )
        stored = {definition.name: ledger.plans.read_stored_offsets(definition) for definition in definitions}
    return [measure_lag(broker, definition, stored[definition.name]) for definition in definitions]


def measure_lag(broker: KafkaBroker, definition: Definition, stored: Sequence[StoredOffset]) -> PipelineLag:
    """Return the lag of a registered pipeline with these stored offsets.

    Raises KafkaUnavailable, and ConfigurationError if an ACL denies reading.
    """
    pattern = definition.pattern
    known = definition.known_topics(offset.topic for offset in stored)
    offsets = {offset.topic_partition: offset for offset in stored}
    try:
        topics = known if pattern is None else broker.matching_topics(pattern, known)
        logs = broker.partitions(topics, {offset.topic for offset in stored}) if topics else ()
    except TopicMissing as error:
        return PipelineLag(definition.name, datetime.now(UTC), (), error, definition.freshness)
    oldest, unanswered = first_unprocessed(broker, logs, offsets)
    behind = sorted({topic for topic, _ in oldest})
    retention = broker.retention(behind) if behind else {}
    partitions = tuple(
        PartitionLag(
            log=log,
            stored=offsets.get(log.topic_partition),
            oldest=oldest.get(log.topic_partition),
            retention=retention.get(log.topic),
            answered=log.topic_partition not in unanswered,
        )
        for log in logs
    )
    return PipelineLag(definition.name, datetime.now(UTC), partitions, freshness=definition.freshness)


def seconds_since(time: datetime | None, now: datetime) -> float | None:
    """Return how long ago a time was, in seconds; not below 0, because clocks differ."""
    return None if time is None else max(0.0, (now - time).total_seconds())


def seconds_until(time: datetime | None, now: datetime) -> float | None:
    """Return how far ahead a time is, in seconds; negative if it has passed."""
    return None if time is None else (time - now).total_seconds()


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
