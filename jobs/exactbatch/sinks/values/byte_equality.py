"""Compare rows byte by byte: Postgres's `=` also holds for values that look different, such as 1.0 and 1.00."""

import re
from typing import Final

from psycopg2 import sql

# Types whose equal values have the same bytes. Not so numeric (1.0, 1.00), floats (0, -0), interval (30 days, a
# month) and citext.
_ONE_IMAGE: Final = re.compile(
    r"smallint|integer|bigint|boolean|text|character(?: varying)?(?:\(\d+\))?|uuid|date|bytea|numeric\(\d+,\d+\)"
    r"|time(?:stamp)?(?:\(\d\))? with(?:out)? time zone"
)


def has_one_image(type_: str) -> bool:
    """True if equal values of a type, as format_type() prints it, are always the same bytes."""
    return _ONE_IMAGE.fullmatch(type_) is not None


def differs(one: sql.Composable, other: sql.Composable) -> sql.Composable:
    """Return the condition that two lists of values differ in any byte, even if the values are equal."""
    return sql.SQL("record_image_ne(row({}), row({}))").format(one, other)
