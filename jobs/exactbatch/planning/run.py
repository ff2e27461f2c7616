"""Plan the batch of a DAG run: an advance, a replay, or the batch that the run already has."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, DagRun, EmptyRun, Ledger, Origin, TimeBoundaries
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import Observed, freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import Connection, transaction

logger = logging.getLogger(__name__)

_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run does with a pipeline: it processes a batch, has nothing to do `because`, or failed with an error.

    pipeline  None if the function of the Tables could not make it
    beyond    the offsets of the run's window above the stored offsets
    """

    name: str
    pipeline: Pipeline | None
    batch: Batch | None = None
    because: str = ""
    error: ExactbatchError | None = None
    beyond: tuple[OffsetRange, ...] = ()


def plan_run(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    run: DagRun,
    request: ReplayRequest | None,
    *,
    origin: Origin,
    observed: Observed | None = None,
) -> RunPlan:
    """Return the batch of a DAG run; plan one unless the run already has one. Without a request, plan an advance.

    A run that was cleared after its batch committed processes the exact ranges of that batch again, whatever it
    requests; except for a backfill, which requests its interval each time. A run that was cleared after it had found
    nothing new has no ranges, and processes nothing. A run whose batch never committed plans like any other, and an
    automatic retry keeps its plan. `observed` as in freeze_advance().

    Raises what freeze_advance() and freeze_replay() raise.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.check(pipeline)
        batch_id = ledger.plans.find_batch(pipeline, run)
        if batch_id is None and run.clear_number == 0:
            # Neither a retry nor a clear: earlier batches of this run id belong to a run that was deleted.
            ledger.plans.begin_run(pipeline, run)
        earlier = ledger.plans.read_batches(pipeline, run)
        empty = ledger.plans.read_empty_run(pipeline, run)
    beyond: tuple[OffsetRange, ...] = ()
    if batch_id is None:
        if origin != "backfill" and (done := find_committed_batch(run, earlier)) is not None:
            available_only = request is not None and request.available_only
            origin, request = (
                "clear",
                ReplayRequest(batch_ids=(done.batch_id,), available_only=available_only),
            )
            logger.info(
                "the run was cleared: it processes the ranges of batch %s again, which committed at %s UTC; "
                "the next run processes what is new",
                done.batch_id,
                done.committed_at and _time(done.committed_at),
            )
        if request is None and empty is not None and was_empty(run, earlier, empty):
            return RunPlan(pipeline.name, pipeline, because=_why_still_nothing(pipeline, empty))
        if request is None:
            batch_id = freeze_advance(connection, broker, pipeline, origin=origin, run=run, observed=observed)
        else:
            frozen = freeze_replay(connection, broker, pipeline, request, origin=origin, run=run)
            batch_id, beyond = frozen.batch_id, frozen.beyond
    if batch_id is None:
        with transaction(connection):
            because = _why_nothing(TimeBoundaries(connection), pipeline, request)
        return RunPlan(pipeline.name, pipeline, because=because, beyond=beyond)
    with transaction(connection):
        batch = ledger.batches.read(batch_id)
    if batch.status == "committed":
        logger.warning(
            "batch %s of this run has committed before: the run announces it again, and the next run processes "
            "what is new. If this was `airflow dags test` with a date that was used before, leave the date out",
            batch_id,
        )
    return RunPlan(pipeline.name, pipeline, batch, beyond=beyond)


def find_committed_batch(run: DagRun, batches: Sequence[Batch]) -> Batch | None:
    """Return the newest committed batch since the run was created; `batches` are all of its id, newest first.

    A run that is deleted and created again starts with clear_number 0, and each clear adds one: its own batches
    are the newest ones, as long as that number falls.
    """
    number = run.clear_number
    for batch in batches:
        if batch.clear_number >= number:
            return None
        if batch.status == "committed":
            return batch
        number = batch.clear_number
    return None


def was_empty(run: DagRun, batches: Sequence[Batch], empty: EmptyRun) -> bool:
    """True if the last plan of a run before it was cleared was the empty one; `batches` are its own.

    What has arrived since is not the run's: it would appear under an old run, with that run's asset event.
    """
    if empty.clear_number >= run.clear_number:
        return False  # a retry of the try that found nothing: nobody has been told so
    return all(batch.clear_number < empty.clear_number for batch in batches)


def _why_still_nothing(pipeline: Pipeline, empty: EmptyRun) -> str:
    return (
        f"nothing to process again: when this run was planned, at {_time(empty.planned_at)} UTC, there was nothing "
        f"new in {pipeline.topics_text}. The next run processes what has arrived since; to process it now, "
        f"trigger a run."
    )


def _why_nothing(boundaries: TimeBoundaries, pipeline: Pipeline, request: ReplayRequest | None) -> str:
    """Say why there is nothing to process."""
    topics = pipeline.topics_text
    if request is None:
        return f"nothing new in {topics}: every offset up to the last stable one is stored"
    if request.window is None:
        return "nothing to process again: the log no longer holds any of the requested offsets"
    start, end = map(_time, request.window)
    shown = "; ".join(
        f"{_time(boundary.at)} is offset {boundary.offset} of {boundary.topic}[{boundary.partition}] "
        f"(resolved at {_time(boundary.resolved_at)})"
        for boundary in boundaries.read(pipeline, at=request.window, limit=_SHOWN)
    )
    return (
        f"nothing to process again: no processed offset of {topics} is in the window {start} to {end} UTC"
        + (f": {shown}" if shown else ", and there is no record from its start on")
        + ". `exactbatch boundaries` shows the offsets that times were resolved to, and forgets them."
    )


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
