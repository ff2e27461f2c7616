"""The index on the key of a table of changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg2.errors
from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.values.null_safe_groups import column_list


@dataclass(frozen=True)
class ChangeIndex:
    """The index of a table of changes on the key.

    It is created when the first changes have been inserted: one sort of all keys takes a third of the time of as many
    insertions into the index.
    """

    changes: LineageTable
    key: Sequence[str]

    def insert(self, cursor: Cursor, insert: Callable[[], int]) -> int:
        """Call `insert`, which inserts changes and returns how many; create the index after the first ones.

        Raises what `insert` raises.
        """
        if not self._is_due(cursor):
            return insert()
        cursor.execute("savepoint first_changes")
        inserted = insert()
        try:
            self._create(cursor)
        except psycopg2.errors.ProgramLimitExceeded:
            # A key is too long for the index: a refused insertion names its record.
            cursor.execute("rollback to savepoint first_changes")
            self._create(cursor)
            inserted = insert()
        cursor.execute("release savepoint first_changes")
        return inserted

    def _is_due(self, cursor: Cursor) -> bool:
        """True if there is neither a change nor an index on the key, and this login may create an index."""
        cursor.execute(
            "select c.relkind = 'r' and pg_has_role(c.relowner, 'usage') "
            "and has_schema_privilege(c.relnamespace, 'create') and not exists ("
            "select from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] "
            "where i.indrelid = c.oid and i.indisvalid and i.indpred is null and a.attname = any(%s)) "
            "from pg_class c where c.oid = %s::regclass",
            (list(self.key), self.changes.identifier.as_string(cursor)),
        )
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(sql.SQL("select not exists (select from {})").format(self.changes.identifier))
        if not cursor.fetchone()[0]:
            return False
        # Two pipelines with one target may write their first changes at the same time. An index locks out the changes
        # of others, so that each would wait for the other one to end.
        cursor.execute(
            "select exactbatch.try_lock('index of ' || %s)", (self.changes.identifier.as_string(cursor),)
        )
        return bool(cursor.fetchone()[0])

    def _create(self, cursor: Cursor) -> None:
        create_named(
            cursor, sql.SQL("create index on {} ({})").format(self.changes.identifier, column_list(self.key))
        )
