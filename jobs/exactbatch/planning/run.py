"""Plan the batch of a DAG run: an advance, a replay, or the batch that the run already has."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, Run
from exactbatch.ledger.ledger import Origin
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import Connection, transaction

logger = logging.getLogger(__name__)

_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a DAG run processes: a batch, or nothing, and `because` says why.

    `beyond` is what lies in its window and above the stored offset.
    """

    batch: Batch | None
    because: str = ""
    beyond: tuple[OffsetRange, ...] = ()


def plan_run(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    run: Run,
    request: ReplayRequest | None,
    *,
    origin: Origin,
) -> RunPlan:
    """The batch of a DAG run, planned unless it was before.

    A run that was cleared after its batch had committed processes that batch's exact ranges again, whatever
    else it asks for; but a backfill asks for its interval each time. A run whose batch never committed plans
    like any other, and an automatic retry keeps its plan.

    Raises what freeze_advance() and freeze_replay() raise.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        batch_id = ledger.batch_of_run(pipeline, run)
        if batch_id is None and run.clear_number == 0:
            # No automatic retry, and no clear: earlier batches of this id are of a run that was deleted.
            ledger.begin_life(pipeline, run)
        earlier = ledger.batches_of_life(pipeline, run)
    beyond: tuple[OffsetRange, ...] = ()
    if batch_id is None:
        if origin != "backfill" and (done := committed_in_this_incarnation(run, earlier)) is not None:
            available_only = request is not None and request.available_only
            origin, request = (
                "clear",
                ReplayRequest(batch_ids=(done.batch_id,), available_only=available_only),
            )
            logger.info(
                "the run was cleared: it processes the ranges of batch %s again, which committed at %s UTC; what "
                "is new is for the next run",
                done.batch_id,
                done.committed_at and f"{done.committed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            )
        if request is None:
            batch_id = freeze_advance(connection, broker, pipeline, origin=origin, run=run)
        else:
            frozen = freeze_replay(connection, broker, pipeline, request, origin=origin, run=run)
            batch_id, beyond = frozen.batch_id, frozen.beyond
    if batch_id is None:
        with transaction(connection):
            return RunPlan(None, _nothing(ledger, pipeline, request), beyond)
    with transaction(connection):
        batch = ledger.batch(batch_id)
    if batch.status == "committed":
        logger.warning(
            "batch %s of this very run has committed before: it is told of again, and what is new is for the next "
            "run. Was this `airflow dags test` with a date that it was given before? Leave the date out",
            batch_id,
        )
    return RunPlan(batch, beyond=beyond)


def _nothing(ledger: Ledger, pipeline: Pipeline, request: ReplayRequest | None) -> str:
    """Why there is nothing to process."""
    topics = ", ".join(pipeline.topics)
    if request is None:
        return f"nothing new in {topics}: every offset up to the last stable one is stored"
    if request.window is None:
        return "nothing to process again: the log holds no offset of what is asked for any more"
    start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in request.window)
    kept = ledger.boundaries(pipeline, at=request.window, most=_SHOWN)
    shown = "; ".join(
        f"{each.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} is offset {each.offset} of {each.topic}[{each.partition}] "
        f"(resolved at {each.resolved_at.astimezone(UTC):%Y-%m-%d %H:%M:%S})"
        for each in kept
    )
    return (
        f"nothing to process again: no processed offset of {topics} lies in the window {start} to {end} UTC"
        + (f": {shown}" if shown else ", and there is no record from its start on")
        + ". `exactbatch boundaries` shows what times were resolved to, and forgets it."
    )


def committed_in_this_incarnation(run: Run, batches: Sequence[Batch]) -> Batch | None:
    """The newest committed batch of a run since it was created, of all batches of its id, newest first.

    A run that is deleted and created again begins with clear_number 0, and each clear adds one: the batches
    of its life are the newest ones, down to where that number no longer falls.
    """
    number = run.clear_number
    for each in batches:
        if each.clear_number >= number:
            return None
        if each.status == "committed":
            return each
        number = each.clear_number
    return None
