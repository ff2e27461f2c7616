"""A Postgres for tests: it ends with the process that starts it, and leaves nothing behind."""

import atexit
import subprocess
import time
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import psycopg2
from psycopg2.extensions import make_dsn

from exactbatch.local.account import as_account, hand_over, postgres_account
from exactbatch.local.postgres import SUPERUSER, executables, run_initdb, take_end
from exactbatch.local.secret import new_secret
from exactbatch.local.stack_error import LocalStackError

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


@cache
def start_disposable() -> str:
    """Return the connection string of a Postgres that ends with this process. It starts with the first call, in about
    two seconds.

    Raises LocalStackError if it cannot start.
    """
    account, password = postgres_account(), new_secret()
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
