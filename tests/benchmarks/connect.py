"""Debezium's JDBC sink in a Kafka Connect worker: insert, and upsert by the same key as exactbatch's Upsert."""

import json
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg2
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient
from psycopg2.extensions import parse_dsn

from exactbatch.columns import Column
from exactbatch.local.child_process import HOST, find_port
from exactbatch.local.java import find_java
from support.logins import password_of

START_TIMEOUT = 300.0  # seconds
_POLL = 0.2  # seconds between two looks at the offsets
# Types of Connect's schemas; Postgres parses what is sent as text (stringtype=unspecified).
_TYPES = {
    "smallint": "int16",
    "integer": "int32",
    "bigint": "int64",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
}


class Worker:
    """A Kafka Connect worker of this process, with the plugin of the archive among `jars`."""

    def __init__(self, jars: Sequence[Path], folder: Path, properties: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        [archive] = (jar for jar in jars if jar.name.endswith(".tar.gz"))
        plugins = folder / "plugins"
        if not plugins.exists():
            with tarfile.open(archive) as files:
                files.extractall(plugins, filter="data")
        self._url = f"http://{HOST}:{(port := find_port(None))}"
        settings = {
            **properties,
            **{f"consumer.{name}": value for name, value in properties.items()},
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": "500",
            "plugin.path": plugins,
            "plugin.discovery": "service_load",  # to look into every class of the plugin takes a minute
            "listeners": f"http://{HOST}:{port}",
            "connector.client.config.override.policy": "All",
        }
        (folder / "worker.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        (folder / "offsets").unlink(missing_ok=True)
        classes = ":".join(str(jar) for jar in jars if jar.suffix == ".jar")
        command = [
            *(find_java(), "-Xmx1g", "-XX:+UseParallelGC", "-cp", classes),
            *("org.apache.kafka.connect.cli.ConnectStandalone", folder / "worker.properties"),
        ]
        self._process = subprocess.Popen(command, cwd=folder)
        self._wait()

    def create(self, name: str, config: Mapping[str, Any]) -> None:
        """Start a connector. Raises HTTPStatusError if its configuration is refused."""
        body = {"name": name, "config": {key: str(value) for key, value in config.items()}}
        httpx.post(f"{self._url}/connectors", json=body, timeout=60).raise_for_status()

    def check(self, name: str) -> None:
        """Raise RuntimeError if a task of the connector has failed."""
        status = httpx.get(f"{self._url}/connectors/{name}/status", timeout=60)
        if status.status_code == httpx.codes.NOT_FOUND:
            return  # it is being created
        for task in [status.json()["connector"], *status.json()["tasks"]]:
            if task["state"] == "FAILED":
                raise RuntimeError(task["trace"])

    def delete(self, name: str) -> None:
        """Stop a connector."""
        httpx.delete(f"{self._url}/connectors/{name}", timeout=60).raise_for_status()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                httpx.get(f"{self._url}/connectors", timeout=5).raise_for_status()
                return
            except httpx.HTTPError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def sink_config(
    dsn: str,
    topic: str,
    target: str,
    columns: Sequence[Column],
    tasks: int,
    key: Sequence[str],
    *,
    flat: bool,
) -> dict[str, Any]:
    """Return the configuration of a sink: insert without a `key`, and upsert by it, tuned for throughput. Values that
    are not `flat` have their schema beside them."""
    server = parse_dsn(dsn)
    url = f"jdbc:postgresql://{server['host']}:{server['port']}/{server['dbname']}"
    schema = {
        "type": "struct",
        "optional": False,
        "fields": [
            {"field": column.name, "type": _TYPES.get(column.type, "string"), "optional": True}
            for column in columns
        ],
    }
    upsert = {
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": ",".join(key),
        "use.reduction.buffer": "true",  # one statement may not change a row twice
    }
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": tasks,
        "topics": topic,
        "connection.url": f"{url}?reWriteBatchedInserts=true&stringtype=unspecified",
        "connection.username": server["user"],
        "connection.password": password_of(dsn),
        "collection.name.format": target,
        "schema.evolution": "none",
        "batch.size": "10000",
        # A worker's own converter would not see the connector's settings of it.
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        **({"value.converter.schema.content": json.dumps(schema)} if flat else {}),
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": "10000",
        "consumer.override.max.partition.fetch.bytes": str(16 * 1024 * 1024),
        "consumer.override.fetch.max.bytes": str(64 * 1024 * 1024),
        **(upsert if key else {"insert.mode": "insert", "primary.key.mode": "none"}),
    }


def create_target(dsn: str, target: str, columns: Sequence[Column], key: Sequence[str]) -> None:
    """Create a table of the value columns, with a primary key for an upsert."""
    definitions = [f'"{column.name}" {column.type}' for column in columns]
    if key:
        definitions.append(f"primary key ({', '.join(key)})")
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"drop table if exists {target}")
        cursor.execute(f"create table {target} ({', '.join(definitions)})")


def load(
    worker: Worker, name: str, config: Mapping[str, Any], properties: Mapping[str, Any], rows: int
) -> None:
    """Run a sink until its consumer group has committed `rows` offsets: Connect commits what was written."""
    admin = AdminClient(dict(properties))
    worker.create(name, config)
    try:
        while _committed(admin, f"connect-{name}") < rows:
            worker.check(name)
            time.sleep(_POLL)
    finally:
        worker.delete(name)


def _committed(admin: AdminClient, group: str) -> int:
    [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    try:
        partitions = future.result(30).topic_partitions
    except KafkaException:
        return 0  # there is no such group yet
    return sum(max(0, partition.offset) for partition in partitions)
