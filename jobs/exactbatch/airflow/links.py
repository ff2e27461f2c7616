"""The links that Airflow shows with a task that processes a batch. They need no login of their own.

Airflow asks for them once a task has ended, in the task's process, and keeps them as XComs.
"""

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from exactbatch.airflow.batches import named_batch
from exactbatch.airflow.history import application_url

if TYPE_CHECKING:
    from exactbatch.airflow.connections import Connections


class _ProcessesBatch(Protocol):
    """What a link reads of an operator, whose fields are rendered."""

    batch_id: Any
    plan_id: Any
    connections: "Connections"


class BatchLink(BaseOperatorLink):
    """The batch on the Pipelines page. The address is relative to Airflow's, which may be below a path."""

    name = "Batch in exactbatch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        batch: _ProcessesBatch = operator
        batch_id, _ = named_batch(batch.batch_id, batch.plan_id)
        return "exactbatch/?" + urlencode({"dag": ti_key.dag_id, "run": ti_key.run_id, "batch": batch_id})


class SparkApplicationLink(BaseOperatorLink):
    """The Spark application of the batch's last launch, on Spark's history server."""

    name = "Spark application"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002
        """Return the address; an empty text, for which Airflow shows no link, if no application is known.

        Raises the errors of ledger_session(), which Airflow logs.
        """
        from exactbatch.ledger import Ledger, ledger_session
        from exactbatch.postgres.connection import transaction

        batch: _ProcessesBatch = operator
        batch_id, plan_id = named_batch(batch.batch_id, batch.plan_id)
        postgres = batch.connections.settings().postgres
        with ledger_session(postgres, "exactbatch link") as connection, transaction(connection):
            application_id = Ledger(connection).batch(batch_id, plan_id).application_id
        return application_url(batch.connections.spark_history, application_id) or ""


def links_of(connections: "Connections") -> tuple[BaseOperatorLink, ...]:
    """Return the links of a task; one to Spark only if there is a history server."""
    return (BatchLink(), SparkApplicationLink()) if connections.spark_history else (BatchLink(),)
