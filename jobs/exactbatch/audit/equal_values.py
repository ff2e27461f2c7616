"""Compare decoded records with rows, bit by bit, for columns whose values need no cast. Pure."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Types of Postgres of which Arrow holds every value, and in which values with equal bits have equal bytes in Postgres.
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


def unequal_records(records: pa.Table, rows: pa.Table, *, by: tuple[str, str]) -> pa.BooleanArray:
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
    offsets, found = records[offset].to_numpy(), rows[offset].to_numpy()
    at = np.minimum(np.searchsorted(offsets, found), len(offsets) - 1)
    is_of_record = (offsets[at] == found) & (records[batch].to_numpy()[at] == _filled(rows[batch]))
    if not is_of_record.all():
        rows, at = rows.filter(pa.array(is_of_record)), at[is_of_record]
    is_same_order = len(at) == len(records) and (at == np.arange(len(at))).all()
    for name in records.column_names:
        if name in by:
            continue
        expected, actual = _bits(records[name]), _bits(rows[name])
        if not is_same_order:
            expected = expected.take(pa.array(at))
        if not actual.equals(expected):
            is_unequal[at[_differ(expected, actual)]] = True
    return pa.array(is_unequal)


def _filled(batches: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return IDs of batches; -1 for a null."""
    filled: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.fill_null(batches, -1).to_numpy()
    return filled


def _bits(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; floating-point numbers as bits, so that -0 is not 0, and NaN equals itself."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return array.view(_BITS[array.type]) if array.type in _BITS else array


def _differ(expected: pa.Array, actual: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    one_is_null = pc.xor(expected.is_null(), actual.is_null())
    differ = pc.or_(pc.fill_null(pc.not_equal(expected, actual), False), one_is_null)
    result: np.ndarray[tuple[int], np.dtype[np.bool_]] = differ.to_numpy(zero_copy_only=False)
    return result
