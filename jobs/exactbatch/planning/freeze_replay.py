"""Plan a replay: observe the situation, lock the pipeline, plan, and freeze the plan in the ledger."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, Origin, Run
from exactbatch.model import Covered, StoredOffset
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planning.compacted_topics import (
    check_from_the_beginning,
    check_not_compacted,
    check_without_rejects,
)
from exactbatch.planning.refused_windows import check_reached, check_whole
from exactbatch.planning.replay import ReplayPlan, plan_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.resolve_window import resolve_window
from exactbatch.planning.situation import Situation, observe
from exactbatch.planning.window import beyond_text
from exactbatch.postgres.connection import Connection, Cursor, transaction

logger = logging.getLogger(__name__)


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
    if not pipeline.sink.keeps_every_row:
        return None  # a replay does not look for what it replaces
    return pipeline.sink.lineage_table.table.missing_index(cursor)


def preview_replay(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, request: ReplayRequest
) -> Preview:
    """Return what a replay would retract and process again. Writes and locks nothing.

    Raises what freeze_replay() raises.
    """
    situation = observe(connection, broker, pipeline, request)
    ledger = Ledger(connection)
    with transaction(connection) as cursor:
        cursor.execute("set transaction read only")  # also for what the target's indexes call
        planned = plan_observed(
            ledger, pipeline, request, situation, pin=False, replays_compacted=pipeline.replays_compacted
        )
        return count_retracted(ledger, cursor, pipeline, planned)


def count_retracted(ledger: Ledger, cursor: Cursor, pipeline: Pipeline, planned: ReplayPlan) -> Preview:
    """Return a plan with the rows and rejects that it would retract, in the caller's transaction."""
    covered = ledger.coverage_of_ranges(pipeline.name, planned.ranges)
    parts = ledger.parts(cursor, pipeline, planned.ranges, covered)
    counts = pipeline.sink.count_retracted_by_part(cursor, parts)
    retracted = tuple(
        Retracted(range_, tuple(batch_ids), count, rejects)
        for (range_, batch_ids), count, rejects in zip(
            parts, counts, ledger.count_rejects(pipeline, parts), strict=True
        )
    )
    # Rows that do not carry their offsets are only counted over all ranges at once.
    by_range = pipeline.sink.lineage == "record"
    rows = sum(count or 0 for count in counts) if by_range else pipeline.sink.count_retracted(cursor, parts)
    return Preview(
        planned, retracted, rows, missing_index(cursor, pipeline), retracts=pipeline.sink.keeps_every_row
    )


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

    Raises what observe() and plan_replay() raise.
    """
    began = time.monotonic()
    situation = observe(connection, broker, pipeline, request)
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.lock(pipeline)
        if run is not None and (batch_id := ledger.batch_of_run(pipeline, run)) is not None:
            return FrozenReplay(batch_id)
        planned = plan_observed(
            ledger, pipeline, request, situation, pin=True, replays_compacted=pipeline.replays_compacted
        )
        if origin == "backfill" and request.window is not None:
            check_whole(planned, request.window)
        if planned.beyond:
            logger.warning("%s. The next advance processes them.", beyond_text(planned.beyond))
        if planned.is_empty:
            return FrozenReplay(None, planned.beyond)
        batch_id = ledger.write_replay(
            pipeline, planned.ranges, origin=origin, run=run, seconds=time.monotonic() - began
        )
        failpoint("plan.before_commit")
    failpoint("plan.after_commit")
    return FrozenReplay(batch_id, planned.beyond)


def plan_observed(
    ledger: Ledger,
    pipeline: Pipeline,
    request: ReplayRequest,
    situation: Situation,
    *,
    pin: bool,
    replays_compacted: bool,
) -> ReplayPlan:
    """Plan the request in the caller's transaction; with `pin`, the offsets of its times are pinned in the ledger.

    `replays_compacted` is Pipeline.replays_compacted. Raises what plan_replay() raises, and ReplayRefused for a
    compacted topic whose records could not restore what the replay retracts.
    """
    requested: Sequence[RequestedRange] = situation.named
    beyond: tuple[OffsetRange, ...] = ()
    if request.window is not None:
        requested, beyond = resolve_window(ledger, pipeline, request, situation, pin=pin)
    planned = plan_replay(
        requested,
        situation.stored,
        situation.partitions,
        coverage=_touched(ledger, pipeline, requested, situation.stored)
        if pipeline.sink.lineage == "batch"
        else (),
        horizons=ledger.horizons(pipeline),
        lineage=pipeline.sink.lineage,
        available_only=request.available_only,
        beyond=beyond,
    )
    check_reached(planned)
    if in_compacted := [range_ for range_ in planned.ranges if range_.topic in situation.compacted]:
        if not replays_compacted:
            check_not_compacted(planned, situation.compacted)
        outside = ledger.results_outside(pipeline, in_compacted)
        check_from_the_beginning(planned, situation.compacted, outside)
        check_without_rejects(in_compacted, ledger.batches_of_rejects(pipeline, in_compacted))
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
    return ledger.coverage_touched(pipeline, ranges) if ranges else []
