"""Which batch a task means, and whether it is its own: XComs can be changed, cleaned, or left over."""

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from exactbatch.ledger import Batch

AGAIN: Final = "Clear plan_batch with its downstream tasks."


def named_batch(batch_id: Any, plan_id: Any) -> tuple[int, UUID | None]:
    """What plan_batch has left, as text or as what Jinja made of it.

    Raises AirflowFailException when it has left nothing.
    """
    try:
        return int(batch_id), UUID(str(plan_id)) if plan_id else None
    except (TypeError, ValueError):
        raise AirflowFailException(
            f"plan_batch has left no batch: its XComs batch_id and plan_id are {batch_id!r} and {plan_id!r}. Was "
            f"it marked as success, or were XComs removed? {AGAIN}"
        ) from None


def check_own(batch: "Batch", ti: Any) -> None:
    """Raise AirflowFailException unless a batch was planned for the run of this task."""
    own = ti.dag_id, ti.dag_id, ti.run_id
    found = batch.pipeline, batch.dag_id, batch.run_id
    if found != own:
        raise AirflowFailException(
            f"batch {batch.batch_id} is one of pipeline {batch.pipeline!r}, planned for the run {batch.run_id!r} "
            f"of {batch.dag_id!r}, and this is the run {ti.run_id!r} of {ti.dag_id!r}. Were the XComs of "
            f"plan_batch changed, was the pipeline renamed, or the ledger restored? {AGAIN}"
        )


def check_committed(batch: "Batch") -> None:
    """Raise AirflowFailException unless a batch is committed, whatever Airflow makes of its task."""
    if batch.status != "committed":
        raise AirflowFailException(
            f"batch {batch.batch_id} is {batch.status}, not committed: the task that was to process it was marked "
            f"as success or skipped by hand. Nothing of it is announced. {AGAIN}"
        )
