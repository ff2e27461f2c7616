"""Plan a replay: observe the inputs, lock the pipeline, plan, and freeze the plan in the ledger.

The times of a window are resolved to offsets, which the ledger keeps pinned.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from exactbatch.errors import OffsetsLost
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import DagRun, Ledger, NearbyTimeBoundaries, Origin, TimeBoundaries, find_parts
from exactbatch.model import Covered, LogPartition, StoredOffset
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.planning.refused_replays import (
    check_from_the_beginning,
    check_not_compacted,
    check_reached,
    check_whole,
    check_without_rejects,
)
from exactbatch.planning.replay import ReplayPlan, plan_replay
from exactbatch.planning.replay_inputs import BEGINNING, FirstRecords, ReplayInputs, observe
from exactbatch.planning.request import (
    ReplayRequest,
    RequestedRange,
    beyond_ranges,
    beyond_text,
    window_ranges,
)
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks.writers import find_writer

logger = logging.getLogger(__name__)


def resolve_window(
    boundaries: TimeBoundaries, pipeline: Pipeline, request: ReplayRequest, inputs: ReplayInputs, *, pin: bool
) -> tuple[list[RequestedRange], tuple[OffsetRange, ...]]:
    """Return the processed offsets of the request's window, and its offsets above the stored offsets.

    With `pin`, a time keeps its offset from now on, if the first record at or after it is known. A time without a
    record is not pinned: a record that is sent later may belong to it. Nor is one whose first record retention may
    have removed.

    Raises OffsetsLost, unless `available_only`, if retention may have removed the start of the window.
    """
    assert request.window is not None
    now = datetime.now(UTC)
    nearby = {at: boundaries.read_nearby(pipeline, inputs.partitions, at) for at in request.window}
    if not request.available_only and request.window[0] <= now:
        _check_start_not_removed(request.window, inputs, nearby[request.window[0]])
    offsets: list[dict[TopicPartition, int | None]] = []
    for at in request.window:
        if at > now:
            # A future time has no offset: its records may not have been sent yet.
            offsets.append({})
            continue
        resolved, to_pin = {}, {}
        for partition in inputs.partitions:
            first = inputs.first_records[at].get(partition.topic_partition)
            neighbours = nearby[at][partition.topic_partition]
            offset = neighbours.between(partition.last_stable if first is None else first.offset)
            resolved[partition.topic_partition] = offset
            if (
                first is not None
                and neighbours.pinned is None
                and not _may_be_removed(partition, inputs.first_records, at)
            ):
                to_pin[partition] = offset
        if pin:
            boundaries.pin(pipeline, at, to_pin)
        offsets.append({**resolved})
    starts, ends = offsets
    return (
        window_ranges(inputs.stored, starts, ends),
        beyond_ranges(inputs.stored, inputs.partitions, starts, ends),
    )


def _may_be_removed(partition: LogPartition, first_records: FirstRecords, at: datetime) -> bool:
    """True if retention may have removed the first record of a time: the record found is the first in the log."""
    key = partition.topic_partition
    return partition.earliest > 0 and first_records[at].get(key) == first_records[BEGINNING].get(key)


def _check_start_not_removed(
    window: tuple[datetime, datetime],
    inputs: ReplayInputs,
    nearby: Mapping[TopicPartition, NearbyTimeBoundaries],
) -> None:
    """Raise OffsetsLost if retention may have removed the start of a window, or all of it.

    That cannot be excluded once the window starts at the first record in the log, or the log has no record from
    the window's start on. A start that is pinned is known: plan_replay() checks that the log still holds it.
    """
    processed = {offset.topic_partition for offset in inputs.stored}
    for partition in inputs.partitions:
        if (
            partition.topic_partition in processed
            and nearby[partition.topic_partition].pinned is None
            and _may_be_removed(partition, inputs.first_records, window[0])
        ):
            start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
            raise OffsetsLost(
                f"{partition}: the log starts at offset {partition.earliest}, after the start of the window "
                f"{start} to {end} UTC: retention may have removed a part of the window. To replay the rest, "
                f"and keep the results of the removed offsets as they are, set available_only.",
                topic=partition.topic,
                partition=partition.partition,
            )


@dataclass(frozen=True, slots=True)
class Retracted:
    """The results that a replay retracts in one of its ranges, and the batches that they come from.

    `rows` is None if the rows of the target do not carry their offsets.
    """

    range: OffsetRange
    batch_ids: tuple[int, ...]
    rows: int | None
    rejects: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of a replay; `rows` is the total number of rows that it would retract.

    `missing_index` is the statement that creates an index for replays, None if the target has one. `retracts` is False
    if the sink keeps only latest changes: the replay applies its records again, and no row is retracted.
    """

    plan: ReplayPlan
    retracted: tuple[Retracted, ...]
    rows: int
    missing_index: str | None = None
    retracts: bool = True


@dataclass(frozen=True, slots=True)
class FrozenReplay:
    """A replay that is frozen in the ledger.

    `batch_id` is None if there is nothing to process. `beyond` are the offsets of the requested window above the
    stored offsets, which the next advance processes; it is empty if the run already had its batch.
    """

    batch_id: int | None
    beyond: tuple[OffsetRange, ...] = ()


def missing_index(cursor: Cursor, pipeline: Pipeline) -> str | None:
    """Return the statement that creates an index for replays; None if the table has one, does not exist yet, or needs
    none."""
    if not pipeline.traits.keeps_every_row:
        return None  # a replay does not look for what it replaces
    found = (part.lineage_table.table.missing_index(cursor) for part in find_writer(pipeline.traits).parts)
    return next((statement for statement in found if statement is not None), None)


def preview_replay(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, request: ReplayRequest
) -> Preview:
    """Return what a replay would retract and process again. Writes and locks nothing.

    Raises what freeze_replay() raises.
    """
    inputs = observe(connection, broker, pipeline, request)
    with transaction(connection) as cursor:
        cursor.execute("set transaction read only")  # also for what the target's indexes call
        planned = plan_observed(
            connection, pipeline, request, inputs, pin=False, replays_compacted=pipeline.replays_compacted
        )
        return count_retracted(cursor, pipeline, planned)


def count_retracted(cursor: Cursor, pipeline: Pipeline, planned: ReplayPlan) -> Preview:
    """Return a plan with the rows and rejects that it would retract, in the caller's transaction."""
    ledger = Ledger(cursor.connection)
    covered = ledger.coverage.read(pipeline.name, planned.ranges)
    parts = find_parts(cursor, pipeline, planned.ranges, covered)
    writer, retracts = find_writer(pipeline.traits), pipeline.traits.keeps_every_row
    # With a Route, each row is in one of the targets; otherwise each target has all of them.
    tables = (
        [part.lineage_table for part in writer.parts] if pipeline.traits.is_routed else [writer.lineage_table]
    )
    counts: list[int | None] = [0] * len(parts)
    if retracts:
        by_table = zip(*(table.count_by_part(cursor, parts) for table in tables), strict=True)
        counts = [None if None in each else sum(count or 0 for count in each) for each in by_table]
    retracted = tuple(
        Retracted(range_, tuple(batch_ids), count, rejects)
        for (range_, batch_ids), count, rejects in zip(
            parts, counts, ledger.rejects.count(pipeline, parts), strict=True
        )
    )
    # Rows that do not carry their offsets are only counted over all ranges at once.
    by_range = pipeline.traits.lineage == "record"
    rows = sum(count or 0 for count in counts) if by_range else tables[-1].count(cursor, parts)
    return Preview(planned, retracted, rows, missing_index(cursor, pipeline), retracts=retracts)


def freeze_replay(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    request: ReplayRequest,
    *,
    origin: Origin,
    run: DagRun | None = None,
) -> FrozenReplay:
    """Plan a replay and freeze it in the ledger. A run that already has a batch keeps it.

    Raises what observe() and plan_replay() raise.
    """
    began = time.monotonic()
    inputs = observe(connection, broker, pipeline, request)
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.lock(pipeline)
        if run is not None and (batch_id := ledger.plans.find_batch(pipeline, run)) is not None:
            return FrozenReplay(batch_id)
        planned = plan_observed(
            connection, pipeline, request, inputs, pin=True, replays_compacted=pipeline.replays_compacted
        )
        if origin == "backfill" and request.window is not None:
            check_whole(planned, request.window)
        if planned.beyond:
            logger.warning("%s. The next advance processes them.", beyond_text(planned.beyond))
        if planned.is_empty:
            return FrozenReplay(None, planned.beyond)
        batch_id = ledger.plans.write_replay(
            pipeline, planned.ranges, origin=origin, run=run, seconds=time.monotonic() - began
        )
        failpoint("plan.before_commit")
    failpoint("plan.after_commit")
    return FrozenReplay(batch_id, planned.beyond)


def plan_observed(
    connection: Connection,
    pipeline: Pipeline,
    request: ReplayRequest,
    inputs: ReplayInputs,
    *,
    pin: bool,
    replays_compacted: bool,
) -> ReplayPlan:
    """Plan the request in the caller's transaction; with `pin`, the offsets of its times are pinned in the ledger.

    `replays_compacted` is Pipeline.replays_compacted. Raises what plan_replay() raises, and ReplayRefused for a
    compacted topic whose records could not restore what the replay retracts.
    """
    ledger = Ledger(connection)
    requested: Sequence[RequestedRange] = inputs.named
    beyond: tuple[OffsetRange, ...] = ()
    if request.window is not None:
        requested, beyond = resolve_window(TimeBoundaries(connection), pipeline, request, inputs, pin=pin)
    planned = plan_replay(
        requested,
        inputs.stored,
        inputs.partitions,
        coverage=_touched(ledger, pipeline, requested, inputs.stored)
        if pipeline.traits.lineage == "batch"
        else (),
        horizons=ledger.coverage.read_horizons(pipeline),
        lineage=pipeline.traits.lineage,
        available_only=request.available_only,
        beyond=beyond,
    )
    check_reached(planned)
    if in_compacted := [range_ for range_ in planned.ranges if range_.topic in inputs.compacted]:
        if not replays_compacted:
            check_not_compacted(planned, inputs.compacted)
        outside = ledger.coverage.find_results_outside(pipeline, in_compacted)
        check_from_the_beginning(planned, inputs.compacted, outside)
        check_without_rejects(in_compacted, ledger.rejects.find_batches(pipeline, in_compacted))
    return planned


def _touched(
    ledger: Ledger, pipeline: Pipeline, requested: Sequence[RequestedRange], stored: Sequence[StoredOffset]
) -> list[Covered]:
    """Return the coverage of the requested ranges and of all batches in them. plan_replay() refuses invalid ranges."""
    topic_ids = {offset.topic_partition: offset.topic_id for offset in stored}
    ranges = [
        OffsetRange(
            *range_.topic_partition,
            range_.from_offset,
            range_.until_offset,
            topic_ids[range_.topic_partition],
        )
        for range_ in requested
        if range_.topic_partition in topic_ids and 0 <= range_.from_offset < range_.until_offset
    ]
    return ledger.coverage.read_touched(pipeline, ranges) if ranges else []
