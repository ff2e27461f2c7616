"""Create schemas, tables and indexes that another session may create, or whose names it may take, at the same time."""

from collections.abc import Callable
from typing import Final

import psycopg2.errors
from psycopg2 import sql

from exactbatch.errors.sqlstates import is_of_catalog
from exactbatch.postgres.connection import Cursor

_TRIES: Final = 20


def create_schema(cursor: Cursor, name: str) -> None:
    """Create a schema unless it exists, even if another session creates it at the same time."""

    def create() -> None:
        # Even if the schema exists, `if not exists` asks for the privilege to create one.
        cursor.execute("select to_regnamespace(quote_ident(%s)) is null", (name,))
        if cursor.fetchone()[0]:
            cursor.execute(sql.SQL("create schema {}").format(sql.Identifier(name)))

    _until_not_overtaken(cursor, create)


def create_named(cursor: Cursor, statement: sql.Composable) -> None:
    """Run a statement that creates a table or an index.

    Postgres chooses the names of indexes and of a table's types, from the first letters of long names. If another
    session has taken the name before this transaction sees it, the statement runs again and gets another one.
    """
    _until_not_overtaken(cursor, lambda: cursor.execute(statement))


def _until_not_overtaken(cursor: Cursor, create: Callable[[], None]) -> None:
    """Create something, and again after the commit of another session that took its name."""
    for remaining in reversed(range(_TRIES)):
        cursor.execute("savepoint creation")
        try:
            create()
        except (psycopg2.errors.UniqueViolation, psycopg2.errors.DuplicateSchema) as error:
            overtaken = isinstance(error, psycopg2.errors.DuplicateSchema) or is_of_catalog(str(error))
            if not (overtaken and remaining):
                raise
            cursor.execute("rollback to savepoint creation")
            continue
        cursor.execute("release savepoint creation")
        return
