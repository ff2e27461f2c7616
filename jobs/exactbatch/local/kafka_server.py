"""Apache Kafka's broker: one KRaft process, which is broker and controller, and asks every client for a password."""

import logging
import os
import shlex
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from exactbatch.kafka.admin import describe_cluster
from exactbatch.kafka.client_properties import admin_properties
from exactbatch.local.child_process import HOST, Recorded, accepts, spawn
from exactbatch.local.java import find_java
from exactbatch.local.server import NotReady, Progress, Server, silent
from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.state import StateFile, write_secret

LOGGING = Path(__file__).parent / "log4j2.xml"
# The C1 compiler alone would make the start a little faster, and reads much slower.
JVM_OPTIONS = ("-Xms256m", "-Xmx512m", "-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={LOGGING}")
_USER = "exactbatch"
MAX_BATCH_BYTES = 10 * 1024 * 1024


class Broker(Server):
    """The stack's Kafka broker. KAFKA_OPTS adds options for its JVM, as in Kafka's own scripts."""

    name: ClassVar[str] = "kafka"
    title: ClassVar[str] = "Kafka"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": 9092, "controller": 9093}

    def __init__(
        self,
        folder: Path,
        state: StateFile,
        jars: Callable[[], Path],
        progress: Progress = silent,
        *,
        cluster_id: str | None = None,
    ) -> None:
        super().__init__(folder, state, progress)
        self._jars = jars
        self._properties_file = folder / "server.properties"
        # The ID of the cluster for a new data directory.
        self._cluster_id = cluster_id or urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    @property
    def kafka_properties(self) -> dict[str, str]:
        """The client properties, by their dotted names."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _USER,
            "sasl.password": self.secret,
        }

    def _prepare(self) -> None:
        self._choose_secret()
        properties = server_properties(self.ports, self.data_dir, self.secret) | self.settings
        write_secret(self._properties_file, "".join(f"{key}={value}\n" for key, value in properties.items()))
        if not (self.data_dir / "meta.properties").exists():
            self._format()

    def _format(self) -> None:
        self._progress("creating the Kafka data directory")
        # As one argument: an ID may begin with "-", and would be read as an option.
        arguments = ("format", f"--cluster-id={self._cluster_id}", "-c", self._properties_file)
        answer = subprocess.run(
            self._java("kafka.tools.StorageTool", *arguments), capture_output=True, text=True
        )
        if answer.returncode != 0:
            output = (answer.stderr or answer.stdout).strip().splitlines()[-3:]
            raise LocalStackError(
                f"Kafka could not format {self.data_dir}: {' / '.join(output)}. Check the given properties, or delete "
                "the stack with `exactbatch local down --delete`."
            )

    def _spawn(self) -> Recorded:
        command = self._java("kafka.Kafka", self._properties_file)
        return spawn(command, log=self.log_file, cwd=self.folder)

    def _java(self, main: str, *arguments: str | Path) -> list[str | Path]:
        more = shlex.split(os.environ.get("KAFKA_OPTS", ""))
        return [find_java(), *JVM_OPTIONS, *more, "-cp", f"{self._jars()}/*", main, *arguments]

    def _ask(self) -> None:
        # While the port is closed, the client would only log failures.
        if not accepts(self.port):
            raise NotReady(f"nothing listens on port {self.port}")
        logging.getLogger("kafka").setLevel(logging.ERROR)  # it warns of a password in plain text
        client: Any = None
        try:
            timeouts = {"bootstrap_timeout_ms": 5_000, "request_timeout_ms": 5_000}
            client = KafkaAdminClient(**admin_properties(self.kafka_properties) | timeouts)
            cluster_id = describe_cluster(client).cluster_id
        except KafkaError as error:
            raise NotReady(repr(error)) from error
        finally:
            if client is not None:
                client.close()
        if f"cluster.id={cluster_id}" not in (self.data_dir / "meta.properties").read_text().splitlines():
            raise NotReady(f"another Kafka cluster, {cluster_id}, answers on port {self.port}")


def server_properties(ports: Mapping[str, int], data_dir: Path, password: str) -> dict[str, str]:
    """Return the broker's configuration for development: one node that starts and compacts quickly."""
    client, controller = ports["client"], ports["controller"]
    # Nothing leaves the machine, so that a password in plain text is not seen.
    login = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{_USER}" password="{password}" '
        f'user_{_USER}="{password}";'
    )
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"CLIENT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{client}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": login,
        "listener.name.controller.plain.sasl.jaas.config": login,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "log.dirs": str(data_dir),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": str(MAX_BATCH_BYTES),
        "replica.fetch.max.bytes": str(MAX_BATCH_BYTES),
        # Records keep their original timestamps, which may be old: the broker removes none for its age.
        "log.retention.ms": "-1",
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "1000",
        "log.segment.delete.delay.ms": "1000",
        "log.cleaner.backoff.ms": "1000",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.dedupe.buffer.size": "16777216",
        # An idle broker writes nothing: a record twice a second was a third of its work.
        "metadata.max.idle.interval.ms": "0",
        # After a crash, the controller refuses the new process until the session of the old one has expired.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
