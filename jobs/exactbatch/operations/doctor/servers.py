"""Checks of the connections: why a server cannot be reached or used, by cause, whether others in the network can read
what goes to Postgres and to schema registries, and Airflow's pools.

The pools are asked for through Airflow's REST API, without importing Airflow.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx
from psycopg2.extensions import parse_dsn

from exactbatch.batch.tested_versions import of_postgres
from exactbatch.errors import ExactbatchError, TokenUnavailable
from exactbatch.formats.registry.registry_properties import list_registries, sends_password_openly
from exactbatch.kafka.admin import admin_client, describe_cluster
from exactbatch.operations.airflow_api import airflow_api, airflow_url, pool_slots
from exactbatch.operations.doctor.finding import Finding
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, connect
from exactbatch.settings import KAFKA, POSTGRES, Settings
from exactbatch.tables import Tables
from exactbatch.tokens.token import LOOPBACK

TIMEOUT: Final = 3.0  # seconds that a statement waits for a lock
_STATEMENT_TIMEOUT: Final = 10.0  # seconds
# The cause, how the messages of libpq and of both Kafka clients are recognized, and the remedy.
_CAUSES: Final = (
    (
        "its host name is not resolved",
        r"could not translate host name|[Ff]ailed to resolve|Name or service not known|name resolution",
        "Correct the host in {where}, or the DNS of this machine.",
    ),
    (
        "it refuses connections",
        r"Connection refused",
        "Start the server, or correct host and port in {where}.",
    ),
    (
        "the database does not exist",
        r'database ".*" does not exist',
        "Create the database, or correct dbname in {where}.",
    ),
    (
        "it refuses the login",
        r"authentication failed|Authentication failed|SASL|sasl\.|no pg_hba\.conf entry|role \".*\" does not exist|"
        r"no password supplied",
        "Correct the user and the password in {where}, or allow the login on the server.",
    ),
    (
        "TLS fails",
        r"SSL|ssl\.|certificate|security\.protocol",
        "Correct the TLS parameters in {where}: the authority, the host name, and whether the server has TLS.",
    ),
    (
        "it does not answer",
        r"timeout expired|timed out|does not answer",
        "Check that the server is up, and that no firewall is between it and this machine.",
    ),
)
_CHECK: Final = "encryption"
_VERIFIED: Final = "verify-full"
_DEFAULT: Final = "default_pool"


def connection_finding(server: str, variable: str, error: ExactbatchError) -> Finding:
    """Return the finding for a server that cannot be reached or used; `variable` has its connection."""
    message = str(error)
    # A message about tokens has the words of another server, which issues them.
    for cause, pattern, remedy in () if isinstance(error, TokenUnavailable) else _CAUSES:
        if re.search(pattern, message):
            found = f"no connection to {server}, because {cause}: {message}"
            return Finding(f"{server} connection", "problem", found, remedy.format(where=variable))
    return Finding(f"{server} connection", "problem", message, f"Correct {variable} as the message says.")


def check_kafka(settings: Settings) -> Iterator[Finding]:
    """Connect to Kafka. Raises nothing: an error is a finding."""
    try:
        with admin_client(settings.kafka) as client:
            cluster = describe_cluster(client)
    except ExactbatchError as error:
        yield connection_finding("Kafka", KAFKA, error)
        return
    yield Finding("Kafka connection", "ok", f"cluster {cluster.cluster_id} with {cluster.brokers} brokers")


@contextmanager
def postgres_connection(settings: Settings) -> Iterator[Connection]:
    """Connect to Postgres with short timeouts. Raises as connect() does."""
    connection = connect(
        settings.postgres,
        application="exactbatch doctor",
        timeout=TIMEOUT,
        statement_timeout=_STATEMENT_TIMEOUT,
    )
    try:
        yield connection
    finally:
        connection.close()


def check_postgres(settings: Settings) -> Iterator[Finding]:
    """Connect to Postgres, which also verifies the settings of the session. Raises nothing: an error is a finding."""
    try:
        with postgres_connection(settings) as connection:
            info = connection.info
            yield Finding(
                "Postgres connection",
                "ok",
                f"{of_postgres(info.server_version)} at {info.host}, database {info.dbname}, login {info.user}",
            )
    except ExactbatchError as error:
        yield connection_finding("Postgres", POSTGRES, error)


def check_encryption(settings: Settings, pipelines: Mapping[str, Pipeline | Tables]) -> Iterator[Finding]:
    """Yield the connections that are not encrypted, or whose server is not verified."""
    found = [*_of_postgres(settings), *_of_registries(settings, pipelines)]
    yield from found or [
        Finding(
            _CHECK,
            "ok",
            "no connection to Postgres or to the registry of a named pipeline was found that others could read",
        )
    ]


def _of_postgres(settings: Settings) -> Iterator[Finding]:
    given = parse_dsn(settings.postgres)
    hosts = [
        host
        for name in ("hostaddr", "host")
        for host in given.get(name, os.environ.get(f"PG{name.upper()}", "")).split(",")
    ]
    mode = given.get("sslmode", os.environ.get("PGSSLMODE", "prefer"))
    if mode != _VERIFIED and any(
        host and not host.startswith(("/", "@")) and host not in LOOPBACK for host in hosts
    ):
        yield Finding(
            _CHECK,
            "warning",
            f"Postgres is reached with sslmode={mode}, which does not verify the server: someone else on the "
            "network can impersonate it",
            f"Set sslmode={_VERIFIED} and sslrootcert in {POSTGRES}.",
        )


def _members(pipeline: Pipeline | Tables) -> Iterator[Pipeline]:
    """Yield the pipelines of a reference. Topics of a pattern are left out: only Kafka knows them."""
    if isinstance(pipeline, Pipeline):
        yield pipeline
    elif isinstance(pipeline.topic_names, tuple):
        yield from filter(None, map(pipeline.member, pipeline.topic_names))


def _of_registries(settings: Settings, pipelines: Mapping[str, Pipeline | Tables]) -> Iterator[Finding]:
    members = [member for each in pipelines.values() for member in _members(each)]
    formats = [each for member in members for each in (member.value, member.message_key)]
    registries = sorted({registry for each in formats for registry in list_registries(each)})
    for registry in registries:
        if (address := sends_password_openly(registry, settings.kafka)) is not None:
            yield Finding(
                _CHECK,
                "problem",
                f"the registry's password or token would go to {address} without encryption",
                f"Write the address with https, or remove the credentials from {KAFKA}.",
            )


def check_pools(connection_id: str | None, names: Sequence[str]) -> Iterator[Finding]:
    """Look for the default pool and for these pools, and whether they have slots."""
    if connection_id is None:
        yield Finding(
            "Airflow's pools", "ok", "not asked for: --airflow names a connection to Airflow's REST API"
        )
        return
    variable = f"AIRFLOW_CONN_{connection_id.upper()}"
    text = os.environ.get(variable)
    if not text:
        yield Finding(
            "Airflow's pools",
            "problem",
            f"the environment variable {variable} is not set",
            f"Set {variable} to the URI of Airflow's REST API.",
        )
        return
    url, login, password = _access(text)
    try:
        with airflow_api(url, login, password) as client:
            pools = {name: pool_slots(client, name) for name in (_DEFAULT, *names)}
    except (httpx.HTTPError, KeyError, ValueError) as error:
        yield Finding(
            "Airflow's pools",
            "problem",
            f"Airflow's REST API at {url} does not answer as expected: {type(error).__name__}: {error}",
            f"Check that Airflow is up, and correct host, login and password in {variable}.",
        )
        return
    wrong = False
    for name, slots in pools.items():
        if slots is None:
            wrong = True
            yield Finding(
                "Airflow's pools",
                "problem",
                f"Airflow has no pool {name!r}, so it would never start the tasks that name it",
                f"Run `airflow pools set {name} 1 exactbatch`.",
            )
        elif slots == 0:
            wrong = True
            yield Finding(
                "Airflow's pools",
                "problem",
                f"the pool {name!r} has no slots",
                f"Run `airflow pools set {name} 1 exactbatch`.",
            )
    if not wrong:
        yield Finding("Airflow's pools", "ok", f"{', '.join(pools)}: exist and have slots")


def _access(text: str) -> tuple[str, str | None, str | None]:
    """Return URL, login and password of a connection of Airflow, written as JSON or as a URI."""
    if text.lstrip().startswith("{"):
        fields = json.loads(text)
        url = airflow_url(fields.get("host"), fields.get("port"))
        return url, fields.get("login"), fields.get("password")
    # The host of a connection may begin with its own scheme: http://https://host, or http://https%3A%2F%2Fhost.
    if text.count("://") > 1:
        text = text.partition("://")[2]
    parts = urlsplit(text)
    host = unquote(parts.hostname or "localhost")
    if "/" in host:  # urlsplit() writes a host in lower case, but a path has its own
        host = unquote(parts.netloc.rpartition("@")[2].partition(":")[0])
    url = airflow_url(host if "://" in host else f"{parts.scheme}://{host}", parts.port)
    login, password = (None if each is None else unquote(each) for each in (parts.username, parts.password))
    return url, login, password
