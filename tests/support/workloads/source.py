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
# The tables. An update of those with replica identity full decodes with its whole old row; without it, the event lacks
# a long value that has not changed. A deferrable key cannot be a replica identity.
_CREATE: Final = "create table {table} (id int primary key {check}, note text, body text)"
# Values are out of the row at 2 kB, and not compressed.
_OUT_OF_LINE: Final = "alter table {table} alter column body set storage external"
_WHOLE: Final = "alter table {table} replica identity full"
_TABLES: Final = {
    "plain": (_CREATE.format(table="plain", check=""),),
    "whole": (_CREATE.format(table="whole", check=""), _WHOLE.format(table="whole")),
    "deferred": (
        _CREATE.format(table="deferred", check="deferrable initially deferred"),
        _WHOLE.format(table="deferred"),
    ),
}
TABLES: Final = tuple(_TABLES)

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
    """The tables whose changes are captured. No two of them have a row of the same key."""

    def __init__(self, server: Postgres) -> None:
        self.dsn = server.dsn
        self._control = psycopg2.connect(server.dsn)
        self._control.autocommit = True
        for table, statements in _TABLES.items():
            for each in (f"drop table if exists {table}", *statements, _OUT_OF_LINE.format(table=table)):
                self.execute(each)
        self.execute("drop publication if exists captured")
        self.execute(f"create publication captured for table {', '.join(TABLES)}")

    def execute(self, statement: str, *arguments: Any) -> None:
        """Run a statement in a transaction of its own."""
        with self._control.cursor() as cursor:
            cursor.execute(statement, arguments or None)

    def fetch(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._control.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())

    def rows(self) -> dict[str, list[Row]]:
        """Return what each table has now."""
        return {each: self.fetch(f"select id, note, body from {each} order by id") for each in TABLES}

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
