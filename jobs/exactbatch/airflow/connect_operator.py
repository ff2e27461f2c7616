"""The operator that processes a batch through a Spark Connect server, in the task's own process."""

from typing import Any

from airflow.sdk import BaseOperator

from exactbatch.airflow.batches import named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.launch import done_already
from exactbatch.airflow.links import links_of
from exactbatch.airflow.openlineage import BatchLineage
from exactbatch.airflow.versions import AirflowFailException, BaseHook
from exactbatch.errors import ExactbatchError


class ProcessBatchOnServerOperator(BatchLineage, BaseOperator):
    """Process a planned batch with engine="connect". A terminal error of the batch ends the task at once.

    Secrets reach the server's Python workers in the pickled tasks only.
    """

    # Airflow stores them with the DAG, the last four for the Pipelines page, which does not import the pipeline.
    template_fields = (
        *("batch_id", "plan_id", "kafka_conn_id", "postgres_conn_id"),
        *("replays_compacted", "spark_history"),
    )

    def __init__(
        self,
        *,
        connections: Connections,
        pipeline: str,
        batch_id: str,
        plan_id: str = "",
        replays_compacted: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.connections = connections
        self.kafka_conn_id = connections.kafka
        self.postgres_conn_id = connections.postgres
        self.replays_compacted = replays_compacted
        self.spark_history = connections.spark_history
        self.operator_extra_links = links_of(connections)
        self.pipeline = pipeline
        self.batch_id = batch_id
        self.plan_id = plan_id
        self._engine: Any = None

    def execute(self, context: Any) -> None:
        """Process the batch, unless it is already done.

        Raises AirflowFailException for a terminal error of the batch, and a retryable error of exactbatch otherwise.
        """
        ti = context["ti"]
        with airflow_errors():
            batch_id, plan_id = named_batch(self.batch_id, self.plan_id)
            settings = self.connections.settings()
            if done := done_already(settings, batch_id, plan_id, ti):
                self.log.info(done)
                self.connections.note(ti, done)
                return
            # Imported here: a DAG file is parsed every few seconds.
            from exactbatch.batch.engines.connect_engine import ConnectEngine
            from exactbatch.batch.job import process_batch
            from exactbatch.discovery import load_pipeline

            self._engine = ConnectEngine(server_url(self.connections.spark))
            try:
                published = process_batch(
                    self._engine, load_pipeline(self.pipeline), batch_id, settings, plan_id
                )
            except ExactbatchError as error:
                if error.retryable or not (done := done_already(settings, batch_id, plan_id, ti)):
                    raise
                self.log.info(done)
                return
        self.log.info("%s", published)

    def on_kill(self) -> None:
        """End what the server runs for this task; Airflow ends this process soon after."""
        if self._engine is not None:
            self._engine.interrupt()


def server_url(conn_id: str) -> str:
    """Return the URL of a Spark Connect connection: host, port, login (the user) and password (the token).

    Raises AirflowFailException for a connection of another type.
    """
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    connection = BaseHook.get_connection(conn_id)
    if connection.conn_type != SparkConnectHook.conn_type:
        raise AirflowFailException(
            f"expected the Airflow connection {conn_id!r} to have the type {SparkConnectHook.conn_type}, found "
            f"{connection.conn_type}: engine='connect' needs the address of a Spark Connect server."
        )
    server, separator, parameters = SparkConnectHook(conn_id).get_connection_url().partition("/;")
    # The hook leaves a slash in a token as it is; PySpark would take it for a path.
    return server + separator + parameters.replace("/", "%2F")
