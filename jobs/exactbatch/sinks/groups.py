"""Which rows are of the same group, where null is a value like any other."""

from collections.abc import Iterable, Sequence

from psycopg2 import sql


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
