"""Airflow's connections as the settings of a batch, as access to Airflow's own REST API, and as addresses on Spark's
history server.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import psycopg2
from psycopg2.extensions import make_dsn

from exactbatch.airflow.versions import BaseHook
from exactbatch.errors import ConfigurationError
from exactbatch.formats.registry.registry_properties import find_token_provider
from exactbatch.kafka.properties import TOKEN_METHOD, uses_tokens
from exactbatch.operations.airflow_api import airflow_api, airflow_url, pool_slots
from exactbatch.options import names_options
from exactbatch.postgres.dsn import TOKEN
from exactbatch.settings import Settings, parse_object
from exactbatch.tokens.providers import OWN

# In the extra, Airflow's hooks for Postgres take these in addition to libpq's parameters.
_AIRFLOW_ONLY: Final = frozenset(
    {
        "aws_conn_id",
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
# With these, Airflow's hook requests the password from a cloud; and the provider of tokens that does so here.
_CLOUD_PASSWORD: Final = {"azure_conn_id": "azure", "iam": "aws_rds_iam"}
_REDSHIFT: Final = ("redshift", "redshift-serverless")
# The domains of the brokers for which Airflow's hook makes tokens, and the provider that does so here.
_CLOUD_BROKERS: Final = {".amazonaws.com": "aws_msk_iam", ".cloud.goog": "gcp"}

logger = logging.getLogger(__name__)


def is_web_address(address: str) -> bool:
    """True for http:// and https:// with a host; a link with any other scheme may run code in a browser."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def check_history_address(address: str | None) -> None:
    """Raise ConfigurationError unless the address of a history server, if there is one, can be opened in a browser."""
    if address is not None and not is_web_address(address):
        raise ConfigurationError(
            f"expected spark_history_url as the address of Spark's history server, such as http://history:18080, found "
            f"{address!r}"
        )


def application_url(address: str | None, application_id: str | None) -> str | None:
    """Return the page of an application on the history server; None if either is not known."""
    if not address or not application_id:
        return None
    return f"{address.rstrip('/')}/history/{quote(application_id, safe='')}/"


@names_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The IDs of the connections that a pipeline's DAG uses.

    Attributes:
        kafka: Its extra has client properties under librdkafka's dotted names. Host and port may replace
            bootstrap.servers; login and password may replace sasl.username and sasl.password.
        postgres: Host, port, schema (the database), login and password. Its extra has further libpq parameters.
        spark: The master, as in any Spark connection of Airflow.
        airflow: Airflow's own REST API: host (with http:// or https://, and the path if Airflow is below one), port,
            login and password. With it, tasks write notes, and plan_batch checks that the pools exist.
        spark_history_url: No connection, but the address of Spark's history server as a browser reaches it, for links:
            "https://history.example.org".
        kafka_token: The provider of the tokens with which both Kafka clients log in: "oidc", "aws_msk_iam", "azure",
            "gcp", or a function of your own as "module:function". It replaces the extra's sasl.oauthbearer.method.
        postgres_token: The provider of the tokens with which connections to Postgres log in: "aws_rds_iam", "azure",
            "gcp", or a function of your own. It replaces the connection's password.

    Raises ConfigurationError for a spark_history_url that is not a web address.
    """

    kafka: str = "kafka_default"
    postgres: str = "postgres_default"
    spark: str = "spark_default"
    airflow: str | None = None
    spark_history_url: str | None = None
    kafka_token: str | None = None
    postgres_token: str | None = None

    def __post_init__(self) -> None:
        check_history_address(self.spark_history_url)

    def settings(self) -> Settings:
        """Read the connections inside a task. Airflow masks their passwords in its logs.

        Raises ConfigurationError for an incomplete connection, and Airflow's own error for a missing one.
        """
        kafka = kafka_properties(BaseHook.get_connection(self.kafka))
        if self.kafka_token is not None:
            kafka |= {"sasl.mechanism": "OAUTHBEARER", TOKEN_METHOD: self.kafka_token}
        postgres = postgres_dsn(BaseHook.get_connection(self.postgres))
        if self.postgres_token is not None:
            postgres = make_dsn(postgres, password=f"{TOKEN}{self.postgres_token}")
        return Settings(kafka=kafka, postgres=postgres)

    def note(self, ti: Any, text: str) -> None:
        """Write a task's note, if there is a connection to Airflow's API: a task has no other access to notes.

        If that fails, only a warning is logged.
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
            logger.warning("the task's note was not written: %s: %s", type(error).__name__, error)

    def check_pool(self, name: str) -> None:
        """Raise ConfigurationError if Airflow's API reports that a pool is missing.

        Airflow itself reports this only in its scheduler's log, and lets the task wait forever.
        """
        if self.airflow is None:
            logger.info(
                "the next task waits for a slot of the pool %r; it waits forever if that pool does not exist",
                name,
            )
            return
        try:
            with _api(self.airflow) as client:
                slots = pool_slots(client, name)
        except Exception as error:
            logger.warning(
                "could not check that the pool %r exists: %s: %s", name, type(error).__name__, error
            )
            return
        if slots is None:
            raise ConfigurationError(
                f"Airflow has no pool {name!r}, so it would never start the next task. Create the pool with "
                f"`airflow pools set {name} 1 'exactbatch'`, or omit the pool in pipeline_dag to use default_pool."
            )


def _api(conn_id: str) -> Any:
    """Return a client that is logged in to the REST API of an Airflow connection."""
    connection = BaseHook.get_connection(conn_id)
    url = airflow_url(connection.host, connection.port)
    return airflow_api(url, connection.login, connection.password)


def kafka_properties(connection: Any) -> dict[str, Any]:
    """Return the Kafka client properties of a connection. Raises ConfigurationError if it is incomplete."""
    properties: dict[str, Any] = {}
    if connection.host:
        properties["bootstrap.servers"] = ",".join(
            _with_port(host.strip(), connection.port or 9092) for host in connection.host.split(",")
        )
    if connection.login:
        properties["sasl.username"] = connection.login
        if connection.password:
            properties["sasl.password"] = connection.password
    for name, value in _extra(connection).items():
        if properties.setdefault(name, value) != value:
            raise ConfigurationError(
                f"the Airflow connection {connection.conn_id!r} has two values of {name}: one in its extra, and "
                f"one in its host, login or password. Keep one of them."
            )
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            f"the Airflow connection {connection.conn_id!r} has neither a host nor bootstrap.servers in its "
            f'extra. Set its extra to {{"bootstrap.servers": "host:9092"}}.'
        )
    if uses_tokens(properties) and TOKEN_METHOD not in properties:
        servers = [server.rpartition(":")[0] for server in properties["bootstrap.servers"].split(",")]
        for domain, provider in _CLOUD_BROKERS.items():
            if all(server.endswith(domain) for server in servers):
                properties[TOKEN_METHOD] = provider
    _check_provider(connection, properties.get(TOKEN_METHOD), "kafka_token")
    _check_provider(connection, find_token_provider(properties), None)
    return properties


def _check_provider(connection: Any, provider: Any, argument: str | None) -> None:
    """Refuse a provider that is no provider of exactbatch's own.

    Whoever may edit a connection is not always somebody who may choose what code runs: Airflow's own providers allow
    callbacks of connections by a list of the deployment, for that reason.
    """
    if provider is not None and provider not in OWN:
        allowed, remedy = ", ".join(OWN), ""
        if argument is None:
            allowed = "gcp for the schema registry"
        else:
            remedy = f" Name a function of your own in the DAG: Connections({argument}='module:function')."
        raise ConfigurationError(
            f"the Airflow connection {connection.conn_id!r} names {provider!r} as a provider of tokens, and may only "
            f"name {allowed}.{remedy}"
        )


def _with_port(host: str, port: int) -> str:
    """Add a port to a host without one, after its protocol if it has that. An IPv6 address has brackets if it has a
    port."""
    protocol, slashes, address = host.rpartition("://")
    colons = address.rpartition("]")[2].count(":")
    if colons == 1:
        return host
    return f"{protocol}{slashes}[{address}]:{port}" if colons else f"{host}:{port}"


def postgres_dsn(connection: Any) -> str:
    """Return a connection as a libpq connection string. Raises ConfigurationError if it is incomplete."""
    extra = _extra(connection)
    if not connection.host and not extra:
        raise ConfigurationError(
            f"the Airflow connection {connection.conn_id!r} has no host. Set its host, port, schema (the database), "
            f"login and password."
        )
    for name in _REDSHIFT:
        if extra.pop(name, False):
            raise ConfigurationError(
                f"the Airflow connection {connection.conn_id!r} has {name!r} in its extra, and Redshift is no target "
                f"of exactbatch. Remove it, and let the connection name a Postgres."
            )
    password = connection.password
    for name, provider in _CLOUD_PASSWORD.items():
        if extra.pop(name, False):
            password = f"{TOKEN}{provider}"
    parameters = {
        "host": connection.host,
        "port": connection.port,
        "dbname": connection.schema,
        "user": connection.login,
        "password": password,
        **{name: value for name, value in extra.items() if name not in _AIRFLOW_ONLY},
    }
    if str(parameters["password"]).startswith(TOKEN):
        _check_provider(connection, parameters["password"].removeprefix(TOKEN), "postgres_token")
    try:
        return str(make_dsn(**{name: value for name, value in parameters.items() if value not in (None, "")}))
    except (psycopg2.ProgrammingError, TypeError) as error:
        raise ConfigurationError(
            f"the Airflow connection {connection.conn_id!r} has an entry in its extra that is not a libpq "
            f"parameter: {' '.join(str(error).split())}. Remove it from the extra."
        ) from None


def _extra(connection: Any) -> dict[str, Any]:
    """Parse the extra of a connection.

    Airflow treats an extra that is not JSON as an empty one, which would switch TLS off without notice.
    """
    if not connection.extra:
        return {}
    try:
        extra = parse_object(connection.extra)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the extra of the Airflow connection {connection.conn_id!r}: {error}."
        ) from None
    except (TypeError, ValueError):
        extra = None
    if not isinstance(extra, dict):
        raise ConfigurationError(
            f"the extra of the Airflow connection {connection.conn_id!r} is not a JSON object. Write it with double "
            f'quotes, as {{"sslmode": "verify-full"}}.'
        )
    return dict(connection.extra_dejson)  # reading it makes Airflow mask its values in logs
