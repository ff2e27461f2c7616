"""Checks of the connections: why a server cannot be reached or used, by cause."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from exactbatch.batch.tested_versions import of_postgres
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.admin import admin_client, describe_cluster
from exactbatch.operations.doctor.finding import Finding
from exactbatch.postgres.connection import Connection, connect
from exactbatch.settings import KAFKA, POSTGRES, Settings

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


def connection_finding(server: str, variable: str, error: ExactbatchError) -> Finding:
    """Return the finding for a server that cannot be reached or used; `variable` has its connection."""
    message = str(error)
    for cause, pattern, remedy in _CAUSES:
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
