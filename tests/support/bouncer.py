"""A real PgBouncer before the tests' Postgres."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch.local.child_process import HOST, accepts, find_port
from exactbatch.local.postgres import postgres_account
from support.logins import as_login, password_of

CONFIGURATION = """
[databases]
* = host={host} port={server}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
logfile = {folder}/log
pool_mode = {mode}
default_pool_size = {size}
query_wait_timeout = 20
{more}
"""


def executable() -> str:
    """PgBouncer of this machine. Raises AssertionError where there is none."""
    found = shutil.which(
        "pgbouncer",
        path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:{Path(sys.executable).parent}",
    )
    assert found, "these tests need PgBouncer: run .ci/setup pgbouncer"
    return found


@contextmanager
def bouncer(
    dsn: str, mode: str, *, logins: Sequence[str] = (), size: int = 20, more: str = ""
) -> Iterator[str]:
    """Run a PgBouncer; gives the connection string that goes through it.

    `mode` is "session", "transaction" or "statement", `more` are further lines of its configuration.
    """
    server, port = parse_dsn(dsn), find_port(None)
    with tempfile.TemporaryDirectory(prefix="bouncer-") as name:
        folder = Path(name)
        users = {server["user"]: password_of(dsn)} | {
            login: password_of(as_login(dsn, login)) for login in logins
        }
        (folder / "users.txt").write_text(
            "".join(f'"{user}" "{password}"\n' for user, password in users.items())
        )
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            CONFIGURATION.format(
                host=HOST, server=server["port"], port=port, folder=folder, mode=mode, size=size, more=more
            )
        )
        identity: dict[str, Any] = {}
        if (account := postgres_account()) is not None:  # it refuses to run as root
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            for path in (folder, *folder.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
        process = subprocess.Popen(
            [executable(), "--quiet", configuration],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            **identity,
        )
        try:
            deadline = time.monotonic() + 10
            while not accepts(port):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "PgBouncer does not listen"
                time.sleep(0.02)
            yield str(make_dsn(dsn, port=port))
        finally:
            process.terminate()
            process.wait(10)
