"""Compact an Upsert: below a horizon, only the latest change of each key stays, and nothing can be replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from exactbatch.errors import ConfigurationError
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, find_parts, target_transaction
from exactbatch.model import StoredOffset
from exactbatch.offsets import OffsetRange, PartitionKey, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks.capabilities import CompactedRows, Compactor, Compacts
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.tables.code_of_others import refuse_code_of_others
from exactbatch.sinks.writers import find_writer


@dataclass(frozen=True, slots=True)
class CompactedPartition:
    """One partition: its replay horizon before (0 for none) and after, and the numbers of changes below it.

    Offsets below a horizon cannot be replayed.
    """

    topic: str
    partition: int
    previous_horizon: int
    horizon: int
    dropped: int
    kept: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of compact_changes(), or its preview, by topic and partition."""

    partitions: tuple[CompactedPartition, ...]

    @property
    def dropped(self) -> int:
        """Number of changes that are dropped."""
        return sum(partition.dropped for partition in self.partitions)

    @property
    def kept(self) -> int:
        """Number of changes below the horizons that are kept."""
        return sum(partition.kept for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class _CompactionInputs:
    """The inputs of a compaction, observed before the pipeline is locked.

    The stored offsets are read before the broker is queried: what is processed meanwhile is above the horizons.
    Stored offsets of topics that were removed from the pipeline are left out. `since` has the first record at or
    after the time `before`, by partition.
    """

    stored: tuple[StoredOffset, ...]
    before: datetime | None
    since: Mapping[TopicPartition, int]


def preview_compaction(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, *, before: datetime | None
) -> Compaction:
    """Return what compact_changes() would do, without writing anything. Raises what it raises.

    Without a change to drop there is nothing to do, and the horizons stay.
    """
    compactors, ledger = _find_compactors(connection, pipeline), Ledger(connection)
    inputs = _observe(connection, broker, pipeline, before)
    with transaction(connection) as cursor:
        cursor.execute("set transaction read only")  # also for what the tables call
        refuse_code_of_others(cursor, find_writer(pipeline.traits).tables, writes=True)
        previous = ledger.coverage.read_horizons(pipeline)
        below = _below(cursor, ledger, pipeline, compactors, inputs, previous)
        done = _compaction(below, previous, [each.preview(cursor, below) for each in compactors])
    if done.dropped:
        return done
    return Compaction(tuple(replace(each, horizon=each.previous_horizon) for each in done.partitions))


def compact_changes(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, *, before: datetime | None
) -> Compaction:
    """Drop the changes of an Upsert that only a replay below the new horizons could need, in one transaction.

    The horizon of a partition is its stored offset or, with `before`, the first offset that has a change, or a
    record still in the log, with a Kafka timestamp at or after that time. It never moves back.

    Raises ConfigurationError if the sink is not an Upsert, or if functions of others would get this login's rights (see
    refuse_code_of_others()), NotRegistered, IdentityChanged, PostgresUnavailable
    and, with `before`, KafkaUnavailable, TopicMissing, and TopicRecreated, PartitionGone or
    StoredOffsetBeyondLog if the log is not the one that was processed.
    """
    compactors, ledger = _find_compactors(connection, pipeline), Ledger(connection)
    inputs = _observe(connection, broker, pipeline, before)
    with target_transaction(connection, pipeline) as cursor:
        ledger.registry.lock(pipeline)
        refuse_code_of_others(cursor, find_writer(pipeline.traits).tables, writes=True)
        previous = ledger.coverage.read_horizons(pipeline)
        below = _below(cursor, ledger, pipeline, compactors, inputs, previous)
        for range_, _ in below:
            ledger.coverage.raise_horizon(pipeline, range_)
        done = _compaction(below, previous, [each.compact(cursor, below) for each in compactors])
        failpoint("compact.before_commit")
    return done


def compute_horizon(stored: int, previous: int, *since: int | None) -> int:
    """Return the offset below which a partition is compacted.

    That is the first of the offsets `since` a time, each None if there is none; at most the stored offset, and at
    least the previous horizon.
    """
    return max(previous, min([stored, *(offset for offset in since if offset is not None)]))


def _find_compactors(connection: Connection, pipeline: Pipeline) -> list[Compactor]:
    with transaction(connection):
        writer = find_writer(pipeline.traits, Ledger(connection).registry.read_epochs(pipeline))
    if found := [part.compactor for part in writer.parts if isinstance(part, Compacts)]:
        return found
    raise ConfigurationError(
        f"pipeline {pipeline.name!r} has a sink of type {type(pipeline.traits.sink).__name__}, and only an Upsert "
        f"has old changes to drop. There is nothing to compact."
    )


def _observe(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, before: datetime | None
) -> _CompactionInputs:
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.check(pipeline)
        stored = tuple(
            offset for offset in ledger.plans.read_stored_offsets(pipeline) if pipeline.loads(offset.topic)
        )
    if before is None:
        return _CompactionInputs(stored, None, {})
    partitions = broker.processed_partitions(pipeline.known_topics(stored), stored)
    return _CompactionInputs(stored, before, broker.offsets_at(partitions, before))


def _below(
    cursor: Cursor,
    ledger: Ledger,
    pipeline: Pipeline,
    compactors: Sequence[Compactor],
    inputs: _CompactionInputs,
    previous: Mapping[PartitionKey, int],
) -> list[Part]:
    """Return the offsets below the new horizon of each partition, with the batches that cover them."""
    coverage = ledger.coverage.read_all(pipeline)
    changes_since: dict[TopicPartition, int] = {}
    if inputs.before is not None:
        heads = {offset.key: offset.next_offset for offset in inputs.stored}
        processed = find_parts(cursor, pipeline, _ranges(heads), coverage)
        for compactor in compactors:
            for key, offset in compactor.first_since(cursor, processed, inputs.before).items():
                changes_since[key] = min(offset, changes_since.get(key, offset))
    horizons = {
        offset.key: compute_horizon(
            offset.next_offset,
            previous.get(offset.key, 0),
            inputs.since.get(offset.topic_partition),
            changes_since.get(offset.topic_partition),
        )
        for offset in inputs.stored
    }
    return find_parts(cursor, pipeline, _ranges(horizons), coverage)


def _ranges(ends: Mapping[PartitionKey, int]) -> list[OffsetRange]:
    """Return all offsets of each partition below its end."""
    return [
        OffsetRange(topic, partition, 0, end, topic_id)
        for (topic, partition, topic_id), end in ends.items()
        if end > 0
    ]


def _compaction(
    below: Sequence[Part], previous: Mapping[PartitionKey, int], counts: Sequence[CompactedRows]
) -> Compaction:
    partitions = []
    for range_, _ in below:
        of_partition = [each.get(range_.topic_partition, (0, 0)) for each in counts]
        partitions.append(
            CompactedPartition(
                range_.topic,
                range_.partition,
                previous.get(range_.key, 0),
                range_.until_offset,
                sum(dropped for dropped, _ in of_partition),
                sum(kept for _, kept in of_partition),
            )
        )
    return Compaction(tuple(partitions))
