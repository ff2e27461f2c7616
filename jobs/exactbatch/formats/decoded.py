"""The outcome of decoding a block of values."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outcome of decoding n values: every value gives a row, a reject or a tombstone.

    `rows` has the format's columns; `kept` holds, for each row, the index of its value (int64, ascending). In a format
    that gives several rows, an index occurs once for each row of its value, or not at all.
    `rejects` pairs the index of a value with the reason. `tombstones` counts the values that rightly give
    no row: null, or an event that carries none.
    `deleted` is true for each row that deletes its key; None if the format has no deletes. `unavailable` lists, for
    each row, the columns of unavailable values, which the source did not send, and which are null in the row;
    null for a whole row, and None if all rows are whole. `truncated` is true for each row that stands for a truncate of
    the whole table, and is a delete, too; None if there is none, as in every format in which null values delete.
    `written_nulls` is true for each of the n values that counts as null although it has bytes; None if there is none.
    `replaced` counts the values that decoded after text that Postgres cannot hold was replaced, and `fast_count`
    the values that compiled code decoded.
    """

    rows: "pa.RecordBatch"
    kept: "pa.Int64Array"
    rejects: tuple[tuple[int, str], ...] = ()
    tombstones: int = 0
    deleted: "pa.BooleanArray | None" = None
    unavailable: "pa.ListArray | None" = None
    truncated: "pa.BooleanArray | None" = None
    written_nulls: "pa.BooleanArray | None" = None
    replaced: int = 0
    fast_count: int = 0
