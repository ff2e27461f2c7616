"""Airflow on this machine, on top of a local stack: for `exactbatch local up --airflow`, the demo and the tests."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg2
from psycopg2.extensions import parse_dsn

from exactbatch.local.airflow_client import AirflowClient
from exactbatch.local.airflow_parts import AIRFLOW, AirflowPart, search_path, stop_parts
from exactbatch.local.child_process import HOST
from exactbatch.local.server import PortTaken, Progress, silent
from exactbatch.local.stack import START_ATTEMPTS, LocalStack
from exactbatch.local.stack_error import LocalStackError

_DATABASE: Final = "airflow"
# The tasks that run at the same time; a pool has as many slots.
_TASKS: Final = 2
# Shorter intervals, in seconds, at which Airflow looks for work: the defaults add seconds to each task, and
# minutes until it finds a new DAG file.
_LATENCY: Final = {
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3",
    "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "3",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__CORE__PARALLELISM": str(_TASKS),
}


class LocalAirflow(AirflowClient):
    """Airflow's API server, scheduler and DAG processor, with the connections of a stack.

    It writes only to `<stack folder>/airflow`, and the stack's state.json has its processes. `dags` is the folder of
    DAG files; plugins are in `plugins` beside it. `connections`, in Airflow's JSON format, are added to kafka_default,
    postgres_default, spark_default, airflow_default and, if a Spark Connect server runs, spark_connect_default, or
    replace them. Airflow listens on `port` if that is free, and otherwise on the port of its last start, on 8080 or on
    any free port; with `anywhere`, on any free port. `path` is the path below which its pages are.
    """

    def __init__(
        self,
        stack: LocalStack,
        dags: Path,
        *,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
        progress: Progress = silent,
        port: int | None = None,
        anywhere: bool = False,
        path: str = "",
    ) -> None:
        super().__init__(stack.api_server)
        self.home = stack.api_server.folder
        self.dags_folder = dags.absolute()
        stack.api_server.path = path
        self._stack, self._progress = stack, progress
        self._port, self._anywhere = port, anywhere
        self._added_connections, self._added_environment = dict(connections or {}), dict(environment or {})
        self._parts = {part.command: part for part in stack.airflow_parts}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every Airflow command of this installation."""
        return {**os.environ, **search_path(), **self._own_environment()}

    def _own_environment(self) -> dict[str, str]:
        # The parts sign messages to each other, and a part may start again later than the others. The password stays,
        # so this does.
        secret = self.password * 4
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.dags_folder.parent / "plugins"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{self.user}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__API__PORT": str(self._api_server.port),
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": secret,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database_url,
            "PYTHONDONTWRITEBYTECODE": "1",
            **_LATENCY,
            **{
                f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in self._connections().items()
            },
            **self._added_environment,
        }

    def _connections(self) -> dict[str, Mapping[str, Any]]:
        itself = {
            "conn_type": "http",
            "host": f"http://{HOST}",
            "port": self._api_server.port,
            "login": self.user,
            "password": self.password,
        }
        return {**_connections(self._stack), "airflow_default": itself, **self._added_connections}

    @property
    def _database_url(self) -> str:
        """The URL of the database of the stack's Postgres that has Airflow's tables."""
        dsn = parse_dsn(self._stack.postgres_dsn)
        return f"postgresql+psycopg2://{dsn['user']}:{self._stack.postgres.password}@{dsn['host']}:{dsn['port']}/{_DATABASE}"

    def up(self, *, parts: Sequence[str] = ("api-server", "scheduler", "dag-processor")) -> bool:
        """Start the parts that do not run, wait until they are healthy, and create the pools that DAGs name.

        A part that runs with another configuration starts again: with other connections or another folder of DAGs.
        If it is not among `parts`, it only stops: a DAG processor of another folder would remove this folder's DAGs.
        Return False if all parts were up.

        Raises LocalStackError if there is no folder of DAGs, or if a part ends or is not healthy in time.
        """
        if not self.dags_folder.is_dir():
            raise LocalStackError(
                f"there is no folder {self.dags_folder} for DAG files. Create it, or name another one."
            )
        wanted = [self._parts[name] for name in parts]
        with self._stack.lock():
            self._api = None
            # A part that has ended may have left tasks behind, and its port may still be taken.
            stop_parts([part for part in wanted if part.pid is None])
            for attempt in range(1, START_ATTEMPTS + 1):
                if self._api_server.pid is None:
                    preferred = {} if self._port is None else {"client": self._port}
                    self._api_server.configure(preferred, None, anywhere=self._anywhere or attempt > 1)
                down = self._down(wanted)
                try:
                    self._start(down, wanted)
                    break
                except PortTaken:
                    if attempt == START_ATTEMPTS:
                        raise
            self.create_pools(_TASKS)
        return bool(down)

    def _down(self, wanted: Sequence[AirflowPart]) -> list[AirflowPart]:
        """Stop all parts that run with another configuration. Return the wanted parts that do not run."""
        environment = self._own_environment()
        outdated = [
            part for part in self._parts.values() if part.pid is not None and not part.runs_with(environment)
        ]
        if outdated:
            self._progress("stopping Airflow, whose configuration has changed")
        stop_parts(outdated)
        down = [part for part in wanted if part.pid is None]
        for part in down:
            part.environment = environment
        return down

    def _start(self, down: Sequence[AirflowPart], wanted: Sequence[AirflowPart]) -> None:
        """Start the parts that are down, and wait for all that are wanted. If one fails, stop those that were down."""
        if down:
            self._progress("creating Airflow's tables")
            self._create_database()
            self.command("db", "migrate")
        # Before the DAG processor starts: if both read a file at the same time, its DAGs may be left stale.
        self._progress("reading the DAG files")
        self._read_dags()
        try:
            if down:
                self._progress("starting Airflow")
            for part in down:
                part.launch()
            self._progress("waiting for Airflow")
            for part in wanted:
                part.wait()
        except BaseException:
            stop_parts(down)
            raise

    def _read_dags(self) -> None:
        """Let Airflow know all DAGs now, and not when the DAG processor has come to them."""
        try:
            self.command("dags", "reserialize")
        except LocalStackError as error:
            # A file can end the process that imports it. The DAG processor imports each file in another process.
            self._progress(f"the DAG files could not be read together, so Airflow reads one by one: {error}")

    def _create_database(self) -> None:
        with closing(psycopg2.connect(self._stack.postgres_dsn)) as connection:
            connection.autocommit = True  # a database cannot be created in a transaction
            with connection.cursor() as cursor:
                cursor.execute("select from pg_database where datname = %s", (_DATABASE,))
                if cursor.rowcount == 0:
                    cursor.execute(f"create database {_DATABASE}")

    def start(self, part: str) -> None:
        """Start one part again, as it was: api-server, scheduler or dag-processor."""
        started = self._parts[part]
        started.environment = self._own_environment()
        started.start()

    def pid(self, part: str) -> int:
        """Return the pid of a part. Raises LocalStackError if it does not run."""
        pid = self._parts[part].pid
        if pid is None:
            raise LocalStackError(f"{self._parts[part].title} does not run")
        return pid

    def down(self) -> None:
        """Stop all parts, and all of their child processes."""
        stop_parts([part for part in self._parts.values() if part.was_started])

    def command(self, *arguments: str) -> str:
        """Run `airflow …` and return its output. Raises LocalStackError if it fails."""
        self.home.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [AIRFLOW, *arguments],
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
            "password": stack.postgres.password,
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
