"""The keys whose rows in a derived target must be computed again, in a temporary table of the transaction."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.tables.counted_writes import delete_rows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.values.null_safe_groups import column_list

# The last column of the table: true if a staged truncate affects the key, and null if what the transaction retracts
# does, or a staged row.
BY_TRUNCATE: Final = sql.Identifier("exactbatch_by_truncate")


def create_affected_keys(cursor: Cursor, lineage_table: LineageTable, key: Sequence[str]) -> sql.Identifier:
    """Return the table of affected keys, which may hold a key several times; create it unless it exists already.

    What a transaction retracts and what it then inserts affect keys of one table. If it writes several targets, each
    has its own.
    """
    own = blake2b(".".join(lineage_table.table.name).encode(), digest_size=8).hexdigest()
    affected = sql.Identifier(f"exactbatch_affected_{own}")
    cursor.execute(
        sql.SQL(
            "create temporary table if not exists {} on commit drop as "
            "select {}, null::boolean as {} from {} with no data"
        ).format(affected, column_list(key), BY_TRUNCATE, lineage_table.identifier)
    )
    return affected


def retract_affecting(
    cursor: Cursor,
    lineage_table: LineageTable,
    parts: Sequence[Part],
    key: Sequence[str],
    affected: sql.Identifier,
) -> int:
    """Delete the rows that batches have written for ranges, and add their keys to the affected ones.

    Returns how many staged rows the deleted ones stand for.
    """
    if (rows := lineage_table.select_rows(parts)) is None:
        return 0
    source, condition = rows
    statement = sql.SQL(
        "with deleted_rows as (delete from {lineage_table} t using {source} where {condition} returning t.*), "
        "affected as (insert into {affected} select distinct {key} from deleted_rows) "
        "select {count} as number, count(*) as rows from deleted_rows"
    ).format(
        lineage_table=lineage_table.identifier,
        source=source,
        condition=condition,
        key=column_list(key),
        affected=affected,
        count=lineage_table.row_count,
    )
    return delete_rows(cursor, lineage_table.table, condition, using=source, statement=statement)
