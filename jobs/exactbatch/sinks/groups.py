"""Which rows are of the same group, where null is a value like any other."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from psycopg2 import sql

# Types of which equal values look the same; not so 1.0 and 1.00, 0 and -0, 30 days and a month, or a citext's.
_ONE_IMAGE: Final = re.compile(
    r"smallint|integer|bigint|boolean|text|character(?: varying)?(?:\(\d+\))?|uuid|date|bytea|numeric\(\d+,\d+\)"
    r"|time(?:stamp)?(?:\(\d\))? with(?:out)? time zone"
)


def has_one_image(type_: str) -> bool:
    """Whether equal values of a type, as format_type() prints it, are always the same bytes."""
    return _ONE_IMAGE.fullmatch(type_) is not None


def differs(names: Sequence[str], one: str, other: str) -> sql.Composable:
    """Whether rows differ in any byte of these columns, also where their values are equal."""
    return sql.SQL("record_image_ne(row({}), row({}))").format(listed(names, of=one), listed(names, of=other))


def group_hash(by: Sequence[str], of: str | None = None) -> sql.Composable:
    """One number for the group of a row, as an index can hold it; nulls are equal in it."""
    return sql.SQL("hash_record_extended(row({}), 0)").format(listed(by, of=of))


def same_group(by: Sequence[str], one: str, other: str) -> sql.Composable:
    """Whether two rows are of the same group; their columns have the same types."""
    return sql.SQL(" and ").join(
        [
            # Postgres can join by this; by what follows it would compare each row with each.
            sql.SQL("{} = {}").format(group_hash(by, one), group_hash(by, other)),
            *(
                sql.SQL("{} is not distinct from {}").format(
                    sql.Identifier(one, name), sql.Identifier(other, name)
                )
                for name in by
            ),
        ]
    )


def listed(names: Iterable[str], *, of: str | None = None) -> sql.Composable:
    """Names of columns with commas between them, each of the table `of` if one is given."""
    return sql.SQL(", ").join(sql.Identifier(*([of] if of else []), name) for name in names)
