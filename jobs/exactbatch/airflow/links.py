"""The links that Airflow shows with a task that processes a batch. They need no login of their own.

Airflow asks for them once a task has ended, in the task's process, and keeps them as XComs.
"""

from typing import Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from exactbatch.airflow.check_batches import named_batches
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.history import application_url
from exactbatch.postgres.connection import transaction


class BatchLink(BaseOperatorLink):
    """The batch on the Pipelines page. The address is relative to Airflow's, which may be below a path."""

    name = "Batch in exactbatch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        (batch,) = named_batches(operator.batches)
        return "exactbatch/?" + urlencode(
            {"dag": ti_key.dag_id, "run": ti_key.run_id, "batch": batch.batch_id}
        )


class SparkApplicationLink(BaseOperatorLink):
    """The Spark application of the batch's last launch, on Spark's history server."""

    name = "Spark application"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002
        """Return the address; an empty text, for which Airflow shows no link, if no application is known.

        Raises the errors of ledger_session(), which Airflow logs.
        """
        # Parsing a DAG file, which needs no ledger, imports this module.
        from exactbatch.ledger import Ledger, ledger_session

        (batch,) = named_batches(operator.batches)
        postgres = operator.connections.settings().postgres
        with ledger_session(postgres, "exactbatch link") as connection, transaction(connection):
            application_id = Ledger(connection).batches.read(batch.batch_id, batch.plan_id).application_id
        return application_url(operator.connections.spark_history, application_id) or ""


def build_links(connections: Connections) -> tuple[BaseOperatorLink, ...]:
    """Return the links of a task; one to Spark only if there is a history server."""
    return (BatchLink(), SparkApplicationLink()) if connections.spark_history else (BatchLink(),)
