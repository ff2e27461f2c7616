"""Compare decoded records with rows in this process: bit by bit, for columns whose values need no cast.

Of records that give any number of rows, there must be as many rows with each combination of values.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from psycopg2 import sql

from exactbatch.audit.audit_result import Offsets

# Types of Postgres whose every value Arrow holds, and whose values with equal bits have equal bytes in Postgres.
# numeric is none of them: its scale is part of the value. Nor is a type with a length.
COMPARABLE: Final = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "boolean",
        "text",
        "bytea",
        "date",
        "timestamp with time zone",
        "timestamp without time zone",
    }
)
_BITS: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
UNSTORABLE: Final = sql.Identifier("exactbatch unstorable")  # of e: a value that the columns cannot hold


def find_unequal_records(records: pa.Table, rows: pa.Table, *, by: tuple[str, str]) -> pa.BooleanArray:
    """Return for each record whether a row of it has another value in any column, with false for a record without rows.

    Both tables have the same columns. `by` names the offset, which ascends without repetition in `records`, and the
    batch: a row belongs to the record with the same ones.

    True for all records if a column has different types in the two tables.
    """
    if records.schema.types != rows.schema.types:
        return pa.array(np.ones(len(records), bool))
    is_unequal = np.zeros(len(records), bool)
    if not len(records) or not len(rows):
        return pa.array(is_unequal)
    offset, batch = by
    rows, at = pair(records[offset].to_numpy(), records[batch].to_numpy(), rows, by=by)
    for name in records.column_names:
        if name in by:
            continue
        expected, actual = _bits(records[name]), _bits(rows[name])
        if at is not None:
            expected = expected.take(pa.array(at))
        if not actual.equals(expected):
            is_unequal[differ(expected, actual) if at is None else at[differ(expected, actual)]] = True
    return pa.array(is_unequal)


def pair(
    offsets: Offsets, batches: Offsets, rows: pa.Table, *, by: tuple[str, str]
) -> tuple[pa.Table, Offsets | None]:
    """Return the rows that belong to records, and the positions of their records.

    Without positions if there is one row for each record, in the same order. `offsets` ascend; `by` names the columns
    of `rows` for the offset and the batch, which a row has in common with its record.
    """
    offset, batch = by
    found = rows[offset].to_numpy()
    at = np.minimum(np.searchsorted(offsets, found), len(offsets) - 1)
    is_of_record = (offsets[at] == found) & (batches[at] == _filled(rows[batch]))
    if not is_of_record.all():
        rows, at = rows.filter(pa.array(is_of_record)), at[is_of_record]
    return rows, None if len(at) == len(offsets) and (at == np.arange(len(at))).all() else at


def _filled(batches: pa.ChunkedArray) -> Offsets:
    """Return IDs of batches; -1 for a null."""
    filled: Offsets = pc.fill_null(batches, -1).to_numpy()
    return filled


def _bits(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; floating-point numbers as bits, so that -0 is not 0, and NaN equals itself."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return array.view(_BITS[array.type]) if array.type in _BITS else array


def differ(expected: pa.Array, actual: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns differ; a null equals a null."""
    one_is_null = pc.xor(expected.is_null(), actual.is_null())
    is_different = pc.or_(pc.fill_null(pc.not_equal(expected, actual), False), one_is_null)
    result: npt.NDArray[np.bool_] = is_different.to_numpy(zero_copy_only=False)
    return result


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

    `expected` are the values of e in the types of the table, and `actual` the values of t; `batch` is the column of e
    for the batch that covers the record, and `row_batch` the column of t. `without_rows` has offset and batch of
    records that give no row. With `may_lack_rows`, rows may have been dropped by compaction. Rows are compared by their
    text, which tells all values of Postgres's types apart.
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
