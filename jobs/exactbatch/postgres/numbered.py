"""psycopg2 connections for statements with numbered parameters ($1, $2, …), which ADBC takes, too."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg2.extensions

from exactbatch.postgres.connection import Connection, Cursor

_PARAMETER: Final = re.compile(r"\$(\d+)")


class NumberedCursor:
    """A cursor whose statements have numbered parameters; rows are tuples.

    psycopg2: the cursor itself
    """

    def __init__(self, cursor: Cursor) -> None:
        self.psycopg2 = cursor

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Execute a statement."""
        if parameters:
            self.psycopg2.execute(*named(statement, parameters))
        else:
            self.psycopg2.execute(statement)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        # Not that of NamedTupleCursor: columns of a statement may have the same name.
        return psycopg2.extensions.cursor.fetchall(self.psycopg2)


class NumberedConnection:
    """A connection whose cursors are NumberedCursors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def cursor(self) -> Iterator[NumberedCursor]:
        """Yield a cursor, which is closed at the end."""
        with self._connection.cursor() as cursor:
            yield NumberedCursor(cursor)

    def commit(self) -> None:
        """Commit."""
        self._connection.commit()

    def rollback(self) -> None:
        """Roll back."""
        self._connection.rollback()


def named(statement: str, parameters: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return a statement whose numbered parameters have names, as psycopg2 takes them, and their values by name."""
    values = {f"p{number}": value for number, value in enumerate(parameters, 1)}
    return _PARAMETER.sub(r"%(p\1)s", statement.replace("%", "%%")), values
