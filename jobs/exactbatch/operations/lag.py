"""Measure how far pipelines are behind their logs: in offsets, in time, and against retention.

`exactbatch lag` and `status`, doctor, metrics and the page all put it together here.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from exactbatch.errors import ConfigurationError, ExactbatchError, TopicMissing
from exactbatch.kafka.broker import KafkaBroker, no_topic_matches
from exactbatch.kafka.identity import may_be_same
from exactbatch.ledger import Definition, Ledger
from exactbatch.model import LogPartition, Retention
from exactbatch.offsets import TopicPartition
from exactbatch.operations.unprocessed import Stored, find_contradiction, first_unprocessed, is_overdue
from exactbatch.planning.plan_tables import existing_partitions
from exactbatch.postgres.connection import Connection, transaction


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition.

    log        what the broker reports
    stored     its stored offset; None if there is none yet
    oldest     timestamp of the first record that is not processed; None without one, and if it is not known
    retention  when the broker removes old records; None if it is not known, or an ACL hides it
    answered   False if the partition did not say in time what its first unprocessed record is
    is_newer   True if the stored offset may have moved since the broker reported: it may be beyond the log's end
    """

    log: LogPartition
    stored: Stored | None
    oldest: datetime | None = None
    retention: Retention | None = None
    answered: bool = True
    is_newer: bool = False

    @property
    def lag(self) -> int:
        """Number of offsets that are not processed: the LAG of Kafka's consumer groups."""
        return self.log.lag(self.stored.next_offset if self.stored else None)

    @property
    def held_back(self) -> int:
        """Number of offsets from the first open transaction on: part of the lag, and not read before it ends."""
        return min(self.lag, self.log.high_watermark - self.log.last_stable)

    @property
    def lost(self) -> int:
        """Number of offsets that retention has removed before they were processed."""
        if self.stored is None or not may_be_same(self.log.topic, self.stored.topic_id, self.log.topic_id):
            return 0
        return max(0, self.log.earliest - self.stored.next_offset)

    @property
    def contradiction(self) -> str | None:
        """A sentence on what the log lacks or is, against the stored offset; None if both agree."""
        return None if self.is_newer else find_contradiction(self.stored, self.log)

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
            "trouble": self.contradiction,
        }


@dataclass(frozen=True, slots=True)
class PipelineLag:
    """A registered pipeline and the lag of its partitions at a time.

    errors     why topics are not among the partitions: missing, denied or without a leader
    freshness  the age from which an unprocessed record makes the pipeline overdue; None if it never is
    denied     the error that keeps the timestamps of unprocessed records from being read
    """

    pipeline: str
    at: datetime
    partitions: tuple[PartitionLag, ...]
    errors: tuple[ExactbatchError, ...] = ()
    freshness: timedelta | None = None
    denied: ConfigurationError | None = None

    @property
    def missing(self) -> TopicMissing | None:
        """The error for a missing topic."""
        return next((each for each in self.errors if isinstance(each, TopicMissing)), None)

    @property
    def lag(self) -> int:
        """The sum over all partitions."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def held_back(self) -> int:
        """How many offsets of the lag open transactions hold back."""
        return sum(partition.held_back for partition in self.partitions)

    @property
    def lost(self) -> int:
        """How many offsets retention has removed before they were processed."""
        return sum(partition.lost for partition in self.partitions)

    @property
    def contradiction(self) -> str | None:
        """The first sentence on a log that contradicts its stored offset: no advance can be planned; or None."""
        return next((text for each in self.partitions if (text := each.contradiction) is not None), None)

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
        stored = [ledger.plans.read_stored_offsets(definition) for definition in definitions]
    return [_known(each) for each in measure_lags(broker, list(zip(definitions, stored, strict=True)))]


def measure_lag(broker: KafkaBroker, definition: Definition, stored: Sequence[Stored]) -> PipelineLag:
    """Return the lag of a registered pipeline with these stored offsets.

    Raises KafkaUnavailable, and ConfigurationError if an ACL denies reading.
    """
    (lag,) = measure_lags(broker, [(definition, stored)])
    return _known(lag)


def _known(lag: PipelineLag) -> PipelineLag:
    """Return a lag that is known except for missing topics, or raise the error that keeps it from being known."""
    for error in (*lag.errors, *((lag.denied,) if lag.denied else ())):
        if not isinstance(error, TopicMissing):
            raise error
    return lag


def measure_lags(
    broker: KafkaBroker, pipelines: Sequence[tuple[Definition, Sequence[Stored]]], *, ages_of_all: bool = True
) -> list[PipelineLag]:
    """Return the lags of registered pipelines with these stored offsets, in their order.

    All logs are described at once; with patterns, one more query lists all topics. Timestamps of records are read for
    up to 10 s; unless `ages_of_all`, only for pipelines with a freshness, and without asking for retention.

    Raises KafkaUnavailable, ReadFailed, and ConfigurationError if an ACL denies more than topics.
    """
    definitions = [definition for definition, _ in pipelines]
    offsets = [{each.topic_partition: each for each in stored} for _, stored in pipelines]
    topics, unmatched = _find_topics(broker, definitions, offsets)
    everything = {topic for each in topics for topic in each}
    stored_topics = {topic for each in offsets for topic, _ in each}
    described, errors = existing_partitions(broker, everything, stored_topics) if everything else ({}, {})
    logs = [[log for topic in each for log in described.get(topic, ())] for each in topics]
    aged = [number for number, each in enumerate(definitions) if ages_of_all or each.freshness is not None]
    oldest = _find_oldest(broker, {number: (logs[number], offsets[number]) for number in aged})
    behind = sorted({topic for each in oldest.values() for topic, _ in each.times}) if ages_of_all else []
    retention = broker.retention(behind) if behind else {}
    at = datetime.now(UTC)
    return [
        PipelineLag(
            definition.name,
            at,
            tuple(
                PartitionLag(
                    log,
                    offsets[number].get(log.topic_partition),
                    oldest[number].times.get(log.topic_partition) if number in oldest else None,
                    retention.get(log.topic),
                    answered=number not in oldest or log.topic_partition not in oldest[number].unanswered,
                )
                for log in logs[number]
            ),
            (*unmatched[number], *(errors[topic] for topic in topics[number] if topic in errors)),
            definition.freshness,
            oldest[number].denied if number in oldest else None,
        )
        for number, definition in enumerate(definitions)
    ]


def _find_topics(
    broker: KafkaBroker, definitions: Sequence[Definition], offsets: Sequence[Mapping[TopicPartition, Stored]]
) -> tuple[list[Sequence[str]], list[tuple[TopicMissing, ...]]]:
    """Return the topics of each pipeline, and the errors of patterns that match none.

    Those of patterns are as they exist now, from one list for all pipelines.
    """
    known = [
        each.known_topics(topic for topic, _ in stored)
        for each, stored in zip(definitions, offsets, strict=True)
    ]
    if not any(each.pattern for each in definitions):
        return list(known), [()] * len(known)
    listed = broker.list_topics()
    topics: list[Sequence[str]] = []
    unmatched: list[tuple[TopicMissing, ...]] = []
    for definition, own in zip(definitions, known, strict=True):
        pattern = definition.pattern
        found = own if pattern is None else sorted({*own, *filter(pattern.matches, listed)})
        topics.append(found)
        unmatched.append((no_topic_matches(pattern),) if pattern is not None and not found else ())
    return topics, unmatched


class _Oldest(NamedTuple):
    """What first_unprocessed() has found of a pipeline, or the error that denied it."""

    times: Mapping[TopicPartition, datetime]
    unanswered: Set[TopicPartition]
    denied: ConfigurationError | None = None


def _find_oldest(
    broker: KafkaBroker,
    pipelines: Mapping[int, tuple[Sequence[LogPartition], Mapping[TopicPartition, Stored]]],
) -> dict[int, _Oldest]:
    """Look up the first unprocessed records of pipelines, which are given by a number, with logs and stored offsets.

    Those that have no partition in common are asked for at once.
    """
    waiting, found = list(pipelines), dict[int, _Oldest]()
    while waiting:
        together: dict[int, set[TopicPartition]] = {}
        taken: set[TopicPartition] = set()
        for number in waiting:
            places = {log.topic_partition for log in pipelines[number][0]}
            if taken.isdisjoint(places):
                together[number] = places
                taken |= places
        waiting = [number for number in waiting if number not in together]
        logs = [log for number in together for log in pipelines[number][0]]
        stored = {
            place: each
            for number, places in together.items()
            for place, each in pipelines[number][1].items()
            if place in places
        }
        try:
            times, unanswered = first_unprocessed(broker, logs, stored)
        except ConfigurationError as denied:
            found |= dict.fromkeys(together, _Oldest({}, frozenset(), denied))
            continue
        for number, places in together.items():
            own = {place: time for place, time in times.items() if place in places}
            found[number] = _Oldest(own, unanswered & places)
    return found


def seconds_since(time: datetime | None, now: datetime) -> float | None:
    """Return how long ago a time was, in seconds; not below 0, because clocks differ."""
    return None if time is None else max(0.0, (now - time).total_seconds())


def seconds_until(time: datetime | None, now: datetime) -> float | None:
    """Return how far ahead a time is, in seconds; negative if it has passed."""
    return None if time is None else (time - now).total_seconds()


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
