"""What the connections of tasks have in common, whether ADBC or psycopg2 opened them."""

from contextlib import AbstractContextManager
from typing import Any, Protocol


class TaskCursor(Protocol):
    """An ArrowCursor or a NumberedCursor. Its statements have numbered parameters; rows are tuples."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any:
        """Execute a statement."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...


class TaskConnection(Protocol):
    """An ArrowConnection or a NumberedConnection."""

    def cursor(self) -> AbstractContextManager[Any]:
        """Return a TaskCursor."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def rollback(self) -> None:
        """Roll back."""
        ...


def one_row(cursor: TaskCursor, statement: str, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the single row of a statement. ADBC returns no row count for a statement with parameters."""
    cursor.execute(statement, parameters)
    (row,) = cursor.fetchall()
    return tuple(row)
