"""The keys whose row in a derived target has to be computed again; they last as long as the transaction."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import Append, Part

TOUCHED: Final = sql.Identifier("exactbatch_touched")


def create_touched(cursor: Cursor, contributions: Append, key: Sequence[str]) -> None:
    """Create the table of touched keys, which may hold a key several times, unless it is there."""
    cursor.execute(
        sql.SQL(
            "create temporary table if not exists {} on commit drop as select {} from {} with no data"
        ).format(TOUCHED, _names(key), contributions.table)
    )


def take_back_touching(
    cursor: Cursor, contributions: Append, parts: Sequence[Part], key: Sequence[str], *, count: sql.Composable
) -> int:
    """Delete the contributions of batches in ranges, and note their keys.

    Returns `count`, an aggregate over what was deleted.
    """
    if (found := contributions.found(parts)) is None:
        return 0
    source, condition = found
    statement = sql.SQL(
        "with gone as (delete from {contributions} t using {source} where {condition} returning t.*), "
        "touched as (insert into {touched} select distinct {key} from gone) "
        "select {count} as number, count(*) as rows from gone"
    ).format(
        contributions=contributions.table,
        source=source,
        condition=condition,
        key=_names(key),
        touched=TOUCHED,
        count=count,
    )
    left = sql.SQL("select count(*) from {} t, {} where {}").format(contributions.table, source, condition)
    return contributions.tables[0].delete(cursor, statement, left=left)


def _names(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
