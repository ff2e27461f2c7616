"""Compacting an Upsert: below a horizon, only the latest change of each key stays, and nothing is replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from exactbatch.coverage import covered_parts
from exactbatch.errors import ConfigurationError
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.model import StoredOffset
from exactbatch.offsets import OffsetRange, PartitionKey, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks.base import CompactedRows, Compactor
from exactbatch.sinks.lineage_table import Part


@dataclass(frozen=True, slots=True)
class CompactedPartition:
    """One partition: the offset below which nothing can be replayed, before (0 for none) and after, and how
    many changes below it are dropped and kept."""

    topic: str
    partition: int
    previous_horizon: int
    horizon: int
    dropped: int
    kept: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """What compact_changes() does, or has done, by topic and partition."""

    partitions: tuple[CompactedPartition, ...]

    @property
    def dropped(self) -> int:
        """How many changes are dropped."""
        return sum(each.dropped for each in self.partitions)

    @property
    def kept(self) -> int:
        """How many changes below the horizons are kept."""
        return sum(each.kept for each in self.partitions)


def preview_compaction(
    connection: Connection, log: KafkaBroker, pipeline: Pipeline, *, before: datetime | None
) -> Compaction:
    """Return what compact_changes() would do, without writing or locking anything. Raises what it raises."""
    compactor, ledger = _compactor_of(pipeline), Ledger(connection)
    stored, since = _ask(connection, log, pipeline, before)
    with transaction(connection) as cursor:
        previous = ledger.horizons(pipeline)
        below = _below(cursor, ledger, pipeline, compactor, stored, previous, since, before)
        return _compaction(below, previous, compactor.preview(cursor, below))


def compact_changes(
    connection: Connection, log: KafkaBroker, pipeline: Pipeline, *, before: datetime | None
) -> Compaction:
    """Drop the changes of an Upsert that only a replay below the new horizons could need, in one transaction.

    The horizon of a partition is its stored offset or, with `before`, the first offset there that has a change,
    or a record that is still in the log, from that time or later by its Kafka timestamp. It never moves back.

    Raises ConfigurationError where the sink is no Upsert, NotRegistered, IdentityChanged, PostgresUnavailable
    and, with `before`, KafkaUnavailable, TopicMissing, and TopicRecreated, PartitionGone or StoredOffsetBeyondLog
    where the log is not the one that was processed.
    """
    compactor, ledger = _compactor_of(pipeline), Ledger(connection)
    stored, since = _ask(connection, log, pipeline, before)
    with transaction(connection) as cursor:
        ledger.lock(pipeline)
        previous = ledger.horizons(pipeline)
        below = _below(cursor, ledger, pipeline, compactor, stored, previous, since, before)
        for range_, _ in below:
            ledger.raise_horizon(pipeline, range_)
        done = _compaction(below, previous, compactor.compact(cursor, below))
        failpoint("compact.before_commit")
    return done


def horizon_of(stored: int, previous: int, *since: int | None) -> int:
    """The offset below which a partition is compacted.

    That is the first of the offsets `since` a time, each None where there is none; never beyond the stored
    offset, and never below the previous horizon.
    """
    return max(previous, min([stored, *(each for each in since if each is not None)]))


def _compactor_of(pipeline: Pipeline) -> Compactor:
    if (compactor := pipeline.sink.compactor) is None:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: expected an Upsert, whose old changes can be dropped, found "
            f"{type(pipeline.sink).__name__}. There is nothing to compact."
        )
    return compactor


def _ask(
    connection: Connection, log: KafkaBroker, pipeline: Pipeline, before: datetime | None
) -> tuple[list[StoredOffset], Mapping[TopicPartition, int]]:
    """Where the pipeline stands, and the first record of each partition that is not from before a time.

    The stored offsets come first: what is processed after the broker was asked lies beyond the horizons. A
    topic that was taken out of the pipeline is left alone.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        stored = [each for each in ledger.stored_offsets(pipeline) if each.topic in pipeline.topics]
    if before is None:
        return stored, {}
    partitions = log.processed_partitions(pipeline.topics, stored)
    return stored, log.offsets_at(partitions, before)


def _below(
    cursor: Cursor,
    ledger: Ledger,
    pipeline: Pipeline,
    compactor: Compactor,
    stored: Sequence[StoredOffset],
    previous: Mapping[PartitionKey, int],
    since: Mapping[TopicPartition, int],
    before: datetime | None,
) -> list[Part]:
    """What lies below the new horizon of each partition, with the batches that stand for it."""
    coverage = ledger.coverage(pipeline)
    changes_since: Mapping[TopicPartition, int] = {}
    if before is not None:
        processed = covered_parts(_ranges({_log(each): each.next_offset for each in stored}), coverage)
        changes_since = compactor.first_since(cursor, processed, before)
    horizons = {}
    for each in stored:
        log, key = _log(each), (each.topic, each.partition)
        horizons[log] = horizon_of(
            each.next_offset, previous.get(log, 0), since.get(key), changes_since.get(key)
        )
    return [*covered_parts(_ranges(horizons), coverage)]


def _log(stored: StoredOffset) -> PartitionKey:
    return stored.topic, stored.partition, stored.topic_id


def _ranges(ends: Mapping[PartitionKey, int]) -> list[OffsetRange]:
    """All offsets of each log below its end."""
    return [
        OffsetRange(topic, partition, 0, end, topic_id)
        for (topic, partition, topic_id), end in ends.items()
        if end > 0
    ]


def _compaction(
    below: Sequence[Part], previous: Mapping[PartitionKey, int], counts: CompactedRows
) -> Compaction:
    partitions = []
    for range_, _ in below:
        dropped, kept = counts.get((range_.topic, range_.partition), (0, 0))
        partitions.append(
            CompactedPartition(
                range_.topic,
                range_.partition,
                previous.get(range_.key, 0),
                range_.until_offset,
                dropped,
                kept,
            )
        )
    return Compaction(tuple(partitions))
