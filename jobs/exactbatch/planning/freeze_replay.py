"""Planning a replay: resolve what was asked for, lock the pipeline, and freeze the ranges in the ledger."""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from exactbatch.coverage import covered_parts
from exactbatch.errors import OffsetsLost, ReplayRefused
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, Run
from exactbatch.ledger.ledger import NearBoundaries, Origin
from exactbatch.model import FoundRecord, LogPartition, StoredOffset, TopicPartition
from exactbatch.offsets import OffsetRange, union
from exactbatch.pipeline import Pipeline
from exactbatch.planning.replay import (
    ReplayPlan,
    beyond_ranges,
    beyond_text,
    check_from_the_beginning,
    check_not_compacted,
    check_not_from_the_future,
    check_reached,
    check_whole,
    hidden,
    may_hide,
    plan_replay,
    window_ranges,
)
from exactbatch.planning.request import AskedRange, ReplayRequest
from exactbatch.postgres.connection import Connection, Cursor, transaction

# For each of the two times of a window, and for the beginning of all times, the first record at or after it,
# where there is one.
_Found = Mapping[datetime, Mapping[TopicPartition, FoundRecord]]
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What a replay takes back in one of its ranges: the results of these batches.

    `rows` is None where the target does not tell which offsets a row comes from.
    """

    range: OffsetRange
    batch_ids: tuple[int, ...]
    rows: int | None
    rejects: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would do; `rows` is what it would take back altogether.

    `missing_index` is the statement that creates an index for it, where the target has none.
    """

    plan: ReplayPlan
    taken_back: tuple[TakenBack, ...]
    rows: int
    missing_index: str | None = None


def missing_index(cursor: Cursor, pipeline: Pipeline) -> str | None:
    """The statement that creates an index for replays, where the table with lineage is there and has none."""
    return pipeline.sink.lineage_table.table.missing_index(cursor)


def preview_replay(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, request: ReplayRequest
) -> Preview:
    """What a replay would take back and write again; nothing is written or locked.

    Raises what freeze_replay() raises.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        stored, named = _see(ledger, pipeline, request)
    partitions, found = _ask(broker, pipeline, request, stored)
    compacted = _compacted(broker, pipeline, request)
    with transaction(connection) as cursor:
        planned = _plan(ledger, pipeline, request, stored, named, partitions, found, keep=False)
        _check_compacted(ledger, pipeline, planned, compacted)
        parts = covered_parts(planned.ranges, ledger.covering_ranges(pipeline.name, planned.ranges))
        counts = pipeline.sink.count_retracted_by_part(cursor, parts)
        taken_back = tuple(
            TakenBack(range_, batch_ids, count, rejects)
            for (range_, batch_ids), count, rejects in zip(
                parts, counts, ledger.count_rejects(pipeline, parts), strict=True
            )
        )
        # Where rows do not tell their offsets, all ranges are counted at once; else they have been.
        by_range = pipeline.sink.lineage == "record"
        rows = sum(each or 0 for each in counts) if by_range else pipeline.sink.count_retracted(cursor, parts)
        return Preview(planned, taken_back, rows, missing_index(cursor, pipeline))


@dataclass(frozen=True, slots=True)
class FrozenReplay:
    """A replay that is frozen in the ledger.

    `batch_id` is None when there is nothing to process. `beyond` are the offsets of the requested window above the
    stored offsets, which are for the next advance; it is empty when the run already had its batch.
    """

    batch_id: int | None
    beyond: tuple[OffsetRange, ...] = ()


def freeze_replay(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    request: ReplayRequest,
    *,
    origin: Origin,
    run: Run | None = None,
) -> FrozenReplay:
    """Plan a replay and freeze it in the ledger. A run that already has a batch keeps it.

    Raises what plan_replay() raises, ReplayRefused for batches without results, NotRegistered, IdentityChanged,
    TopicMissing, KafkaUnavailable and PostgresUnavailable.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        stored, named = _see(ledger, pipeline, request)
    partitions, found = _ask(broker, pipeline, request, stored)
    compacted = _compacted(broker, pipeline, request)
    with transaction(connection):
        ledger.lock(pipeline)
        if run is not None and (batch_id := ledger.batch_of_run(pipeline, run)) is not None:
            return FrozenReplay(batch_id)
        planned = _plan(ledger, pipeline, request, stored, named, partitions, found, keep=True)
        _check_compacted(ledger, pipeline, planned, compacted)
        if origin == "backfill" and request.window is not None:
            check_whole(planned, request.window)
        if planned.beyond:
            logger.warning("%s. The next advance processes them.", beyond_text(planned.beyond))
        if planned.is_empty:
            return FrozenReplay(None, planned.beyond)
        batch_id = ledger.write_replay(pipeline, planned.ranges, origin=origin, run=run)
        failpoint("plan.before_commit")
    failpoint("plan.after_commit")
    return FrozenReplay(batch_id, planned.beyond)


def _see(
    ledger: Ledger, pipeline: Pipeline, request: ReplayRequest
) -> tuple[list[StoredOffset], list[AskedRange]]:
    """Where the pipeline stands, and the ranges that are named: by themselves, or by their batches.

    Seen before Kafka is asked, so that the log reaches every head. Heads that move on meanwhile are no matter,
    because a replay stays below those that were seen; nor is a batch that commits meanwhile.
    """
    stored = ledger.stored_offsets(pipeline)
    if not stored:
        raise ReplayRefused(
            f"pipeline {pipeline.name!r}: expected stored offsets, found none: it has processed nothing that "
            f"could be replayed. Run it once first; where it starts is where history ends."
        )
    named = _batches(ledger, pipeline, request.batch_ids) if request.batch_ids else list(request.ranges)
    return [each for each in stored if each.topic in pipeline.topics], named


def _ask(
    broker: KafkaBroker, pipeline: Pipeline, request: ReplayRequest, stored: Sequence[StoredOffset]
) -> tuple[tuple[LogPartition, ...], _Found]:
    """What the log holds, and where the times of a window begin in it.

    The ends of the log come first: a record that is late for a time, and comes between the two questions,
    then lies beyond the offset that stands for the time.
    """
    partitions = broker.processed_partitions(pipeline.topics, stored)
    if request.window is None:
        return partitions, {}
    found = {at: broker.records_at(partitions, at) for at in (*request.window, _BEGINNING)}
    _check_times(broker, partitions, stored, request.window, found[request.window[1]])
    return partitions, found


def _check_times(
    broker: KafkaBroker,
    partitions: Sequence[LogPartition],
    stored: Sequence[StoredOffset],
    window: tuple[datetime, datetime],
    ends: Mapping[TopicPartition, FoundRecord],
) -> None:
    """Raise ReplayRefused where a window ends at a record with a wrong time, which hides others of the window."""
    now = datetime.now(UTC)
    if window[1] > now:
        return  # it ends at the stored offset
    check_not_from_the_future(stored, ends, window, now=now)
    of_log = {(each.topic, each.partition): each for each in partitions}
    for each, record in may_hide(stored, ends, window[1]):
        partition = of_log[each.topic, each.partition]
        behind = broker.first_before(partition, record.offset + 1, each.next_offset, window[1])
        if behind is not None:
            raise hidden(each, record, behind, window)


def _compacted(broker: KafkaBroker, pipeline: Pipeline, request: ReplayRequest) -> set[str]:
    """The topics whose records may be gone although results still come from them, unless that was accepted."""
    return set() if request.available_only else broker.compacted(pipeline.topics)


def _check_compacted(ledger: Ledger, pipeline: Pipeline, planned: ReplayPlan, compacted: Set[str]) -> None:
    """Raise ReplayRefused where a replay could not make again what it takes back."""
    if not compacted:
        return
    if not _last_records_make_all(pipeline):
        check_not_compacted(planned, compacted)
    check_from_the_beginning(planned, compacted, ledger.coverage(pipeline))


def _last_records_make_all(pipeline: Pipeline) -> bool:
    """Whether the records that compaction keeps, the last one of each message key, make all rows.

    They do where the message key is the key of the row, and its last record alone says what the row is: not that
    of a Debezium event, whose tombstone says nothing of the delete before it.
    """
    return (
        pipeline.sink.needs_last_records_only
        and pipeline.key is not None
        and pipeline.value.tombstone_deletes
        and not pipeline.is_transformed
    )


def _plan(
    ledger: Ledger,
    pipeline: Pipeline,
    request: ReplayRequest,
    stored: Sequence[StoredOffset],
    named: Sequence[AskedRange],
    partitions: Sequence[LogPartition],
    found: _Found,
    *,
    keep: bool,
) -> ReplayPlan:
    asked: Sequence[AskedRange] = named
    beyond: tuple[OffsetRange, ...] = ()
    if request.window is not None:
        asked, beyond = _window(ledger, pipeline, request, stored, partitions, found, keep=keep)
    planned = plan_replay(
        asked,
        stored,
        partitions,
        coverage=ledger.coverage(pipeline) if pipeline.sink.lineage == "batch" else (),
        horizons=ledger.horizons(pipeline),
        lineage=pipeline.sink.lineage,
        available_only=request.available_only,
        beyond=beyond,
    )
    check_reached(planned)
    return planned


def _batches(ledger: Ledger, pipeline: Pipeline, batch_ids: Sequence[int]) -> list[AskedRange]:
    ranges: list[OffsetRange] = []
    for batch_id in batch_ids:
        batch = ledger.batch(batch_id)
        # A superseded batch has results, too, where ranges are committed one by one: those of some ranges.
        committed = ledger.committed_ranges(batch_id)
        if batch.pipeline != pipeline.name or batch.status == "planned" or not committed:
            raise ReplayRefused(
                f"batch {batch_id}: expected a committed batch of pipeline {pipeline.name!r}, found a "
                f"{batch.status} one of {batch.pipeline!r}. `exactbatch status` lists the newest batches."
            )
        ranges += committed
    return [
        AskedRange(each.topic, each.partition, each.from_offset, each.until_offset) for each in union(ranges)
    ]


def _window(
    ledger: Ledger,
    pipeline: Pipeline,
    request: ReplayRequest,
    stored: Sequence[StoredOffset],
    partitions: Sequence[LogPartition],
    found: _Found,
    *,
    keep: bool,
) -> tuple[list[AskedRange], tuple[OffsetRange, ...]]:
    """The offsets of a window that were processed, and those that were not yet.

    A time is kept where its first record is known. Where there is none yet, one that is sent with this time
    belongs to it; and retention may have removed the first.
    """
    assert request.window is not None
    now = datetime.now(UTC)
    near = {at: ledger.near_boundaries(pipeline, partitions, at) for at in request.window}
    if not request.available_only and request.window[0] <= now:
        _check_beginning(request.window, stored, partitions, found, near[request.window[0]])
    offsets: list[dict[TopicPartition, int | None]] = []
    for at in request.window:
        if at > now:
            # A time that is still to come has no offset: what belongs to it may not be there yet.
            offsets.append({})
            continue
        resolved, known = {}, {}
        for each in partitions:
            first, boundaries = found[at].get(_key(each)), near[at][_key(each)]
            resolved[_key(each)] = boundaries.between(each.last_stable if first is None else first.offset)
            if first is not None and boundaries.kept is None and not _may_be_removed(each, found, at):
                known[each] = resolved[_key(each)]
        if keep:
            ledger.keep_boundaries(pipeline, at, known)
        offsets.append({**resolved})
    starts, ends = offsets
    return window_ranges(stored, starts, ends), beyond_ranges(stored, partitions, starts, ends)


def _key(partition: LogPartition) -> TopicPartition:
    return partition.topic, partition.partition


def _may_be_removed(partition: LogPartition, found: _Found, at: datetime) -> bool:
    """Whether retention may have removed the first record of a time: what is found is the first that is left."""
    key = _key(partition)
    return partition.earliest > 0 and found[at].get(key) == found[_BEGINNING].get(key)


def _check_beginning(
    window: tuple[datetime, datetime],
    stored: Sequence[StoredOffset],
    partitions: Sequence[LogPartition],
    found: _Found,
    near: Mapping[TopicPartition, NearBoundaries],
) -> None:
    """Raise OffsetsLost where retention may have removed the beginning of a window, or all of it.

    Nobody can tell what was there, once the window holds the first record that is left, or no record is left
    at all. A start that was resolved before is known: the planner sees whether the log still holds it.
    """
    there = {(each.topic, each.partition) for each in stored}
    for partition in partitions:
        key = _key(partition)
        if key in there and near[key].kept is None and _may_be_removed(partition, found, window[0]):
            start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
            raise OffsetsLost(
                f"{partition}: expected the log to hold all of {start} to {end} UTC, found that it starts, at "
                f"offset {partition.earliest}, after the window does: retention may have removed a part of it. To "
                f"replay what is left, and keep the results of the rest as they are, set available_only."
            )
