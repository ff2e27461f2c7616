"""Write rows in the binary format of Postgres's COPY.

https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-BINARY-FORMAT: a row is the number of its fields (2
bytes), and each field its length (4 bytes, -1 for null) and its value, as the type's receive function reads it. All
numbers are big-endian.

The fields of a row come as cells, one in each array: `states` says whether a cell has a value, `numbers` holds the
bits of a number, `starts` and `lengths` say where a text lies in `text`.
"""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.compiler import called, inlined
from exactbatch.compiled.strings import write_unescaped

# States of a cell. MISSING and NULL both write null.
MISSING: Final = 0
NULL: Final = 1
VALUE: Final = 2
ESCAPED: Final = 3  # a text with escapes of JSON

# How a column is written: as an integer of 1, 2, 4 or 8 bytes, or as one of these.
BYTES: Final = 0
NUMERIC: Final = -1

NUMERIC_BOUND: Final = 8 + 2 * 9  # bytes: 19 digits take part in at most 9 groups of four

_U: Final = np.uint64
_NEGATIVE: Final = 0x4000


@inlined
def put(out: Any, at: Any, number: Any, size: Any) -> Any:
    """Write the low `size` bytes of a number; return the position after it."""
    for byte in range(size):
        out[at + byte] = (number >> (8 * (size - 1 - byte))) & 255
    return at + size


@inlined
def put_null(out: Any, at: Any) -> Any:
    """Write a null field."""
    return put(out, at, -1, 4)


@inlined
def put_row(
    out: Any,
    at: Any,
    states: Any,
    numbers: Any,
    starts: Any,
    lengths: Any,
    text: Any,
    formats: Any,
    scales: Any,
) -> Any:
    """Write the cells of a row; return the position after them."""
    for column in range(len(states)):
        state = states[column]
        if state <= NULL:
            at = put_null(out, at)
            continue
        format_ = formats[column]
        if format_ == 4:
            at = put(out, at, 4, 4)
            at = put(out, at, numbers[column], 4)
        elif format_ == BYTES:
            start = starts[column]
            length = lengths[column]
            if state == ESCAPED:
                after = write_unescaped(out, at + 4, text, start, start + _U(length))
                put(out, at, after - at - 4, 4)
                at = after
            else:
                at = put(out, at, length, 4)
                for byte in range(length):
                    out[at + byte] = text[start + _U(byte)]
                at += length
        elif format_ == 8:
            at = put(out, at, 8, 4)
            at = put(out, at, numbers[column], 8)
        elif format_ == 2:
            at = put(out, at, 2, 4)
            at = put(out, at, numbers[column], 2)
        elif format_ == 1:
            at = put(out, at, 1, 4)
            at = put(out, at, numbers[column], 1)
        else:
            at = put_numeric(out, at, numbers[column], scales[column])
    return at


@called
def put_numeric(out: Any, at: Any, scaled: Any, scale: Any) -> Any:
    """Write a numeric, which is `scaled` / 10^`scale`; return the position after it.

    numeric_recv() in Postgres's src/backend/utils/adt/numeric.c reads four numbers of 2 bytes (the count of groups,
    the weight of the first one, the sign, the places shown) and then the groups of four decimal digits.
    """
    groups = np.zeros(12, np.int64)
    magnitude = abs(scaled)
    power = np.int64(1)
    for _ in range(scale):
        power *= 10
    whole, fraction = magnitude // power, magnitude % power
    padding = (4 - scale % 4) % 4
    for _ in range(padding):
        fraction *= 10
    # From the last group to the first.
    fraction_groups = (scale + 3) // 4
    count = 0
    for _ in range(fraction_groups):
        groups[count] = fraction % 10000
        fraction //= 10000
        count += 1
    while whole > 0:
        groups[count] = whole % 10000
        whole //= 10000
        count += 1
    # Groups of zeros at either end are not stored.
    while count > 0 and groups[count - 1] == 0:
        count -= 1
    first = 0
    while first < count and groups[first] == 0:
        first += 1
    stored = count - first
    weight = count - 1 - fraction_groups if stored > 0 else 0
    at = put(out, at, 8 + 2 * stored, 4)
    at = put(out, at, stored, 2)
    at = put(out, at, weight, 2)
    at = put(out, at, _NEGATIVE if scaled < 0 else 0, 2)
    at = put(out, at, scale, 2)
    for group in range(count - 1, first - 1, -1):
        at = put(out, at, groups[group], 2)
    return at
