"""Compare the rows of records that give any number of rows: as many rows with each combination of values."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

UNSTORABLE: Final = sql.Identifier("exactbatch unstorable")  # of e: a value that the columns cannot hold


def several_differ(
    lineage_table: sql.Composable,
    *,
    in_window: sql.Composable,
    row_batch: sql.Composable,
    batch: sql.Composable,
    expected: sql.Composable,
    actual: sql.Composable,
    without_rows: Sequence[tuple[int, int]],
    may_lack_rows: bool,
) -> sql.Composable:
    """Return a query for the offsets of records whose rows t in the lineage table differ from their decoded rows e.

    `expected` are the values of e in the types of the table, and `actual` those of t; `batch` is the column of e for
    the batch that covers the record, and `row_batch` that of t. `without_rows` has offset and batch of records that
    give no row. With `may_lack_rows`, rows may have been dropped by compaction. Rows are compared by their text, which
    tells all values of Postgres's types apart.
    """
    # A record that would be a reject has no rows at all.
    return sql.SQL(
        "select distinct o from ("
        'select e.kafka_offset as o, e.{batch} as b, row({expected})::text collate "C" as v, 1 as e, 0 as t from e '
        "where not exists (select from e u where u.kafka_offset = e.kafka_offset and u.{batch} = e.{batch} "
        "and u.{unstorable}) "
        "union all "
        'select t.kafka_offset, {row_batch}, row({actual})::text collate "C", 0, 1 from {table} t where {in_window} '
        # One list: with two and OR between them, Postgres would search each again for every row.
        "and (t.kafka_offset, {row_batch}) in (select kafka_offset, {batch} from e union all "
        "select * from unnest({offsets}::bigint[], {batches}::bigint[]))"
        ") q group by o, b, v having {differ}"
    ).format(
        batch=batch,
        expected=expected,
        unstorable=UNSTORABLE,
        row_batch=row_batch,
        actual=actual,
        table=lineage_table,
        in_window=in_window,
        offsets=sql.Literal([offset for offset, _ in without_rows]),
        batches=sql.Literal([batch_id for _, batch_id in without_rows]),
        differ=sql.SQL("sum(t) > sum(e)" if may_lack_rows else "sum(t) <> sum(e)"),
    )
