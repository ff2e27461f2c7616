"""A Kafka cluster of three brokers, which are its controllers as well: a topic is on all, and two must have it."""

import os
import signal
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.errors import KafkaUnavailable
from exactbatch.kafka.admin import admin_client
from exactbatch.local.child_process import HOST
from exactbatch.local.java import fetch_jars
from exactbatch.local.kafka_server import Broker
from exactbatch.local.state import StateFile, create_secret, write_secret
from support.topics import Topic
from support.waiting import wait_for

NODES: Final = (1, 2, 3)
# So long a broker that says nothing is taken for alive, ms.
SESSION_TIMEOUT: Final = 6000


class ThreeBrokers:
    """Brokers by their node id, 1 to 3."""

    def __init__(self, home: Path, name: str) -> None:
        self.folder = home / name
        password = create_secret()
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.brokers = {
            node: Broker(
                self.folder / f"kafka-{node}",
                StateFile(self.folder / f"state-{node}.json"),
                lambda: fetch_jars("kafka", home / "jars"),
                cluster_id=cluster_id,
            )
            for node in NODES
        }
        for each in self.brokers.values():
            write_secret(each.folder / "secret", password)

    def up(self) -> None:
        """Start all three."""
        for each in self.brokers.values():
            each.configure({}, None, anywhere=True)
        voters = ",".join(f"{node}@{HOST}:{each.ports['controller']}" for node, each in self.brokers.items())
        for node, each in self.brokers.items():
            each.configure({}, _settings(node, voters))
        self.start(*NODES)

    def start(self, *nodes: int) -> None:
        """Start brokers, and wait until the cluster knows them."""
        for node in nodes:
            self.brokers[node].launch()
        for node in nodes:
            self.brokers[node].wait()

    def down(self) -> None:
        """Kill all of them."""
        for each in self.brokers.values():
            if each.pid is not None:
                os.kill(each.pid, signal.SIGCONT)
            each.kill()

    @property
    def properties(self) -> dict[str, Any]:
        """Client properties. A reader holds little in advance, so that it needs the brokers to the end."""
        return {
            **self._to_brokers,
            "queued.min.messages": 100,
            "queued.max.messages.kbytes": 64,
            "fetch.message.max.bytes": 32 * 1024,
        }

    def make_topic(self, *replicas: list[int], **config: str) -> Topic:
        """Create a topic; of each partition it is given which nodes have it, the leader first."""
        name = f"t{uuid.uuid4().hex[:12]}"
        new = NewTopic(
            name,
            len(replicas),
            replica_assignment=list(replicas),
            config={k.replace("_", "."): v for k, v in config.items()},
        )
        client = AdminClient(self._to_brokers)  # kept, or it would forget what it was asked
        client.create_topics([new])[name].result(30)
        topic = Topic(name, self.properties)
        self.await_in_sync(topic)
        return topic

    def active_controller(self) -> int:
        """The node that leads the cluster."""
        with admin_client(self._to_brokers) as client:
            return int(client.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"])

    def leader(self, topic: Topic, partition: int = 0) -> int:
        """The node that leads a partition, -1 for none."""
        return int(self._partition(topic, partition).leader)

    def in_sync(self, topic: Topic, partition: int = 0) -> set[int]:
        """The nodes that have all of a partition."""
        return set(self._partition(topic, partition).isrs)

    def await_in_sync(self, topic: Topic) -> None:
        """Wait until every replica has all of its partition."""
        metadata = AdminClient(self._to_brokers)

        def complete() -> bool:
            found = metadata.list_topics(topic.name, timeout=30).topics[topic.name].partitions
            return bool(found) and all(
                set(each.isrs) == set(each.replicas) and each.leader > 0 for each in found.values()
            )

        wait_for(complete)

    def move_leader(self, topic: Topic, to: int, partition: int = 0) -> None:
        """Make a node the preferred leader of a partition, and elect it."""
        from kafka import TopicPartition

        others = [node for node in NODES if node != to]
        with admin_client(self._to_brokers) as client:
            client.alter_partition_reassignments({TopicPartition(topic.name, partition): [to, *others]})
            client.elect_leaders(0, {topic.name: [partition]}, raise_errors=False)
        wait_for(lambda: self.leader(topic, partition) == to)

    def elect_unclean(self, topic: Topic, to: int, partition: int = 0) -> None:
        """Let a broker that is there lead a partition, although the one that has died had more of it."""

        def elected() -> bool:
            # The controller elects nobody before it has noticed that the old leader is gone, and it may be
            # the old leader itself, which another one has to follow first.
            with suppress(KafkaUnavailable), admin_client(self._to_brokers) as client:
                client.elect_leaders(1, {topic.name: [partition]}, raise_errors=False)
            return self.leader(topic, partition) == to

        wait_for(elected)

    @contextmanager
    def stopped(self, node: int) -> Iterator[None]:
        """A broker that does nothing for a while, as in a long pause of its garbage collector."""
        pid = self.brokers[node].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @property
    def _to_brokers(self) -> dict[str, Any]:
        addresses = ",".join(each.address for each in self.brokers.values())
        return {**self.brokers[1].kafka_properties, "bootstrap.servers": addresses}

    def _partition(self, topic: Topic, partition: int) -> Any:
        # A client of its own each time, which remembers nothing.
        found = AdminClient(self._to_brokers).list_topics(topic.name, timeout=30).topics[topic.name]
        return found.partitions[partition]


def _settings(node: int, voters: str) -> dict[str, str]:
    kept = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "broker.session.timeout.ms": str(SESSION_TIMEOUT),
        **{f"{each}.replication.factor": "3" for each in kept},
        **{f"{each}.min.isr": "2" for each in kept[1:]},
    }
