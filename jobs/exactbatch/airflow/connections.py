"""Airflow's connections as the settings of a batch."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook
from psycopg2.extensions import make_dsn

from exactbatch.errors import ConfigurationError
from exactbatch.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The ids of the connections that a pipeline's DAG uses.

    kafka      its extra holds client properties under librdkafka's dotted names; a host and port, and a login
               and password, stand for bootstrap.servers, sasl.username and sasl.password
    postgres   host, port, schema (the database), login and password; its extra holds further libpq parameters
    spark      the master, as Airflow's Spark connection has it
    airflow    Airflow's own REST API, host (with http:// or https://), port, login and password; when it is
               given, what a task has to tell about its run is in its note, too
    """

    kafka: str = "kafka_default"
    postgres: str = "postgres_default"
    spark: str = "spark_default"
    airflow: str | None = None

    def settings(self) -> Settings:
        """Ask Airflow for the connections, inside a task; their passwords are masked in its logs.

        Raises ConfigurationError for what is not complete, and Airflow's own error for a missing connection.
        """
        return Settings(
            kafka=_kafka(BaseHook.get_connection(self.kafka)),
            postgres=_postgres(BaseHook.get_connection(self.postgres)),
        )

    def note(self, ti: Any, text: str) -> None:
        """Write a task's note, where there is a connection to Airflow's API: a task cannot do so by itself.

        Raises httpx.HTTPError when Airflow refuses.
        """
        if self.airflow is None:
            return
        import httpx  # not at the top: a DAG file that is parsed has no use for it

        connection = BaseHook.get_connection(self.airflow)
        host = connection.host or "http://localhost"
        base = f"{host}:{connection.port}" if connection.port else host
        with httpx.Client(base_url=base, timeout=30) as client:
            login = {"username": connection.login, "password": connection.password}
            token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
            client.patch(
                f"/api/v2/dags/{ti.dag_id}/dagRuns/{quote(ti.run_id, safe='')}/taskInstances/{ti.task_id}",
                headers={"Authorization": f"Bearer {token}"},
                json={"note": text},
            ).raise_for_status()


def _kafka(connection: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if connection.host:
        properties["bootstrap.servers"] = f"{connection.host}:{connection.port or 9092}"
    if connection.login:
        properties["sasl.username"] = connection.login
        properties["sasl.password"] = connection.password
    properties |= connection.extra_dejson
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            f"expected the Airflow connection {connection.conn_id!r} to have a host, or bootstrap.servers in "
            f'its extra, found neither. Set its extra to {{"bootstrap.servers": "host:9092"}}.'
        )
    return properties


def _postgres(connection: Any) -> str:
    if not connection.host and not connection.extra_dejson:
        raise ConfigurationError(
            f"expected the Airflow connection {connection.conn_id!r} to have a host, found none. Set its host, "
            f"port, schema (the database), login and password."
        )
    parameters = {
        "host": connection.host,
        "port": connection.port,
        "dbname": connection.schema,
        "user": connection.login,
        "password": connection.password,
        **connection.extra_dejson,
    }
    return str(make_dsn(**{name: value for name, value in parameters.items() if value not in (None, "")}))
