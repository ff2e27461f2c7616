"""Observe what a replay is planned from: the ledger, the log, and the first records of a window's times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from exactbatch.errors import ConfigurationError, ReplayRefused
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.model import FoundRecord, LogPartition, StoredOffset
from exactbatch.offsets import OffsetRange, TopicPartition, union
from exactbatch.pipeline import Pipeline
from exactbatch.planning.known_records import check_records, known_logs, processed
from exactbatch.planning.refused_replays import check_end_not_in_future, hides_a_record, late_ends
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import Connection, transaction

BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
# For a time, the first record at or after it in each partition that has one.
FirstRecords = Mapping[datetime, Mapping[TopicPartition, FoundRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInputs:
    """The inputs of a replay's plan, observed before the pipeline is locked.

    stored         the stored offsets of the pipeline's topics
    partitions     their logs
    named          the ranges that are requested by offsets or by batch ids; empty for a window
    first_records  for the start and end of a window, and for BEGINNING; empty without a window
    compacted      topics with cleanup.policy=compact; empty with available_only, which accepts their gaps
    """

    stored: tuple[StoredOffset, ...]
    partitions: tuple[LogPartition, ...]
    named: tuple[RequestedRange, ...] = ()
    first_records: FirstRecords
    compacted: frozenset[str] = frozenset()


def observe(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    request: ReplayRequest,
    *,
    is_registered: bool = False,
) -> ReplayInputs:
    """Query the ledger, then Kafka. With `is_registered`, the pipeline is not compared with its registration.

    The stored offsets are read first, so that the log reaches all of them. They may advance meanwhile, and a
    batch may commit: a replay stays below the offsets that were read.

    Raises ReplayRefused for a pipeline or a batch without results, and for a window that ends at a record with a
    wrong timestamp; NotRegistered, IdentityChanged, TopicMissing, KafkaUnavailable, PostgresUnavailable, and what
    check_same_logs() and check_records() raise.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        if not is_registered:
            ledger.registry.check(pipeline)
        all_stored = ledger.plans.read_stored_offsets(pipeline)
        known = ledger.fingerprints.read(pipeline.name)
        topics = pipeline.known_topics(all_stored)
        if not all_stored or not topics:
            raise ReplayRefused(
                f"pipeline {pipeline.name!r} has no stored offsets: it has processed nothing that could be "
                f"replayed. Run it once first; its history ends where it starts."
            )
        named = (
            ranges_of_batches(ledger, pipeline, request.batch_ids) if request.batch_ids else request.ranges
        )
    stored = tuple(offset for offset in all_stored if offset.topic in topics)
    # The ends of the logs are read before the times are resolved: a late record that arrives in between then lies
    # above the offset that its time is resolved to.
    partitions = known_logs(broker, topics, stored, known)
    # A window takes records of all partitions; ranges say which logs they need, of thousands perhaps.
    needed = {(range_.topic, range_.partition) for range_ in named}
    check_records(
        broker,
        known,
        [each for each in processed(stored, partitions) if not needed or each.topic_partition in needed],
    )
    first_records: FirstRecords = {}
    if request.window is not None:
        first_records = {at: broker.records_at(partitions, at) for at in (*request.window, BEGINNING)}
        _check_timestamps(broker, partitions, stored, request.window, first_records[request.window[1]])
    return ReplayInputs(
        stored=stored,
        partitions=partitions,
        named=named,
        first_records=first_records,
        compacted=frozenset() if request.available_only else _compacted(broker, topics),
    )


def _compacted(broker: KafkaBroker, topics: Sequence[str]) -> frozenset[str]:
    """Return the topics that Kafka compacts. Raises ConfigurationError if an ACL hides it."""
    try:
        return frozenset(broker.compacted(topics))
    except ConfigurationError as error:
        if error.topic is None:
            raise
        raise ConfigurationError(
            f"{error} A replay with available_only does not need it.", topic=error.topic
        ) from error


def ranges_of_batches(
    ledger: Ledger, pipeline: Pipeline, batch_ids: Sequence[int]
) -> tuple[RequestedRange, ...]:
    """Return the committed ranges of the batches. Raises ReplayRefused for one without any."""
    ranges: list[OffsetRange] = []
    batches = ledger.batches.read_several(batch_ids)
    # With commit="partition", some ranges of a superseded batch may be committed.
    committed_of = ledger.batches.read_committed_ranges(batch_ids)
    folded = ledger.batches.find_folded(pipeline, batch_ids)
    for batch in batches:
        batch_id, committed = batch.batch_id, committed_of[batch.batch_id]
        if batch_id in folded:
            raise ReplayRefused(
                f"batch {batch_id}: exactbatch prune has folded it, so its ranges are not known any more. Replay by "
                f"offsets (--range) or by time (--start, --end) instead.",
                batch_id=batch_id,
            )
        if batch.pipeline != pipeline.name or batch.status == "planned" or not committed:
            raise ReplayRefused(
                f"batch {batch_id}: expected a committed batch of pipeline {pipeline.name!r}, found a "
                f"{batch.status} one of {batch.pipeline!r}. `exactbatch status` lists the newest batches.",
                batch_id=batch_id,
            )
        if gone := sorted({range_.topic for range_ in committed if not pipeline.loads(range_.topic)}):
            raise ReplayRefused(
                f"batch {batch_id} also has offsets of {', '.join(map(repr, gone))}, which pipeline {pipeline.name!r} "
                f"no longer loads. Replay its other ranges by offsets (--range); `exactbatch batches "
                f"{pipeline.name}` lists them.",
                batch_id=batch_id,
            )
        ranges += committed
    return tuple(RequestedRange(*r.topic_partition, r.from_offset, r.until_offset) for r in union(ranges))


def _check_timestamps(
    broker: KafkaBroker,
    partitions: Sequence[LogPartition],
    stored: Sequence[StoredOffset],
    window: tuple[datetime, datetime],
    ends: Mapping[TopicPartition, FoundRecord],
) -> None:
    """Raise ReplayRefused if a window ends at a record with a wrong timestamp that hides others of the window."""
    now = datetime.now(UTC)
    if window[1] > now:
        return  # the window ends at the stored offset
    check_end_not_in_future(stored, ends, window, now=now)
    by_partition = {partition.topic_partition: partition for partition in partitions}
    for offset, record in late_ends(stored, ends, window[1]):
        partition = by_partition[offset.topic_partition]
        hidden = broker.first_before(partition, record.offset + 1, offset.next_offset, window[1])
        if hidden is not None:
            raise hides_a_record(offset, record, hidden, window)
