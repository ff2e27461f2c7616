"""A Postgres server and a streaming replica of it, which can fall behind and take its place."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg2
from psycopg2.extensions import make_dsn

from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST
from exactbatch.local.postgres import (
    SUPERUSER,
    Postgres,
    as_account,
    executables,
    hand_over,
    postgres_account,
)
from exactbatch.local.state import write_secret
from support.waiting import wait_for

_SETTINGS: Final = {"max_connections": "60", "shared_buffers": "16MB", "wal_receiver_status_interval": "1s"}
_TIMEOUT: Final = 60.0  # seconds


class Pair:
    """Two servers; `primary` is the one that clients write to. After fail_over() they have changed places."""

    def __init__(self, home: Path, name: str) -> None:
        self._stacks = [LocalStack(home, name=f"{name}-{each}") for each in "ab"]
        self.primary, self.replica = (each.postgres for each in self._stacks)
        for each in (self.primary, self.replica):
            each.configure({}, _SETTINGS, anywhere=True)
        self.primary.start()
        self._addresses = [(HOST, str(each.port)) for each in (self.primary, self.replica)]

    def close(self) -> None:
        """End both, and remove their data."""
        for each in self._stacks:
            each.down(delete=True)

    def dsn(self, database: str) -> str:
        """A connection string that finds whichever of the two can be written to."""
        hosts, ports = (",".join(each) for each in zip(*self._addresses, strict=True))
        return str(
            make_dsn(
                self.primary.dsn, host=hosts, port=ports, dbname=database, target_session_attrs="read-write"
            )
        )

    def attach(self, *, synchronous: bool) -> None:
        """Make the replica again from the primary, and wait until it follows."""
        self.detach()
        shutil.rmtree(self.replica.data_dir, ignore_errors=True)
        self.replica.data_dir.mkdir(parents=True, mode=0o700)
        if (account := postgres_account()) is not None:
            hand_over(self.replica.data_dir, account)
        write_secret(self.replica.folder / "secret", self.primary.secret)  # its data have that password
        _as_postgres(
            executables() / "pg_basebackup",
            *("-D", self.replica.data_dir, "-d", _dsn(self.primary)),
            *("--write-recovery-conf", "--create-slot", "--slot=replica", "--checkpoint=fast", "--no-sync"),
        )
        self.replica.start()
        wait_for(lambda: self.ask("select count(*) from pg_stat_replication where state = 'streaming'") == 1)
        if synchronous:
            self._set("synchronous_standby_names", "*", self.primary)

    def detach(self) -> None:
        """End the replica; the primary goes on alone."""
        self._set("synchronous_standby_names", "", self.primary)
        self.replica.stop()
        wait_for(lambda: self.ask("select count(*) from pg_replication_slots where active") == 0)
        self.ask("select count(pg_drop_replication_slot(slot_name)) from pg_replication_slots")

    def fall_behind(self) -> None:
        """Let the replica receive nothing from now on, after it has received all there is."""
        position = self.ask("select pg_current_wal_lsn()")
        wait_for(
            lambda: self.ask("select pg_last_wal_receive_lsn() >= %s::pg_lsn", position, of=self.replica)
        )
        self._set("primary_conninfo", "", self.replica)
        wait_for(lambda: self.ask("select count(*) from pg_stat_replication") == 0)

    def fail_over(self) -> None:
        """SIGKILL the primary, and let the replica take its place with what it has received."""
        self.primary.kill()
        self.promote()

    def promote(self) -> None:
        """Let the replica take writes, whatever the primary does."""
        assert self.ask(f"select pg_promote(true, {_TIMEOUT:.0f})", of=self.replica)
        self.primary, self.replica = self.replica, self.primary

    @contextmanager
    def copied(self, folder: Path) -> Iterator[None]:
        """Take the primary's data back, at the end, to what they are now: a restore in its simplest form."""
        copy = folder / "copy"
        self.primary.stop()
        subprocess.run(["cp", "-a", self.primary.data_dir, copy], check=True)
        self.primary.start()
        yield
        self.primary.stop()
        shutil.rmtree(self.primary.data_dir)
        copy.rename(self.primary.data_dir)
        self.primary.start()

    def ask(self, query: str, *arguments: Any, of: Postgres | None = None) -> Any:
        """The one value of a query, of the primary unless another is named."""
        with closing(psycopg2.connect(_dsn(of or self.primary))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query, arguments or None)
                return next(iter(cursor.fetchone() or [None])) if cursor.description else None

    def _set(self, name: str, value: str, server: Postgres) -> None:
        self.ask(f"alter system set {name} = %s", value, of=server)
        self.ask("select pg_reload_conf()", of=server)


def _dsn(server: Postgres) -> str:
    return str(make_dsn(server.dsn, dbname=SUPERUSER))


def _as_postgres(*command: str | Path) -> None:
    done = subprocess.run(as_account(postgres_account(), command), capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
