"""The unique key of an Aggregate's target, in which null is a value like any other.

Postgres 14 has no `unique nulls not distinct`. But there, too, nulls are equal as elements of arrays, which otherwise
compare as their elements do. So the key is an index of array[column]; a column of arrays needs two expressions, because
array[…] is the same for null and for an empty array.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import psycopg2.errors
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import NULLS_NOT_DISTINCT, Since
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_unique
from exactbatch.sinks.values.null_safe_groups import column_list

# An index that compares otherwise than the types of its expressions do.
_LOOSE: Final = """
select i.indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = %s::regclass and c.relname = any(%s) and (
    exists (select from pg_opclass o where o.oid = any(i.indclass::oid[]) and not o.opcdefault)
    or exists (select from pg_collation n where n.oid = any(i.indcollation::oid[]) and not n.collisdeterministic))
order by 1 limit 1
"""


def group_key(groups: Sequence[Column]) -> sql.Composable:
    """Return what `on conflict` names: the columns of the groups, or the expressions of their index."""
    columns = column_list(column.name for column in groups)
    return Since(NULLS_NOT_DISTINCT, columns, sql.SQL(", ").join(_expressions(groups)))


def create_group_key(cursor: Cursor, table: TargetTable, groups: Sequence[Column]) -> None:
    """Let a new table have only one row for each group."""
    cursor.execute(_creation(table.identifier, groups))


def check_group_key(cursor: Cursor, table: TargetTable, groups: Sequence[Column]) -> None:
    """Raise TargetMismatch unless an existing table can have only one row for each group, and a row for each."""
    names = [column.name for column in groups]
    if cursor.connection.server_version >= NULLS_NOT_DISTINCT:
        check_unique(cursor, table, names, nulls_equal=True)
        return
    cursor.execute("savepoint group_key")
    try:
        # Postgres itself decides which indexes `on conflict` takes.
        cursor.execute(
            sql.SQL("explain (format json) insert into {} default values on conflict ({}) do nothing").format(
                table.identifier, group_key(groups)
            )
        )
    except psycopg2.errors.InvalidColumnReference:
        cursor.execute("rollback to savepoint group_key")
        raise TargetMismatch(
            f"target {table.spec}: expected a unique index on exactly ({', '.join(names)}), the key of the pipeline, "
            f"that treats nulls as equal, found none. Create it: "
            f"{_creation(table.identifier, groups).as_string(cursor)};"
        ) from None
    indexes = cursor.fetchone()[0][0]["Plan"]["Conflict Arbiter Indexes"]
    cursor.execute("release savepoint group_key")
    cursor.execute(_LOOSE, (table.identifier.as_string(cursor), indexes))
    if (row := cursor.fetchone()) is not None:
        raise TargetMismatch(
            f"target {table.spec}: the unique index {row[0]} compares the key by a collation or an operator class "
            f"that can make different values equal, so that a row would replace that of another key. Nothing was "
            f"written. Drop the index: drop index {row[0]};",
            constraint=row[0],
        )


def _creation(table: sql.Composable, groups: Sequence[Column]) -> sql.Composable:
    constraint, index = (
        sql.SQL("alter table {} add unique nulls not distinct ({})"),
        sql.SQL("create unique index on {} ({})"),
    )
    key = group_key(groups)
    return Since(NULLS_NOT_DISTINCT, constraint.format(table, key), index.format(table, key))


def _expressions(groups: Sequence[Column]) -> Iterator[sql.Composable]:
    for column in groups:
        name = sql.Identifier(column.name)
        if column.element is None:
            yield sql.SQL("(array[{}])").format(name)
        else:
            yield sql.SQL("({} is null)").format(name)
            yield sql.SQL("coalesce({}, '{{}}')").format(name)
