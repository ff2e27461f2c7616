"""The task forward_results: send what batches have committed to the pipeline's topic.

The DAG file imports this module whenever Airflow parses it, so heavy imports are inside the task.
"""

from typing import Any

from airflow.sdk import task

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.versions import AirflowSkipException


def forward_task(reference: str, connections: Connections) -> Any:
    """Return the task forward_results, for the DAG in whose block this is called.

    It also runs if there was no batch to process: results of earlier runs may wait.
    """

    @task(trigger_rule="none_failed")
    def forward_results() -> None:
        """Send the results that wait in the outbox. Skip if there are none, or if another forwarder sends them."""
        from exactbatch.discovery import load_pipeline
        from exactbatch.errors import Fenced
        from exactbatch.forwarding.forward import forward_results as send
        from exactbatch.kafka.client_properties import check_properties
        from exactbatch.ledger import check_schema, ledger_session

        with airflow_errors():
            pipeline, settings = load_pipeline(reference), connections.settings()
            check_properties(settings.kafka)
            with ledger_session(settings.postgres, "exactbatch forward", pipeline) as connection:
                check_schema(connection)
                try:
                    forwarded = send(connection, settings, pipeline)
                except Fenced as error:
                    # Nothing has failed: the other one, which began later, also sends what this run has committed.
                    raise AirflowSkipException(str(error)) from None
            if not forwarded.sent:
                raise AirflowSkipException(f"the topic {forwarded.topic!r} has all results")
            print(forwarded)  # noqa: T201 - a task's output is its log

    return forward_results()
