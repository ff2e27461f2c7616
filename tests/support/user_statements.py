"""Statements that a test itself sends are those of a user: they find what is on the login's search path."""

import sys
from typing import Any

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from support.environment import TESTS

_execute = Cursor.execute
# They leave the path as it is.
_SAVEPOINTS = ("savepoint", "rollback", "release")


def _execute_as_user(self: Cursor, query: Any, vars: Any = None) -> None:
    """Execute a statement, on the path of statements over targets if a file of the tests calls this."""
    is_of_test = isinstance(query, str) and sys._getframe(1).f_code.co_filename.startswith(str(TESTS))
    if is_of_test and not query.startswith(_SAVEPOINTS):
        query = sql.SQL(query)
    _execute(self, query, vars)


def let_tests_use_the_path_of_the_login() -> None:
    """Let every later statement of a test find tables by names without a schema."""
    Cursor.execute = _execute_as_user  # type: ignore[method-assign]
