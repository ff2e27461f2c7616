"""The staged changes of a batch: the latest one of each key and partition, and whether a record gives one of each key.

The latest change is found by a sort of narrow rows, which name the place of the change in the staging table.
"""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_order import PLACE, ChangeOrder
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list

# The latest staged change of each key and partition, and then of each key whose latest change is staged.
STAGED: Final = sql.Identifier("exactbatch_staged")
# Where a change is stored: its row in the staging table, or in a table of changes.
ROW: Final = sql.Identifier("exactbatch stored row")
_KEYS_SHOWN: Final = 5


def find_latest_staged(
    cursor: Cursor,
    staged: StagedRows,
    order: ChangeOrder,
    casts: Sequence[Cast],
    table: TargetTable,
    lineage: Sequence[str] = PLACE,
) -> int:
    """Put the latest staged change of each key and partition into the temporary table STAGED; return how many.

    It has the columns of the key and the version, those of `lineage`, `deleted`, ROW and LAST_OFFSET. `table` gives the
    types and collations by which the changes are compared; `casts` are those into it.
    """
    expressions = {cast.column.name: cast.expression for cast in casts}
    # The first branch gives the types and collations.
    cursor.execute(
        sql.SQL(
            "create temporary table {staged} on commit drop as "
            "select distinct on ({group}) {ordered}, {lineage}, deleted, {row}, {last_offset} from ("
            "select {ordered}, {lineage}, null::boolean as deleted, null::tid as {row} from {table} where false "
            "union all select {values}, {lineage}, deleted, ctid from {staging} where {accepted}) change "
            "order by {order}"
        ).format(
            staged=STAGED,
            group=order.by_partition,
            ordered=column_list(order.ordered),
            lineage=column_list(lineage),
            row=ROW,
            last_offset=order.last_offset,
            table=table.identifier,
            values=sql.SQL(", ").join(expressions[name] for name in order.ordered),
            staging=staged.table,
            accepted=staged.accepted,
            order=order.latest_first_by_partition,
        )
    )
    return cursor.rowcount


def check_one_per_record(
    cursor: Cursor,
    staged: StagedRows,
    order: ChangeOrder,
    target: str,
    table: LineageTable,
    casts: Sequence[Cast],
) -> None:
    """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them.

    `table` gives the types and collations by which the changes are compared; `casts` are those into it.
    """
    ordered = order.ordered
    expressions = {cast.column.name: cast.expression for cast in casts}
    # The first branch gives the types and collations by which the changes are compared.
    cursor.execute(
        sql.SQL(
            "select {texts} as change, kafka_topic as topic, kafka_partition as partition, "
            'kafka_offset as "offset" from ('
            "select {names}, kafka_topic, kafka_partition, kafka_offset from {change} where false union all "
            "select {values}, kafka_topic, kafka_partition, kafka_offset from {staging} "
            "where {accepted}) staged "
            "group by {names}, 2, 3, 4 having count(*) > 1 order by 2, 3, 4 limit {limit}"
        ).format(
            texts=sql.SQL(" || ', ' || ").join(
                sql.SQL("coalesce({}::text, 'null')").format(sql.Identifier(name)) for name in ordered
            ),
            names=column_list(ordered),
            change=table.identifier,
            values=sql.SQL(", ").join(expressions[name] for name in ordered),
            staging=staged.table,
            accepted=staged.accepted,
            limit=sql.Literal(_KEYS_SHOWN),
        )
    )
    if rows := cursor.fetchall():
        shown = "; ".join(f"{row.topic}[{row.partition}] offset {row.offset}: ({row.change})" for row in rows)
        raise TargetMismatch(
            f"target {target}: a record gives several changes of one key, and nothing says which of "
            f"them is the latest. The first, as ({', '.join(ordered)}): {shown}. Nothing was written. Let the "
            f"transform give one change for each key and record, or changes whose version differs.",
            topic=rows[0].topic,
            partition=rows[0].partition,
            from_offset=rows[0].offset,
            until_offset=rows[0].offset + 1,
        )
