"""Airflow's connections as the settings of a batch."""

import logging
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import psycopg2
from airflow.sdk import BaseHook
from psycopg2.extensions import make_dsn

from exactbatch.errors import ConfigurationError
from exactbatch.settings import Settings, parse_object

# What Airflow's own hooks for Postgres take from the extra beside libpq's parameters.
_OF_AIRFLOW: Final = frozenset(
    {
        "aws_conn_id",
        "azure_conn_id",
        "client_log_level",
        "cluster-identifier",
        "cluster_identifier",
        "cursor",
        "enable_log_db_messages",
        "region_name",
        "sqlalchemy_query",
        "sqlalchemy_scheme",
        "workgroup-name",
    }
)
# With these, Airflow's hook asks a cloud for the password.
_PASSWORD_ELSEWHERE: Final = ("iam", "redshift", "redshift-serverless")
_NOT_FOUND: Final = 404

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The ids of the connections that a pipeline's DAG uses.

    kafka      its extra holds client properties under librdkafka's dotted names; a host and port, and a login
               and password, stand for bootstrap.servers, sasl.username and sasl.password
    postgres   host, port, schema (the database), login and password; its extra holds further libpq parameters
    spark      the master, as Airflow's Spark connection has it
    airflow    Airflow's own REST API, host (with http:// or https://), port, login and password; when it is
               given, what a task has to tell about its run is in its note, too, and plan_batch looks whether the
               pools are there
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

        A note is decoration: where it cannot be written, the log says so, and nothing fails.
        """
        if self.airflow is None:
            return
        try:
            with _api(self.airflow) as client:
                client.patch(
                    f"/api/v2/dags/{ti.dag_id}/dagRuns/{quote(ti.run_id, safe='')}/taskInstances/{ti.task_id}",
                    json={"note": text},
                ).raise_for_status()
        except Exception as error:
            log.warning("the task's note was not written: %s: %s", type(error).__name__, error)

    def check_pool(self, name: str) -> None:
        """Raise ConfigurationError for a pool that Airflow does not have, as far as its API can be asked.

        Airflow itself says so in its scheduler's log alone, and lets the task wait for ever.
        """
        if self.airflow is None:
            log.info("the next task waits for a slot of the pool %r, which has to be there", name)
            return
        try:
            with _api(self.airflow) as client:
                status = client.get(f"/api/v2/pools/{quote(name, safe='')}").status_code
        except Exception as error:
            log.warning("nobody knows whether there is a pool %r: %s: %s", name, type(error).__name__, error)
            return
        if status == _NOT_FOUND:
            raise ConfigurationError(
                f"Airflow has no pool {name!r}, so it would never start the next task. Create it, "
                f"`airflow pools set {name} 1 'exactbatch'`, or give pipeline_dag no pool: then Airflow's "
                f"default_pool serves."
            )


def _api(conn_id: str) -> Any:
    """A client of Airflow's REST API that is logged in."""
    import httpx  # not at the top: a DAG file that is parsed has no use for it

    connection = BaseHook.get_connection(conn_id)
    host = connection.host or "http://localhost"
    base = f"{host}:{connection.port}" if connection.port else host
    login = {"username": connection.login, "password": connection.password}
    answer = httpx.post(f"{base}/auth/token", json=login, timeout=30).raise_for_status()
    token = answer.json()["access_token"]
    return httpx.Client(base_url=base, timeout=30, headers={"Authorization": f"Bearer {token}"})


def _kafka(connection: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if connection.host:
        properties["bootstrap.servers"] = ",".join(
            _with_port(each.strip(), connection.port or 9092) for each in connection.host.split(",")
        )
    if connection.login:
        properties["sasl.username"] = connection.login
        if connection.password:
            properties["sasl.password"] = connection.password
    for name, value in _extra(connection).items():
        if properties.setdefault(name, value) != value:
            raise ConfigurationError(
                f"the Airflow connection {connection.conn_id!r} has two values of {name}: one in its extra, and "
                f"one by its host, login or password. Keep one of them."
            )
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            f"expected the Airflow connection {connection.conn_id!r} to have a host, or bootstrap.servers in "
            f'its extra, found neither. Set its extra to {{"bootstrap.servers": "host:9092"}}.'
        )
    return properties


def _with_port(host: str, port: int) -> str:
    """A host with its own port, or with this one; an IPv6 address with a port is in brackets."""
    beyond = host.rpartition("]")[2]
    if ":" in beyond and beyond.count(":") == 1:
        return host
    return f"[{host}]:{port}" if beyond.count(":") > 1 else f"{host}:{port}"


def _postgres(connection: Any) -> str:
    extra = _extra(connection)
    if not connection.host and not extra:
        raise ConfigurationError(
            f"expected the Airflow connection {connection.conn_id!r} to have a host, found none. Set its host, "
            f"port, schema (the database), login and password."
        )
    for name in _PASSWORD_ELSEWHERE:
        if extra.pop(name, False):
            raise ConfigurationError(
                f"the Airflow connection {connection.conn_id!r} has {name!r} in its extra: exactbatch asks no "
                f"cloud for a password. Give the connection a login and a password, or a passfile in its extra."
            )
    parameters = {
        "host": connection.host,
        "port": connection.port,
        "dbname": connection.schema,
        "user": connection.login,
        "password": connection.password,
        **{name: value for name, value in extra.items() if name not in _OF_AIRFLOW},
    }
    try:
        return str(make_dsn(**{name: value for name, value in parameters.items() if value not in (None, "")}))
    except (psycopg2.ProgrammingError, TypeError) as error:
        raise ConfigurationError(
            f"the Airflow connection {connection.conn_id!r} has something in its extra that is no parameter of "
            f"libpq: {' '.join(str(error).split())}. Remove it from the extra."
        ) from None


def _extra(connection: Any) -> dict[str, Any]:
    """The extra of a connection. Airflow takes one that is no JSON for an empty one, and TLS would be off then."""
    if not connection.extra:
        return {}
    try:
        found = parse_object(connection.extra)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the extra of the Airflow connection {connection.conn_id!r}: {error}."
        ) from None
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"the extra of the Airflow connection {connection.conn_id!r} is no JSON object. Write it with double "
            f'quotes, as {{"sslmode": "verify-full"}}.'
        )
    masked = connection.extra_dejson  # Airflow masks its values in logs from now on
    return dict(masked)
