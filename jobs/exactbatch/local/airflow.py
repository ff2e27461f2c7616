"""Airflow on this machine, on top of a local stack, for the demo and the end-to-end tests."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import psycopg2
import tenacity
from psycopg2.extensions import parse_dsn

from exactbatch.airflow_api import airflow_api
from exactbatch.local.errors import LocalStackError
from exactbatch.local.ports import HOST, find_port
from exactbatch.local.process import Recorded, spawn, wait_until_ended
from exactbatch.local.server import Progress, silent
from exactbatch.local.stack import LocalStack
from exactbatch.local.waiting import wait_until

_USUAL_PORT: Final = 8080
_DATABASE: Final = "airflow"
_READY_TIMEOUT_S: Final = 180.0
# The parts that `airflow standalone` starts. Started separately, each of them ends on SIGTERM; standalone would leave
# them running.
_PARTS: Final = ("api-server", "scheduler", "dag-processor")
# Shorter intervals, in seconds, at which Airflow looks for work: the defaults add seconds to each task.
_LATENCY: Final = {
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__CORE__PARALLELISM": "2",
}


class LocalAirflow:
    """Airflow's API server, scheduler and DAG processor, with the connections of a stack.

    It writes only to `<stack folder>/airflow`. `dags` is the folder of DAG files. `connections`, in Airflow's JSON
    format, are added to kafka_default, postgres_default, spark_default and airflow_default, or replace them. Airflow
    listens on `port` if that is free, and otherwise, or with None, on any free port.
    """

    def __init__(
        self,
        stack: LocalStack,
        dags: Path,
        *,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
        progress: Progress = silent,
        port: int | None = _USUAL_PORT,
    ) -> None:
        self.home = stack.folder / "airflow"
        self.user, self.password = "admin", secrets.token_urlsafe(9)
        self.port = find_port(port)
        self._log_port = find_port(None)
        self.url = f"http://{HOST}:{self.port}"
        self._dags, self._progress = dags, progress
        self._stack_dsn = stack.postgres_dsn
        itself = {
            "conn_type": "http",
            "host": f"http://{HOST}",
            "port": self.port,
            "login": self.user,
            "password": self.password,
        }
        self._connections = {**_connections(stack), "airflow_default": itself, **(connections or {})}
        self._extra = dict(environment or {})
        self._parts: dict[str, Recorded] = {}
        self._api: httpx.Client | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every Airflow command of this installation."""
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self._dags.parent / "plugins"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{self.user}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self._log_port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": self._secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database_url,
            "PYTHONDONTWRITEBYTECODE": "1",
            **_LATENCY,
            **{f"AIRFLOW_CONN_{k.upper()}": json.dumps(v) for k, v in self._connections.items()},
            **self._extra,
        }

    @property
    def _database_url(self) -> str:
        """The URL of the database of the stack's Postgres that has Airflow's tables."""
        dsn = parse_dsn(self._stack_dsn)
        return f"postgresql+psycopg2://{dsn['user']}@{dsn['host']}:{dsn['port']}/{_DATABASE}"

    @property
    def _secret(self) -> str:
        """The key with which the parts sign messages: one for all parts, and a new one for each start."""
        return self.password * 4

    def up(self, *, pools: Mapping[str, int], parts: Sequence[str] = _PARTS) -> None:
        """Create the database, start the parts, wait until they are healthy, and create pools with these slots.

        Raises LocalStackError if a part ends, or if Airflow is not healthy in time.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        passwords = self.home / "passwords.json"
        passwords.write_text(json.dumps({self.user: self.password}))
        passwords.chmod(0o600)
        self._progress("creating Airflow's database")
        with closing(psycopg2.connect(self._stack_dsn)) as connection:
            connection.autocommit = True  # a database cannot be created in a transaction
            with connection.cursor() as cursor:
                cursor.execute("select from pg_database where datname = %s", (_DATABASE,))
                if cursor.rowcount == 0:
                    cursor.execute(f"create database {_DATABASE}")
        self.command("db", "migrate")
        for part in parts:
            self.start(part)
        self._progress("waiting for Airflow")
        self._wait()
        for pool, slots in pools.items():
            self.request("POST", "/pools", json={"name": pool, "slots": slots, "include_deferred": False})

    def start(self, part: str) -> None:
        """Start one part: api-server, scheduler or dag-processor."""
        self._parts[part] = spawn(
            [Path(sys.executable).parent / "airflow", part],
            log=self.home / f"{part}.log",
            cwd=self.home,
            env=self.environment,
        )

    def pid(self, part: str) -> int:
        """Return the pid of a part."""
        return self._parts[part].pid

    def down(self) -> None:
        """Stop all parts, and all of their child processes."""
        running = [process for part in self._parts.values() if (process := part.running())]
        doomed = [child for process in running for child in process.children(recursive=True)] + running
        for process in running:
            process.terminate()
        wait_until_ended(running, timeout_s=15)
        for process in doomed:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        wait_until_ended(doomed, timeout_s=15)
        self._parts.clear()

    def command(self, *arguments: str) -> str:
        """Run `airflow …` and return its output. Raises LocalStackError if it fails."""
        done = subprocess.run(
            [Path(sys.executable).parent / "airflow", *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise LocalStackError(
                f"airflow {' '.join(arguments)} failed: {(done.stdout + done.stderr)[-2000:]}"
            )
        return done.stdout

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Call Airflow's REST API, below /api/v2, and return its JSON answer. Raises httpx.HTTPError."""
        if self._api is None:
            self._api = airflow_api(self.url, self.user, self.password)
        answer = self._api.request(method, f"/api/v2{path}", **arguments).raise_for_status()
        return answer.json() if answer.content else None

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has parsed a DAG, and unpause it. Raises LocalStackError with any import error."""
        if not wait_until(lambda: self._unpause(dag_id), _READY_TIMEOUT_S, every_s=0.5):
            raise LocalStackError(
                f"Airflow has not loaded the DAG {dag_id!r} within {_READY_TIMEOUT_S:.0f} s"
            )

    def _unpause(self, dag_id: str) -> bool:
        """Unpause a DAG. Return False if Airflow does not know it yet. Raises LocalStackError for import errors."""
        try:
            self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
        else:
            return True
        if errors := self.request("GET", "/importErrors")["import_errors"]:
            tracebacks = "\n".join(error["stack_trace"] for error in errors)
            raise LocalStackError(f"Airflow could not import the DAG {dag_id!r}:\n{tracebacks}")
        return False

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run, and return its run_id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        run_id: str = self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"]
        return run_id

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        state: str = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
        return state

    def task_states(self, dag_id: str, run_id: str) -> dict[str, tuple[str | None, int]]:
        """Return the state and the number of tries of each task."""
        tasks = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: (task["state"], task["try_number"]) for task in tasks}

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout_s: float = 600) -> str:
        """Wait until a run has ended, and return its state. Raises LocalStackError if it does not end in time."""
        if not wait_until(
            lambda: self.run_state(dag_id, run_id) in ("success", "failed"), timeout_s, every_s=0.5
        ):
            states = self.task_states(dag_id, run_id)
            raise LocalStackError(
                f"the run {run_id} has not ended within {timeout_s:.0f} s; its tasks: {states}"
            )
        return self.run_state(dag_id, run_id)

    def _wait(self) -> None:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((httpx.HTTPError, _Unhealthy)),
            wait=tenacity.wait_fixed(0.5),
            stop=tenacity.stop_after_delay(_READY_TIMEOUT_S),
            reraise=True,
        )
        try:
            retrying(self._check_health)
        except (httpx.HTTPError, _Unhealthy) as error:
            raise LocalStackError(
                f"Airflow is not healthy after {_READY_TIMEOUT_S:.0f} s: {error}. The logs are in {self.home}."
            ) from error

    def _check_health(self) -> None:
        for name, part in self._parts.items():
            if part.running() is None:
                log = (self.home / f"{name}.log").read_text(errors="replace").splitlines()
                raise LocalStackError(
                    f"Airflow's {name} has ended. Its log is {self.home / name}.log:\n"
                    + "\n".join(f"  {line}" for line in log[-12:])
                )
        health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5).raise_for_status().json()
        stopped = {part.replace("-", "_") for part in _PARTS if part not in self._parts}
        unhealthy = [
            name
            for name in ("metadatabase", "scheduler", "dag_processor")
            if name not in stopped and health[name]["status"] != "healthy"
        ]
        if unhealthy:
            raise _Unhealthy(f"{', '.join(unhealthy)} not healthy")


class _Unhealthy(Exception):
    """A part does not answer yet."""


def _connections(stack: LocalStack) -> dict[str, dict[str, Any]]:
    postgres = parse_dsn(stack.postgres_dsn)
    return {
        "kafka_default": {"conn_type": "kafka", "extra": dict(stack.kafka_properties)},
        "postgres_default": {
            "conn_type": "postgres",
            "host": postgres["host"],
            "port": int(postgres["port"]),
            "schema": postgres["dbname"],
            "login": postgres["user"],
        },
        "spark_default": {"conn_type": "spark", "host": "local[2]"},
        **_connect(stack),
    }


def _connect(stack: LocalStack) -> dict[str, dict[str, Any]]:
    """The connection for engine="connect", if the stack has a Spark Connect server."""
    if stack.connect.pid is None:
        return {}
    host, _, port = stack.connect.address.partition(":")
    return {
        "spark_connect_default": {
            "conn_type": "spark_connect",
            "host": f"sc://{host}",
            "port": int(port),
            "login": "airflow",
            "password": stack.connect.token,
        }
    }
