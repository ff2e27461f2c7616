"""The connections of Airflow as the page reads them, and the text of errors over them."""

from airflow.models.connection import Connection as AirflowConnection

from exactbatch.airflow.versions import AirflowNotFoundException
from exactbatch.errors import ConfigurationError, ExactbatchError


def airflow_connection(conn_id: str) -> AirflowConnection:
    """Return a connection of Airflow. Raises ConfigurationError if it does not exist."""
    try:
        return AirflowConnection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"Airflow's API server finds no connection {conn_id!r}. Create it, or give the API server the "
            f"environment and the secrets backend that tasks have."
        ) from None


def error_text(error: BaseException) -> str:
    """Return a message for the page."""
    return str(error) if isinstance(error, ExactbatchError) else f"{type(error).__name__}"
