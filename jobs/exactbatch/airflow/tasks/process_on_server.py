"""Process a batch through a Spark Connect server, in the task's own process."""

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

from exactbatch.airflow.versions import AirflowFailException, BaseHook
from exactbatch.batch.engines.connect_engine import ConnectEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.discovery import load_pipeline
from exactbatch.model import PlannedBatch
from exactbatch.settings import Settings


def open_engine(conn_id: str) -> ConnectEngine:
    """Return the engine for the server of a Spark Connect connection. Raises the errors of server_url()."""
    return ConnectEngine(server_url(conn_id))


def process_on_server(
    engine: ConnectEngine, reference: str, batch: PlannedBatch, settings: Settings
) -> Published:
    """Process a batch of the pipeline that `reference` names. Raises the errors of process_batch()."""
    return process_batch(engine, load_pipeline(reference), batch.batch_id, settings, batch.plan_id)


def server_url(conn_id: str) -> str:
    """Return the URL of a Spark Connect connection: host, port, login (the user) and password (the token).

    Raises AirflowFailException for a connection of another type.
    """
    connection = BaseHook.get_connection(conn_id)
    if connection.conn_type != SparkConnectHook.conn_type:
        raise AirflowFailException(
            f"expected the Airflow connection {conn_id!r} to have the type {SparkConnectHook.conn_type}, found "
            f"{connection.conn_type}: engine='connect' needs the address of a Spark Connect server."
        )
    server, separator, parameters = SparkConnectHook(conn_id).get_connection_url().partition("/;")
    # The hook leaves a slash in a token as it is; PySpark would take it for a path.
    return server + separator + parameters.replace("/", "%2F")
