"""Brokers of older versions of Kafka, each from its own jars, with ZooKeeper or KRaft as its controller."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from exactbatch.local import LocalStack, java
from exactbatch.local.child_process import HOST, Recorded, accepts, spawn
from exactbatch.local.java import fetch_jars
from exactbatch.local.kafka_server import Broker, server_properties
from exactbatch.local.server import NotReady, Server
from exactbatch.local.state import StateFile, write_secret
from support.stacks import new_stack

_DEFINITIONS: Final = Path(__file__).parent / "ivy"
_LOGGING: Final = Path(__file__).parent / "log4j.properties"


@dataclass(frozen=True)
class Release:
    """A release of Kafka: the number in the names of its jars, None for the local stack's own, and what controls it."""

    number: str | None
    zookeeper: bool = False


# That of the local stack, which all other tests run with.
(_OWN,) = re.findall(r'name="kafka_2\.13" rev="([^"]+)"', (java.DEFINITIONS / "kafka.xml").read_text())
# By the name that a test has for it, the oldest first. KRaft of 2.8 is left out: it has no transactions, and a broker
# that is its own controller does not start again. In 4.0, ZooKeeper ended.
RELEASES: Final[Mapping[str, Release]] = {
    "2.8.2": Release("2.8.2", zookeeper=True),
    "3.0.2": Release("3.0.2", zookeeper=True),
    "3.0.2-kraft": Release("3.0.2"),
    "3.6.2": Release("3.6.2"),
    "3.9.1": Release("3.9.1", zookeeper=True),
    _OWN: Release(None),
}
# The last one whose topics have no IDs.
WITHOUT_IDS: Final = Release("2.7.2", zookeeper=True)


class ReleasedBroker(Broker):
    """A broker of a release, which is its own controller."""

    def __init__(self, folder: Path, state: StateFile, jars_dir: Path, number: str) -> None:
        name = f"kafka-{number}"
        super().__init__(folder, state, lambda: fetch_jars(name, jars_dir, definitions=_DEFINITIONS))

    def _java(self, main: str, *arguments: str | Path) -> list[str | Path]:
        java, *more = super()._java(main, *arguments)
        return [java, f"-Dlog4j.configuration={_LOGGING.as_uri()}", *more]


class ZooKeeper(Server):
    """One ZooKeeper, from the jars of the broker that it controls."""

    name: ClassVar[str] = "zookeeper"
    title: ClassVar[str] = "ZooKeeper"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": 2181}

    def __init__(self, folder: Path, state: StateFile, java: Callable[..., list[str | Path]]) -> None:
        super().__init__(folder, state)
        self._java = java
        self._properties_file = folder / "zookeeper.properties"

    def _prepare(self) -> None:
        properties = {
            "dataDir": str(self.data_dir),
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
        }
        self._properties_file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def _spawn(self) -> Recorded:
        command = self._java("org.apache.zookeeper.server.quorum.QuorumPeerMain", self._properties_file)
        return spawn(command, log=self.log_file, cwd=self.folder)

    def _ask(self) -> None:
        if not accepts(self.port):
            raise NotReady(f"nothing listens on port {self.port}")


class BrokerWithZooKeeper(ReleasedBroker):
    """A broker of a release, and the ZooKeeper that controls it: they start and end together."""

    usual_ports: ClassVar[Mapping[str, int]] = {"client": 9092}

    def __init__(self, folder: Path, state: StateFile, jars_dir: Path, number: str) -> None:
        super().__init__(folder, state, jars_dir, number)
        self._zookeeper = ZooKeeper(folder.with_name("zookeeper"), state, self._java)

    def configure(
        self, ports: Mapping[str, int], settings: Mapping[str, str] | None, *, anywhere: bool = False
    ) -> None:
        self._zookeeper.configure({}, None, anywhere=anywhere)
        super().configure(ports, settings, anywhere=anywhere)

    def launch(self) -> None:
        self._zookeeper.start()
        super().launch()

    def stop(self, timeout_s: float = 30) -> None:
        super().stop(timeout_s)
        self._zookeeper.stop(timeout_s)

    def kill(self) -> None:
        super().kill()
        self._zookeeper.kill()

    def _prepare(self) -> None:
        self._choose_secret()
        of_kraft = server_properties({**self.ports, "controller": 0}, self.data_dir, self.secret)
        kept = {
            name: value
            for name, value in of_kraft.items()
            if "controller" not in name and name not in ("process.roles", "node.id")
        }
        properties = {
            **kept,
            "broker.id": "1",
            "zookeeper.connect": self._zookeeper.address,
            "listeners": kept["advertised.listeners"],
            "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
            **self.settings,
        }
        write_secret(self._properties_file, "".join(f"{key}={value}\n" for key, value in properties.items()))


def use_release(stack: LocalStack, release: Release) -> None:
    """Give a stack that was not started yet the broker of a release."""
    if release.number is not None:
        broker_class = BrokerWithZooKeeper if release.zookeeper else ReleasedBroker
        state = StateFile(stack.folder / "state.json")
        stack.broker = broker_class(stack.folder / "kafka", state, stack.jars_dir, release.number)


@contextmanager
def released_stack(release: Release, purpose: str = "release") -> Iterator[LocalStack]:
    """A stack, not started yet, whose broker is of a release."""
    number, controller = release.number or "own", "zookeeper" if release.zookeeper else "kraft"
    stack = new_stack(f"{purpose}-{number.replace('.', '-')}-{controller}")
    use_release(stack, release)
    stack.broker.configure(
        {}, None, anywhere=True
    )  # tests stop it: nothing else may want its ports meanwhile
    try:
        yield stack
    finally:
        stack.broker.stop()  # also the ZooKeeper of a broker that has ended
        stack.down(delete=True)
