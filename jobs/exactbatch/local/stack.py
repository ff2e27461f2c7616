"""Kafka, Postgres and, on request, a Spark Connect server and Airflow, brought up and down together.

airflow.py starts Airflow in a stack.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from exactbatch.batch.engines.connect_server import (
    PORT,
    TOKEN,
    build_server_command,
    build_server_environment,
)
from exactbatch.local.airflow_parts import AirflowPart, ApiServer, DagProcessor, Scheduler, stop_parts
from exactbatch.local.child_process import Recorded, accepts, spawn, wait_until
from exactbatch.local.java import fetch_jars, find_java, is_complete
from exactbatch.local.kafka_server import Broker
from exactbatch.local.postgres import Postgres
from exactbatch.local.server import NotReady, PortTaken, Progress, Server, silent
from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.state import StateFile

# Not an IP address: gRPC sends a token without TLS to this name only.
_HOST = "localhost"
LOCK_TIMEOUT_S = 180.0
START_ATTEMPTS = 3
# A server, its preferred port and its settings. None keeps the remembered ones.
Wanted = tuple[Server, int | None, Mapping[str, str] | None]


class Connect(Server):
    """The stack's Spark Connect server, on all cores of this machine. Its settings are Spark properties."""

    name: ClassVar[str] = "connect"
    title: ClassVar[str] = "Spark Connect"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": PORT}

    @property
    def address(self) -> str:
        """The host:port for clients."""
        return f"{_HOST}:{self.port}"

    @property
    def token(self) -> str:
        """The secret that clients send; the server accepts no other."""
        return self.secret

    @property
    def url(self) -> str:
        """The URL for clients, which contains the token."""
        return f"sc://{self.address}/;token={self.token}"

    def _prepare(self) -> None:
        self._choose_secret()

    def _spawn(self) -> Recorded:
        properties = {
            "spark.default.parallelism": str(os.cpu_count()),
            "spark.local.dir": str(self.data_dir),
            "spark.sql.warehouse.dir": str(self.data_dir / "warehouse"),
            **self.settings,
        }
        command = build_server_command("local[*]", "127.0.0.1", self.port, properties)
        environment = {**build_server_environment(), TOKEN: self.token}
        return spawn(command, log=self.log_file, cwd=self.folder, env=environment)

    def _ask(self) -> None:
        # While the port is closed, the client would wait.
        if not accepts(self.port):
            raise NotReady(f"nothing listens on port {self.port}")
        # PySpark's client takes a second to import, and every command without connections imports the stack.
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession(self.url)
        # By default the client tries again for ten minutes, even if another server has the port and refuses the token.
        session.client.set_retry_policies([])
        try:
            _ = session.version
        except PySparkException as error:
            raise NotReady(str(error).splitlines()[0]) from error
        finally:
            session.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """The state of one server."""

    name: str
    title: str
    up: bool
    pid: int | None
    address: str | None
    log_file: Path


class LocalStack:
    """A stack in the folder `<home>/<name>`. Several stacks can be up at once.

    By default, `home` is $EXACTBATCH_HOME, or else .local in the working directory. A stack writes only to its folder
    and to `<home>/jars`, which all stacks share.
    """

    def __init__(
        self, home: Path | str | None = None, name: str = "dev", *, progress: Progress = silent
    ) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name == "jars":
            raise LocalStackError(
                f'expected a stack name of a-z, 0-9, - and _ other than "jars", found "{name}"'
            )
        self.name = name
        self.home = Path(home or os.environ.get("EXACTBATCH_HOME") or ".local").absolute()
        self.folder = self.home / name
        self.jars_dir = self.home / "jars"
        self._progress = progress
        state = StateFile(self.folder / "state.json")
        self.broker = Broker(self.folder / "kafka", state, self._kafka_jars, progress)
        self.postgres = Postgres(self.folder / "postgres", state, progress)
        self.connect = Connect(self.folder / "connect", state, progress)
        self.api_server = ApiServer(self.folder / "airflow", state, progress)
        self.airflow_parts: tuple[AirflowPart, ...] = (
            self.api_server,
            Scheduler(self.api_server, state, progress),
            DagProcessor(self.api_server, state, progress),
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        """The broker, Postgres, the Spark Connect server if it was ever started, and Airflow if it was not stopped."""
        airflow = self.airflow_parts if any(part.was_started for part in self.airflow_parts) else ()
        return *self._below_airflow, *airflow

    @property
    def _below_airflow(self) -> tuple[Server, ...]:
        return self.broker, self.postgres, *((self.connect,) if self.connect.ports else ())

    @property
    def bootstrap_servers(self) -> str:
        """The host:port of the broker. Raises LocalStackError before the first `up`."""
        return self.broker.address

    @property
    def kafka_properties(self) -> dict[str, str]:
        """Kafka client properties by their dotted names."""
        return self.broker.kafka_properties

    @property
    def postgres_dsn(self) -> str:
        """The libpq connection string of the database `exactbatch`."""
        return self.postgres.dsn

    @property
    def environment(self) -> dict[str, str]:
        """EXACTBATCH_KAFKA and EXACTBATCH_POSTGRES of this stack."""
        return {
            "EXACTBATCH_KAFKA": json.dumps(self.kafka_properties),
            "EXACTBATCH_POSTGRES": self.postgres_dsn,
        }

    def up(
        self,
        *,
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        connect: bool = False,
        connect_port: int | None = None,
        broker_properties: Mapping[str, str] | None = None,
        postgres_settings: Mapping[str, str] | None = None,
    ) -> bool:
        """Start the servers that do not run, and wait until they answer. Return False if all of them were up.

        If a port is not free, another one is taken. Properties and settings are added to the stack's own and are
        remembered; None keeps the remembered ones. `connect` also starts a Spark Connect server.

        Raises LocalStackError if a server cannot be started, or already runs with different settings.
        """
        with self.lock():
            find_java()
            self._kafka_jars()
            wanted: list[Wanted] = [
                (self.broker, kafka_port, broker_properties),
                (self.postgres, postgres_port, postgres_settings),
            ]
            if connect:
                wanted.append((self.connect, connect_port, None))
            self._check_running(wanted)
            down = [(server, port, settings) for server, port, settings in wanted if server.pid is None]
            self._start(down)
        return bool(down)

    def down(self, *, delete: bool = False) -> bool:
        """Stop the stack's servers; with `delete`, also remove data and logs. Return False if all of them were down."""
        if not self.folder.exists():
            return False
        with self.lock():
            running = [server for server in self.servers if server.pid is not None]
            started = [part for part in self.airflow_parts if part.was_started]
            if started:
                self._progress("stopping Airflow")
                stop_parts(started)  # first, because they are clients of the others
            for server in self._below_airflow:
                if server.pid is not None:
                    self._progress(f"stopping {server.title}")
                    server.stop()
            if delete:
                self._progress(f"deleting {self.folder}")
                # The folder may be a link to one on another disk.
                shutil.rmtree(self.folder.resolve())
                self.folder.unlink(missing_ok=True)
        return bool(running) or delete

    def status(self) -> list[ServerStatus]:
        """Return for each server whether it runs and answers."""
        return [
            ServerStatus(
                name=server.name,
                title=server.title,
                up=server.is_up(),
                pid=server.pid,
                address=server.address if "client" in server.ports else None,
                log_file=server.log_file,
            )
            for server in self.servers
        ]

    def _check_running(self, wanted: Sequence[Wanted]) -> None:
        for server, _, settings in wanted:
            if server.pid is not None and not server.has_secret:
                raise LocalStackError(
                    f"{server.title} runs without a password, as earlier versions started it. Run `exactbatch local "
                    f"down --name {self.name}`, then start the stack again: it keeps its data."
                )
            if settings is not None and server.pid is not None and dict(settings) != server.settings:
                raise LocalStackError(
                    f"{server.title} runs with the settings {server.settings}, but this command needs "
                    f'{dict(settings)}. Stop the stack "{self.name}" first.'
                )

    def _start(self, wanted: Sequence[Wanted]) -> None:
        """Start servers on free ports. Try again if another stack takes one of them in the meantime."""
        for attempt in range(1, START_ATTEMPTS + 1):
            for server, port, settings in wanted:
                server.configure({} if port is None else {"client": port}, settings, anywhere=attempt > 1)
            try:
                self._start_together([server for server, _, _ in wanted])
                return
            except PortTaken:
                if attempt == START_ATTEMPTS:
                    raise

    def _start_together(self, servers: list[Server]) -> None:
        """Launch all servers, then wait for all. If one fails, stop those that were launched."""
        try:
            for server in servers:
                self._progress(f"starting {server.title}")
                server.launch()
            # Also wait for servers that run already: they may still be starting. Postgres is up, or fails, first.
            for server in reversed(
                [each for each in self._below_airflow if each in servers or each.pid is not None]
            ):
                server.wait()
        except BaseException:
            for server in servers:
                server.stop(timeout_s=5)
            raise

    def _kafka_jars(self) -> Path:
        if not is_complete("kafka", self.jars_dir):
            self._progress("downloading the jars of Kafka (45 MB, once)")
        return fetch_jars("kafka", self.jars_dir, self._progress)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one `up` or `down` of a stack at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        with (self.folder / "lock").open("w") as file:
            if not wait_until(lambda: _try_lock(file), LOCK_TIMEOUT_S, every_s=0.1):
                raise LocalStackError(
                    f'another command has been working on the stack "{self.name}" for {LOCK_TIMEOUT_S:.0f} s. '
                    "End that command, then try again."
                )
            yield


def _try_lock(file: IO[str]) -> bool:
    """Lock a file until it is closed. Return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
