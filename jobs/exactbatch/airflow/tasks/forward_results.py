"""The task forward_results: send what batches have committed to the pipeline's topic."""

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.versions import AirflowSkipException
from exactbatch.discovery import load_pipeline
from exactbatch.errors import Fenced
from exactbatch.forwarding.forward import forward_results as send
from exactbatch.kafka.client_properties import check_properties
from exactbatch.ledger import check_schema, ledger_session


def forward_results(reference: str, connections: Connections) -> None:
    """Send the results that wait in the outbox of the pipeline that `reference` names.

    Raises AirflowSkipException if there are none, or if another forwarder sends them, AirflowFailException for a
    terminal error, and a retryable error of exactbatch.
    """
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
