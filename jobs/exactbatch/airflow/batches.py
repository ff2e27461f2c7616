"""Checks that a task processes the batch of its own run: XComs can be edited, removed, or left over."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from exactbatch.airflow.versions import AirflowFailException

if TYPE_CHECKING:
    from exactbatch.ledger import Batch

_REMEDY: Final = "Clear plan_batch with its downstream tasks."


def named_batch(batch_id: Any, plan_id: Any) -> tuple[int, UUID | None]:
    """Return the batch ID and the plan ID that plan_batch has left, as text or as the type that Jinja rendered.

    Raises AirflowFailException if it has left none.
    """
    try:
        return int(batch_id), UUID(str(plan_id)) if plan_id else None
    except (TypeError, ValueError):
        raise AirflowFailException(
            f"plan_batch has left no batch: its XComs batch_id and plan_id are {batch_id!r} and {plan_id!r}. It was "
            f"marked as success, or its XComs were removed. {_REMEDY}"
        ) from None


@dataclass(frozen=True, slots=True)
class NamedBatch:
    """The batch of one of many tables, as plan_batch has left it."""

    topic: str
    batch_id: int
    plan_id: UUID


def named_batches(batches: Any) -> list[NamedBatch]:
    """Return the batches of many tables that plan_batch has left as JSON; Jinja may have rendered it as a list.

    Raises AirflowFailException if it has left none.
    """
    try:
        found = json.loads(batches) if isinstance(batches, str) else list(batches)
        return [
            NamedBatch(str(topic), int(batch_id), UUID(str(plan_id))) for topic, batch_id, plan_id in found
        ]
    except (TypeError, ValueError):
        raise AirflowFailException(
            f"plan_batch has left no batches: its XCom batches is {batches!r}. It was marked as success, or its XComs "
            f"were removed. {_REMEDY}"
        ) from None


def missed_plans(missed: Any) -> dict[str, list[UUID]]:
    """Return the plan IDs, by topic, that plan_batch has left as JSON; Jinja may have rendered it as a list."""
    found = json.loads(missed or "[]") if isinstance(missed, str) else missed or ()
    # Before 0.6.0 there was a batch ID in the middle.
    return {topic: list(map(UUID, plans)) for topic, *_, plans in found}


def check_own(batch: "Batch", ti: Any, *, pipeline: str | None = None) -> None:
    """Raise AirflowFailException unless the batch was planned for the run of this task.

    `pipeline` is the batch's; None if it has the name of the DAG.
    """
    run_of_task = pipeline or ti.dag_id, ti.dag_id, ti.run_id
    run_of_batch = batch.pipeline, batch.dag_id, batch.run_id
    if run_of_batch != run_of_task:
        raise AirflowFailException(
            f"batch {batch.batch_id} is one of pipeline {batch.pipeline!r}, planned for the run {batch.run_id!r} "
            f"of {batch.dag_id!r}, but this is the run {ti.run_id!r} of {ti.dag_id!r}. The XComs of plan_batch were "
            f"edited, the pipeline was renamed, or the ledger was restored. {_REMEDY}"
        )


def check_committed(batch: "Batch") -> None:
    """Raise AirflowFailException unless the batch is committed, whatever the state of its task in Airflow."""
    if batch.status != "committed":
        raise AirflowFailException(
            f"batch {batch.batch_id} is {batch.status}, not committed: the task that was to process it was marked "
            f"as success or skipped by hand. The batch is not announced. {_REMEDY}"
        )
