"""Read the batches that a run leaves for its tasks, and check that a task processes the batch of its run.

XComs can be edited, removed, or left over.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from exactbatch.airflow.versions import AirflowFailException
from exactbatch.model import PlannedBatch

if TYPE_CHECKING:
    from exactbatch.ledger import Batch

_REMEDY: Final = "Clear plan_batch with its downstream tasks."
_PLAN_ID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_named_batches(batches: Any) -> list[PlannedBatch]:
    """Return the batches that plan_batch has left as a JSON list of texts; Jinja may have rendered it as a list.

    Raises AirflowFailException if it has left none.
    """
    try:
        found = json.loads(batches) if isinstance(batches, str) else list(batches)
        return [PlannedBatch.parse(str(each)) for each in found]
    except (TypeError, ValueError):
        raise AirflowFailException(
            f"plan_batch has left no batches, but {batches!r}. It was marked as success, or its XComs were removed. "
            f"{_REMEDY}"
        ) from None


def name_beside(ti: Any, task: str) -> str:
    """Return the ID of a task of the same pipeline: in a task group, it begins with the ID of the group."""
    group, dot, _ = str(ti.task_id).rpartition(".")
    return f"{group}{dot}{task}"


def read_missed_plans(missed: Any) -> list[UUID]:
    """Return the IDs of plans that plan_batch has left, in whatever form Jinja has rendered them."""
    return list(map(UUID, _PLAN_ID.findall(str(missed))))


def check_own(batch: "Batch", ti: Any, *, pipeline: str) -> None:
    """Raise AirflowFailException unless the batch is one of the pipeline, planned for the run of this task."""
    run_of_task = pipeline, ti.dag_id, ti.run_id
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
