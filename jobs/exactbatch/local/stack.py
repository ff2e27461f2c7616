"""One Kafka broker and one Postgres server, brought up and down together."""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exactbatch.local.broker import Broker
from exactbatch.local.errors import LocalStackError
from exactbatch.local.jars import fetch_jars, is_complete
from exactbatch.local.java import find_java
from exactbatch.local.postgres import Postgres
from exactbatch.local.server import PortTaken, Progress, Server, silent
from exactbatch.local.state import StateFile

LOCK_TIMEOUT_S = 180.0
START_ATTEMPTS = 3

# A server, its preferred port and its settings; None: as last time.
Wanted = tuple[Server, int | None, Mapping[str, str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What `status` says of one server."""

    name: str
    title: str
    up: bool
    pid: int | None
    address: str | None
    log_file: Path


class LocalStack:
    """A stack by its name, below a home folder; several can be up at once.

    `home` is $EXACTBATCH_HOME, else .local in the working directory. Everything that the stack writes is
    in `<home>/<name>`, beside `<home>/jars`, which all stacks share.
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

    @property
    def servers(self) -> tuple[Server, ...]:
        """The broker and Postgres."""
        return self.broker, self.postgres

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the broker. Raises LocalStackError before the first `up`."""
        return self.broker.address

    @property
    def kafka_properties(self) -> dict[str, str]:
        """Kafka client properties by their dotted names."""
        return self.broker.kafka_properties

    @property
    def postgres_dsn(self) -> str:
        """libpq connection string of the database `exactbatch`."""
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
        broker_properties: Mapping[str, str] | None = None,
        postgres_settings: Mapping[str, str] | None = None,
    ) -> bool:
        """Start what does not run and wait until it answers; False when everything was up already.

        Ports are preferences: another free one is taken when they are not free. Properties and settings
        come on top of the stack's own and are remembered; None keeps those of last time.
        Raises LocalStackError when a server cannot be started, or runs with other settings than asked for.
        """
        with self._lock():
            find_java()
            self._kafka_jars()
            wanted: list[Wanted] = [
                (self.broker, kafka_port, broker_properties),
                (self.postgres, postgres_port, postgres_settings),
            ]
            self._check_running(wanted)
            down = [(server, port, settings) for server, port, settings in wanted if server.pid is None]
            self._start(down)
        return bool(down)

    def down(self, *, delete: bool = False) -> bool:
        """Stop what this stack started; with `delete`, remove its data and logs. False when all was down."""
        if not self.folder.exists():
            return False
        with self._lock():
            running = [server for server in self.servers if server.pid is not None]
            for server in running:
                self._progress(f"stopping {server.title}")
                server.stop()
            if delete:
                self._progress(f"deleting {self.folder}")
                shutil.rmtree(self.folder)
        return bool(running) or delete

    def status(self) -> list[ServerStatus]:
        """Whether each server runs and answers."""
        return [
            ServerStatus(
                name=server.name,
                title=server.title,
                up=server.is_up(),
                pid=server.pid,
                address=server.address if server.ports else None,
                log_file=server.log_file,
            )
            for server in self.servers
        ]

    def _check_running(self, wanted: Sequence[Wanted]) -> None:
        for server, _, settings in wanted:
            if settings is not None and server.pid is not None and dict(settings) != server.settings:
                raise LocalStackError(
                    f"expected {server.title} with settings {dict(settings)}, it runs with {server.settings}: "
                    f'bring the stack "{self.name}" down first'
                )

    def _start(self, wanted: Sequence[Wanted]) -> None:
        """Start servers on ports that are free; another stack may take one meanwhile, so try again."""
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
        """Launch all, then wait for all; a start that fails leaves none of them behind."""
        try:
            for server in servers:
                self._progress(f"starting {server.title}")
                server.launch()
            # Those that run already may be on their way up. Postgres is up, or has failed, first.
            for server in reversed(self.servers):
                server.wait()
        except BaseException:
            for server in servers:
                server.stop(timeout_s=5)
            raise

    def _kafka_jars(self) -> Path:
        if not is_complete("kafka", self.jars_dir):
            self._progress("fetching the jars of Kafka (45 MB, once)")
        return fetch_jars("kafka", self.jars_dir, self._progress)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` of a stack at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        with (self.folder / "lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LocalStackError(
                            f'expected the stack "{self.name}" to be free, another command still works on it '
                            f"after {LOCK_TIMEOUT_S:.0f} s: end it, then try again"
                        ) from None
                    time.sleep(0.1)
            yield
