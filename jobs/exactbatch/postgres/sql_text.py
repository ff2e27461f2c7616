"""Parts of statements: long arrays, and the alias of a row."""

from collections.abc import Iterable
from typing import Final

from psycopg2 import sql

ROW: Final = sql.Identifier("exactbatch row")


def bigint_array(numbers: Iterable[int]) -> sql.Composable:
    """Return an array of type bigint[] as one constant.

    psycopg2 would write array[1, 2, …], and Postgres would make a node for each number: too many for the batches of a
    year.
    """
    return sql.SQL("{}::bigint[]").format(sql.Literal("{" + ",".join(map(str, numbers)) + "}"))
