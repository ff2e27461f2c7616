"""A server process of a stack: it keeps its ports, and can be started, stopped and killed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil
import tenacity

from exactbatch.local.child_process import HOST, Recorded, becomes_free, find_port, is_free, wait_until_ended
from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.state import StateFile, create_secret, write_secret

LOG_LINES_SHOWN = 12
# What Java, Python and Postgres say if another process listens on a port, and what Spark says; in small letters.
_IN_USE = ("address already in use", "failed to bind to address")
PORT_TIMEOUT_S = 5.0  # the last threads of a killed server can keep its ports open for a moment
Progress = Callable[[str], None]
"""Takes one line for each step of a command, to show it."""


def silent(step: str) -> None:
    """Show no progress: the default of the Python API."""


class PortTaken(LocalStackError):
    """Another process listens on the port of a server."""


class NotReady(Exception):
    """A server does not answer yet."""


class Server(ABC):
    """A server process of a stack. The stack's state.json has its ports, process and settings."""

    name: ClassVar[str]
    title: ClassVar[str]
    usual_ports: ClassVar[Mapping[str, int]]  # by purpose; clients connect to the first one, if there is one
    ready_timeout_s: ClassVar[float] = 120

    def __init__(self, folder: Path, state: StateFile, progress: Progress = silent) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_dir = folder / "log"
        self.log_file = self.log_dir / f"{self.name}.log"
        self._secret_file = folder / "secret"
        self._state = state
        self._progress = progress
        self._log_from = 0

    @property
    def ports(self) -> dict[str, int]:
        """The ports by purpose, which the first `up` chooses; empty before."""
        return self._state.read(self.name).ports

    @property
    def port(self) -> int:
        """The port for clients. Raises LocalStackError before the first `up`."""
        ports = self.ports
        if not ports:
            raise self._never_started()
        return ports[next(iter(self.usual_ports))]

    @property
    def address(self) -> str:
        """The host:port for clients."""
        return f"{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the caller has added to the usual ones."""
        return self._state.read(self.name).settings

    @property
    def has_secret(self) -> bool:
        """True if clients need a password, which the first start has chosen."""
        return self._secret_file.exists()

    @property
    def secret(self) -> str:
        """What the file with the password has. Raises LocalStackError before the first `up`."""
        if not self.has_secret:
            raise self._never_started()
        return self._secret_file.read_text()

    @property
    def pid(self) -> int | None:
        """The server's pid, or None if it is not running."""
        process = self._process()
        return None if process is None else process.pid

    def is_up(self) -> bool:
        """Return True if the process runs and answers a client's request."""
        if self._process() is None or not self.has_secret:
            return False
        try:
            self._ask()
        except NotReady:
            return False
        return True

    def configure(
        self, ports: Mapping[str, int], settings: Mapping[str, str] | None, *, anywhere: bool = False
    ) -> None:
        """Choose free ports: preferably the given ones, then the remembered ones, then the usual ones.

        With `anywhere`, choose any free ports, because two stacks that prefer the same ones would collide again. If
        `settings` is None, the remembered settings apply.
        """
        with self._state.change(self.name) as state:
            chosen: dict[str, int] = {}
            for purpose, usual in self.usual_ports.items():
                preferred = ports.get(purpose) or state.ports.get(purpose) or usual
                chosen[purpose] = find_port(None if anywhere else preferred, frozenset(chosen.values()))
            state.ports = chosen
            if settings is not None:
                state.settings = dict(settings)

    def start(self) -> None:
        """Start the server on its ports, unless it runs already, and wait until it answers.

        Raises LocalStackError if a port is taken, or if the server ends or does not answer in time.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self._process() is not None:
            return
        if self.usual_ports and not self.ports:
            raise self._never_started()
        for port in self.ports.values():
            if not becomes_free(port, PORT_TIMEOUT_S):
                raise self._port_taken(port)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._prepare()
        self._log_from = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._remember(self._spawn())

    def wait(self) -> None:
        """Wait until a launched server answers."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(NotReady),
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(self.ready_timeout_s),
        )
        try:
            retrying(self._ask_while_running)
        except tenacity.RetryError as error:
            raise LocalStackError(
                f"{self.title} does not answer after {self.ready_timeout_s:.0f} s: "
                f"{error.last_attempt.exception()}. Its log is {self.log_file}:{self._log_tail()}"
            ) from error

    def stop(self, timeout_s: float = 30) -> None:
        """Ask the server to end, and kill it if it has not ended after the timeout."""
        process = self._process()
        if process is not None:
            self._ask_to_end(process)
            if not wait_until_ended([process], timeout_s):
                self.kill()
        self._remember(None)

    def kill(self) -> None:
        """Send SIGKILL to the server and its child processes, which has the effect of a power cut."""
        process = self._process()
        if process is None:
            return
        doomed = [process]
        with suppress(psutil.NoSuchProcess):
            doomed += process.children(recursive=True)
        for doomed_process in doomed:
            with suppress(psutil.NoSuchProcess):
                doomed_process.kill()
        wait_until_ended(doomed, timeout_s=30)
        self._remember(None)

    @abstractmethod
    def _prepare(self) -> None:
        """Create the data directory if it is missing, and write the configuration."""

    @abstractmethod
    def _spawn(self) -> Recorded:
        """Start the process."""

    @abstractmethod
    def _ask(self) -> None:
        """Make a client's request. Raises NotReady unless this server answers, and not another one."""

    def _ask_to_end(self, process: psutil.Process) -> None:
        process.terminate()

    def _ask_while_running(self) -> None:
        if self._process() is None:
            # If two servers that start at the same time took a port of each other, both have ended, and all
            # ports are free again.
            log = self._log().lower()
            collided = any(message in log for message in _IN_USE)
            for port in self.ports.values():
                if collided or not is_free(port):
                    raise self._port_taken(port)
            ended = f"ended instead of listening on port {self.port}" if self.usual_ports else "has ended"
            raise LocalStackError(f"{self.title} {ended}. Its log is {self.log_file}:{self._log_tail()}")
        self._ask()

    def _choose_secret(self) -> None:
        """Choose the password, unless an earlier start has."""
        if not self.has_secret:
            write_secret(self._secret_file, create_secret())

    def _never_started(self) -> LocalStackError:
        return LocalStackError(
            f"{self.title} has no port and no password yet, because it was never started. Start the stack."
        )

    def _port_taken(self, port: int) -> PortTaken:
        return PortTaken(
            f"another process listens on port {port}, which {self.title} needs. End that process, or start the stack "
            "again to get other ports."
        )

    def _process(self) -> psutil.Process | None:
        recorded = self._state.read(self.name).process
        return None if recorded is None else recorded.running()

    def _remember(self, process: Recorded | None) -> None:
        with self._state.change(self.name) as state:
            state.process = process

    def _log_tail(self) -> str:
        return "".join(f"\n  {line}" for line in self._log().splitlines()[-LOG_LINES_SHOWN:])

    def _log(self) -> str:
        """Return the log since the server was launched."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")
