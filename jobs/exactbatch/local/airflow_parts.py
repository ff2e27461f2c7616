"""Airflow's processes in a stack: the API server, the scheduler and the DAG processor.

They are what `airflow standalone` starts. Started separately, each of them ends on SIGTERM; standalone would leave them
running.
"""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
import psutil

from exactbatch.local.child_process import Recorded, accepts, spawn, wait_until_ended
from exactbatch.local.server import NotReady, Progress, Server, silent
from exactbatch.local.state import StateFile, write_secret

USER: Final = "admin"
AIRFLOW: Final = Path(sys.executable).parent / "airflow"
_STOP_TIMEOUT_S: Final = 15.0
_ENVIRONMENT: Final = "environment"  # the setting under which a part keeps the digest of its environment


class AirflowPart(Server):
    """One process of Airflow, with its child processes.

    `environment` must be set before it is launched; the process also inherits that of this process.
    """

    command: ClassVar[str]
    options: ClassVar[Sequence[str]] = ()
    usual_ports: ClassVar[Mapping[str, int]] = {}
    ready_timeout_s: ClassVar[float] = 180

    def __init__(self, folder: Path, state: StateFile, progress: Progress = silent) -> None:
        super().__init__(folder, state, progress)
        self.environment: Mapping[str, str] = {}

    def runs_with(self, environment: Mapping[str, str]) -> bool:
        """Return True if the process was started with this environment."""
        return self.settings.get(_ENVIRONMENT) == _digest(environment)

    @property
    def has_secret(self) -> bool:
        """True: Airflow asks for the password in passwords.json."""
        return True

    @property
    def was_started(self) -> bool:
        """Return True if the process was started and not stopped since, even if it has ended by itself."""
        return self._state.read(self.name).process is not None

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Ask the process to end, then kill it if it still runs, and what it has started: tasks and their drivers."""
        family = self._family()
        super().stop(timeout_s)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until_ended(family, timeout_s)

    def ask_to_end(self) -> None:
        """Send SIGTERM without waiting, so that several parts end at the same time."""
        if (process := self._process()) is not None:
            self._ask_to_end(process)

    def _prepare(self) -> None:
        with self._state.change(self.name) as state:
            state.settings = {_ENVIRONMENT: _digest(self.environment)}

    def _spawn(self) -> Recorded:
        environment = {**search_path(), **self.environment}
        return spawn(
            [AIRFLOW, self.command, *self.options], log=self.log_file, cwd=self.folder, env=environment
        )

    def _family(self) -> list[psutil.Process]:
        """Return the child processes of this part, also of one that has ended and left them behind.

        They are in the session that spawn() has made for the part. Its number may be another session's by now, so
        they must also run in this folder. Airflow overwrites the environment of its processes with their titles.
        """
        recorded = self._state.read(self.name).process
        if recorded is None:
            return []
        running = recorded.running()
        family = {} if running is None else {each.pid: each for each in running.children(recursive=True)}
        for process in psutil.process_iter():
            try:
                if (
                    os.getsid(process.pid) == recorded.pid
                    and process.pid != recorded.pid
                    and Path(process.cwd()) == self.folder.resolve()
                ):
                    family[process.pid] = process
            except (OSError, psutil.Error):
                continue  # it has ended, or belongs to another user
        return list(family.values())


class ApiServer(AirflowPart):
    """Serves Airflow's pages and its REST API, also to the tasks. `path` is the path below which they are."""

    name: ClassVar[str] = "airflow-api-server"
    title: ClassVar[str] = "Airflow's API server"
    command: ClassVar[str] = "api-server"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": 8080}
    path: str = ""

    @property
    def address(self) -> str:
        """The URL of Airflow's pages."""
        return f"http://{super().address}{self.path}"

    @property
    def password(self) -> str:
        """The password of the user `admin`. The first call chooses it; it stays the same until the data is deleted."""
        file = self.folder / "passwords.json"
        if not file.exists():
            write_secret(file, json.dumps({USER: secrets.token_urlsafe(9)}))
        password: str = json.loads(file.read_text())[USER]
        return password

    def health(self) -> dict[str, Any]:
        """Return what Airflow knows of its parts. Raises NotReady if it does not answer."""
        try:
            answer: dict[str, Any] = (
                httpx.get(f"{self.address}/api/v2/monitor/health", timeout=5).raise_for_status().json()
            )
        except (httpx.HTTPError, ValueError) as error:
            raise NotReady(f"{self.address} does not answer: {error!r}") from error
        return answer

    def _ask(self) -> None:
        if not accepts(self.port):
            raise NotReady(f"nothing listens on port {self.port}")
        if (state := self.health()["metadatabase"]["status"]) != "healthy":
            raise NotReady(f"its database is {state}")
        login = {"username": USER, "password": self.password}
        try:
            httpx.post(f"{self.address}/auth/token", json=login, timeout=5).raise_for_status()
        except httpx.HTTPError as error:
            raise NotReady(f"no login at {self.address}, which may be another Airflow: {error!r}") from error


class _Worker(AirflowPart):
    """A part that shows its health by a heartbeat in the database."""

    health_name: ClassVar[str]

    def __init__(self, api_server: ApiServer, state: StateFile, progress: Progress = silent) -> None:
        super().__init__(api_server.folder, state, progress)
        self._api_server = api_server

    def _ask(self) -> None:
        health = self._api_server.health()[self.health_name]
        recorded = self._state.read(self.name).process
        beat = health[f"latest_{self.health_name}_heartbeat"]
        # A heartbeat from before the start came from an earlier process.
        if beat is None or recorded is None or datetime.fromisoformat(beat).timestamp() < recorded.started:
            raise NotReady("it has not sent a heartbeat yet")
        if health["status"] != "healthy":
            raise NotReady(f"it is {health['status']}; its latest heartbeat was at {beat}")


class Scheduler(_Worker):
    """Starts the runs of DAGs, and their tasks."""

    name: ClassVar[str] = "airflow-scheduler"
    title: ClassVar[str] = "Airflow's scheduler"
    command: ClassVar[str] = "scheduler"
    health_name: ClassVar[str] = "scheduler"
    # Without a server for the logs of tasks, which would listen on all interfaces: the API server finds their files.
    options: ClassVar[Sequence[str]] = ("--skip-serve-logs",)


class DagProcessor(_Worker):
    """Parses the DAG files."""

    name: ClassVar[str] = "airflow-dag-processor"
    title: ClassVar[str] = "Airflow's DAG processor"
    command: ClassVar[str] = "dag-processor"
    health_name: ClassVar[str] = "dag_processor"


def search_path() -> dict[str, str]:
    """Return a PATH on which Airflow finds spark-submit and its other commands."""
    return {"PATH": os.pathsep.join([str(AIRFLOW.parent), os.environ.get("PATH", os.defpath)])}


def stop_parts(parts: Sequence[AirflowPart]) -> None:
    """Stop parts at the same time, with all that they have started."""
    for part in parts:
        part.ask_to_end()
    for part in parts:
        part.stop()


def _digest(environment: Mapping[str, str]) -> str:
    """Return a digest of an environment, which has secrets and must not be written down."""
    return hashlib.sha256(json.dumps(dict(environment), sort_keys=True).encode()).hexdigest()
