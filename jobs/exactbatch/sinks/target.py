"""The table that a sink writes to: its name, its columns, and what it refuses."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch

# What may be stored in a wider column of the target without changing a value.
_WIDER: Final = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric", "double precision"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying"},
}
_IDENTIFIER: Final = re.compile(r'"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*)')


@dataclass(frozen=True)
class TargetTable:
    """A table, written `schema.table`; a part that is not lower-case goes in double quotes.

    Raises ConfigurationError for what is no such name.
    """

    written: str

    def __post_init__(self) -> None:
        if not _is_table_name(self.written):
            raise ConfigurationError(
                f"expected a target as 'schema.table', lower-case or in double quotes, found {self.written!r}"
            )

    @property
    def name(self) -> tuple[str, str]:
        """Schema and table as Postgres stores them; the schema is public when none is written."""
        parts = [
            match[1].replace('""', '"') if match[1] else match[2]
            for match in _IDENTIFIER.finditer(self.written)
        ]
        return (parts[0], parts[1]) if len(parts) > 1 else ("public", parts[0])

    @property
    def identifier(self) -> sql.Composable:
        """The table as an SQL identifier."""
        return sql.Identifier(*self.name)

    def prepare(
        self, cursor: Any, columns: Sequence[Column], *, required: Sequence[str] = (), key: Sequence[str] = ()
    ) -> bool:
        """Create the table when it is missing, and otherwise check its columns; return whether it was missing.

        A new table has `required` columns that may not be null, and `key`, if any, as its primary key.

        Raises TargetMismatch, which names the column and both types.
        """
        # Two launches that create the same target at once: the second waits here and then finds it.
        cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (".".join(self.name),))
        if self.exists(cursor):
            self._check_columns(cursor, columns)
            return False
        definitions = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(column.name),
                sql.SQL(column.type),
                sql.SQL(" not null" if column.name in required else ""),
            )
            for column in columns
        ]
        if key:
            names = sql.SQL(", ").join(map(sql.Identifier, key))
            definitions.append(sql.SQL("primary key ({})").format(names))
        cursor.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(self.name[0])))
        cursor.execute(
            sql.SQL("create table {} ({})").format(self.identifier, sql.SQL(", ").join(definitions))
        )
        return True

    def exists(self, cursor: Any) -> bool:
        """Whether there is such a table. Raises TargetMismatch when something else bears its name."""
        return bool(self._columns_found(cursor))

    def execute(self, cursor: Any, statement: sql.Composable) -> int:
        """Run a statement that writes into the table; return how many rows it wrote.

        Raises TargetMismatch when a constraint refuses a row.
        """
        try:
            cursor.execute(statement)
        except psycopg2.IntegrityError as error:
            raise TargetMismatch(
                f"target {self.written}: expected its constraints to take every row of the batch, found: "
                f"{error.diag.message_primary} ({error.diag.message_detail}). Nothing was written. Correct the "
                f"constraint, or what the pipeline writes."
            ) from error
        return int(cursor.rowcount)

    def _check_columns(self, cursor: Any, columns: Sequence[Column]) -> None:
        found = self._columns_found(cursor)
        for column in columns:
            actual = found.pop(column.name, None)
            if actual is None:
                raise TargetMismatch(
                    f"target {self.written}: expected a column {column.name} of type {column.type}, found none. "
                    f'Add it: alter table {self.written} add column "{column.name}" {column.type};'
                )
            if not _fits(column.type, actual.type):
                raise TargetMismatch(
                    f"target {self.written}, column {column.name}: expected type {column.type}, as the pipeline "
                    f"writes it, found {actual.type}. Change the pipeline's schema or the column's type."
                )
        for name, actual in found.items():
            if actual.required:
                raise TargetMismatch(
                    f"target {self.written}, column {name}: expected a column that the pipeline writes, one "
                    f"with a default or one that may be null, found {actual.type} not null without a default. "
                    f"Add it to the pipeline's schema, or give it a default."
                )

    def _columns_found(self, cursor: Any) -> "dict[str, _FoundColumn]":
        cursor.execute(
            """
            select c.relkind, a.attname, format_type(a.atttypid, a.atttypmod),
                   a.attnotnull and not a.atthasdef and a.attidentity = ''
            from pg_class c
            join pg_namespace n on n.oid = c.relnamespace
            join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            where n.nspname = %s and c.relname = %s
            """,
            self.name,
        )
        rows = cursor.fetchall()
        if rows and rows[0][0] not in ("r", "p"):
            raise TargetMismatch(
                f"target {self.written}: expected a table, found something else of that name (a view, a sequence "
                f"or an index). Give the pipeline another target."
            )
        return {name: _FoundColumn(type_, required) for _, name, type_, required in rows}


@dataclass(frozen=True, slots=True)
class _FoundColumn:
    type: str
    required: bool


def _is_table_name(text: str) -> bool:
    part = _IDENTIFIER.pattern
    return re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text) is not None


def _fits(written: str, found: str) -> bool:
    return found == written or found in _WIDER.get(written, set())
