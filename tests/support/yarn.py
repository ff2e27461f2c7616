"""YARN on this machine: a ResourceManager and a NodeManager, whose containers find no package of the tests."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import psutil

from exactbatch.local.child_process import HOST, accepts, find_port
from exactbatch.local.java import fetch_jars, find_java
from support.environment import HOME
from support.waiting import wait_for

_DEFINITIONS: Final = Path(__file__).parent / "ivy"
_SERVER: Final = "org.apache.hadoop.yarn.server"
# The addresses of both servers that clients, containers and they themselves connect to.
_ADDRESSES: Final = (
    *("resourcemanager.address", "resourcemanager.scheduler.address", "resourcemanager.admin.address"),
    *("resourcemanager.resource-tracker.address", "resourcemanager.webapp.address"),
    *("nodemanager.address", "nodemanager.localizer.address", "nodemanager.webapp.address"),
)


class Yarn:
    """A ResourceManager and a NodeManager; both write all that they keep below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.configuration = folder, folder / "hadoop"
        self._jars = fetch_jars("yarn", HOME / "jars", definitions=_DEFINITIONS)
        self._daemons: list[psutil.Popen] = []
        ports: set[int] = set()
        for _ in _ADDRESSES:
            ports.add(find_port(None, frozenset(ports)))
        self._addresses = {
            f"yarn.{name}": f"{HOST}:{port}" for name, port in zip(_ADDRESSES, ports, strict=True)
        }
        self.configuration.mkdir(parents=True)
        self._write("core-site", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
        self._write("yarn-site", self._properties())

    def start(self) -> None:
        """Start both, and wait until the node has joined."""
        self._start("resourcemanager.ResourceManager")
        wait_for(lambda: self._accepts("resourcemanager.resource-tracker.address"), "the ResourceManager")
        self._start("nodemanager.NodeManager")
        wait_for(lambda: "Registered with ResourceManager" in self._log("nodemanager"), "the NodeManager")

    def stop(self) -> None:
        """End all of it, containers included."""
        doomed: list[psutil.Process] = []
        for daemon in self._daemons:
            with suppress(psutil.NoSuchProcess):
                doomed += [*daemon.children(recursive=True), daemon]
        for each in doomed:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        for daemon in self._daemons:
            daemon.wait()

    def executors(self) -> list[psutil.Process]:
        """The JVMs of executors."""
        return [
            each
            for each in self._daemons[1].children(recursive=True)
            if each.name() == "java" and "YarnCoarseGrainedExecutorBackend" in " ".join(each.cmdline())
        ]

    def _properties(self) -> Mapping[str, str]:
        return {
            **self._addresses,
            "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.resource.memory-mb": "6144",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.local-dirs": str(self.folder / "local"),
            "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
            # It uses no disk that is 90 % full, and the disk of the tests may be.
            "yarn.nodemanager.disk-health-checker.enable": "false",
        }

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        text = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in properties.items()
        )
        (self.configuration / f"{name}.xml").write_text(f"<configuration>\n{text}</configuration>\n")

    def _start(self, name: str) -> None:
        java = find_java().resolve()
        command = [
            *(str(java), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("--add-opens", "java.base/java.lang=ALL-UNNAMED", f"-Dyarn.log.dir={self.folder}"),
            *("-cp", f"{self.configuration}:{self._jars}/*", f"{_SERVER}.{name}"),
        ]
        with (self.folder / f"{name.partition('.')[0]}.log").open("ab") as log:
            self._daemons.append(
                psutil.Popen(
                    command,
                    # All that the machines of the cluster have.
                    env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(java.parents[1])},
                    cwd=self.folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _accepts(self, name: str) -> bool:
        return accepts(int(self._addresses[f"yarn.{name}"].rpartition(":")[2]))

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@contextmanager
def running_yarn(folder: Path) -> Iterator[Yarn]:
    """YARN while the block runs."""
    yarn = Yarn(folder)
    try:
        yarn.start()
        yield yarn
    finally:
        yarn.stop()
