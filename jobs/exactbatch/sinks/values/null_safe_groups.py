"""Group and join rows by columns in which null is a value like any other."""

from collections.abc import Iterable, Sequence

from psycopg2 import sql


def group_hash(group_by: Sequence[str], of: str | None = None) -> sql.Composable:
    """Return an expression for one number per group, which an index can hold; nulls are equal in it."""
    return sql.SQL("hash_record_extended(row({}), 0)").format(column_list(group_by, of=of))


def same_group(group_by: Sequence[str], one: str, other: str) -> sql.Composable:
    """Return the condition that two rows belong to the same group; their columns have the same types."""
    return sql.SQL(" and ").join(
        [
            # Postgres can join by the hash. By the comparisons alone it would compare every row with every other.
            sql.SQL("{} = {}").format(group_hash(group_by, one), group_hash(group_by, other)),
            *(
                sql.SQL("{} is not distinct from {}").format(
                    sql.Identifier(one, name), sql.Identifier(other, name)
                )
                for name in group_by
            ),
        ]
    )


def column_list(names: Iterable[str], *, of: str | None = None) -> sql.Composable:
    """Return column names separated by commas, qualified with the table `of` if one is given."""
    return sql.SQL(", ").join(sql.Identifier(*([of] if of else []), name) for name in names)


def same_values(names: Iterable[str], one: str, other: str) -> sql.Composable:
    """Return the condition that columns of two relations are equal; null is equal to nothing."""
    return sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name)) for name in names
    )
