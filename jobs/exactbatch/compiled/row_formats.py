"""How compiled code writes values of Arrow types. This module does not import numba: the driver need not load it."""

from typing import Final

import pyarrow as pa

BYTES: Final = 0
NUMERIC: Final = -1
JSONB: Final = -3  # the text of a document, for a column of type jsonb

# A decimal of this type fits 64 bits, and so does its fraction with zeros up to a whole group of four digits.
MOST_PRECISION: Final = 18
MOST_SCALE: Final = 15
NUMERIC_BOUND: Final = 8 + 2 * 9  # bytes: 19 digits take part in at most 9 groups of four

_FORMATS: Final = {
    pa.int16(): 2,
    pa.int32(): 4,
    pa.int64(): 8,
    pa.float32(): 4,
    pa.float64(): 8,
    pa.bool_(): 1,
    pa.date32(): 4,
    pa.timestamp("us"): 8,
    pa.timestamp("us", "UTC"): 8,
    pa.string(): BYTES,
    pa.binary(): BYTES,
}


def row_format(type_: pa.DataType) -> int | None:
    """Return how binary_rows writes values of an Arrow type: 1 to 8 bytes, BYTES or NUMERIC; None if it does not."""
    if pa.types.is_decimal128(type_):
        fits = type_.precision <= MOST_PRECISION and 0 <= type_.scale <= MOST_SCALE
        return NUMERIC if fits else None
    return _FORMATS.get(type_)


def cell_bound(format_: int) -> int:
    """Return the most bytes that a field takes besides a text's own."""
    if format_ == JSONB:
        return 4 + 1
    return 4 + (NUMERIC_BOUND if format_ == NUMERIC else format_)
