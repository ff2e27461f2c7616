"""A Postgres of its own as the source of changes: tables, a publication and a replication slot."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg2

from exactbatch.local.postgres import Postgres
from support.stacks import new_stack
from support.workloads.pgoutput import Committed, transactions_of

# Deadlocks are part of the workloads. The server is deleted afterwards, so that nothing needs to reach a disk.
SETTINGS: Final = {
    "wal_level": "logical",
    "max_prepared_transactions": "20",
    "deadlock_timeout": "20ms",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
}
COLUMNS: Final = "id int, note text, body text"
_SLOT: Final = "connector"
# An update of such a table decodes with its whole old row; a deferrable key cannot be a replica identity.
KINDS: Final = {
    "plain": "create table {name} (id int primary key, note text, body text)",
    "full": "create table {name} (id int primary key, note text, body text); "
    "alter table {name} replica identity full",
    "deferrable": "create table {name} (id int primary key deferrable initially deferred, note text, body text); "
    "alter table {name} replica identity full",
}
# A value of TOAST is out of line at 2 kB, and not compressed.
_OUT_OF_LINE: Final = "alter table {name} alter column body set storage external"

Row = tuple[int, str | None, str | None]


@contextmanager
def running_source() -> Iterator[Postgres]:
    """Start a server with logical decoding, and delete it at the end."""
    stack = new_stack("source")
    try:
        stack.postgres.configure({}, SETTINGS, anywhere=True)
        stack.postgres.start()
        yield stack.postgres
    finally:
        stack.down(delete=True)


class Source:
    """A table whose changes are captured. `kind` is one of KINDS."""

    def __init__(self, server: Postgres, name: str, kind: str) -> None:
        self.dsn, self.name, self.kind = server.dsn, name, kind
        self._control = psycopg2.connect(server.dsn)
        self._control.autocommit = True
        self.execute(f"drop table if exists {name}; drop publication if exists captured")
        self.execute(f"{KINDS[kind]}; {_OUT_OF_LINE}".format(name=name))
        self.execute(f"create publication captured for table {name}")

    @property
    def is_deferrable(self) -> bool:
        """True if a key may be in the table twice until the commit."""
        return self.kind == "deferrable"

    def execute(self, statement: str, *arguments: Any) -> None:
        """Run a statement in a transaction of its own."""
        with self._control.cursor() as cursor:
            cursor.execute(statement, arguments or None)

    def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._control.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())

    def rows(self) -> list[Row]:
        """Return what the table has now."""
        return self.fetch(f"select id, note, body from {self.name} order by id")

    def position(self) -> int:
        """Return where the write-ahead log ends."""
        return int(self.fetch("select pg_current_wal_lsn() - '0/0'")[0][0])

    def create_slot(self) -> None:
        """Begin to capture changes: what is in the table now is the snapshot's. No transaction may be open."""
        self.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", _SLOT)

    def transactions(self) -> list[Committed]:
        """Return what has committed since the last call, in the order of the commits."""
        messages = self.fetch(
            "select lsn - '0/0', data from pg_logical_slot_get_binary_changes"
            "(%s, null, null, 'proto_version', '1', 'publication_names', 'captured', 'messages', 'true')",
            _SLOT,
        )
        return list(transactions_of((int(lsn), bytes(data)) for lsn, data in messages))

    def close(self) -> None:
        """Drop the slot, without which the server keeps its log."""
        self.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        self._control.close()
