"""Write rows in the binary format of Postgres's COPY.

https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-BINARY-FORMAT: a row is the number of its fields (2
bytes), and each field its length (4 bytes, -1 for null) and its value, as the type's receive function reads it. All
numbers are big-endian.

The fields of a row come as cells: int64[c, 4], whose second index is one of STATE, NUMBER, START and LENGTH. A table of
the columns, int64[c, …], says how each is written.
"""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.compiler import called, inlined
from exactbatch.compiled.row_frame import BYTES, JSONB
from exactbatch.compiled.strings import write_unescaped

# The parts of a cell. numba counts references to arrays, so that a few with several columns are faster than many.
STATE: Final = 0  # one of the next constants
NUMBER: Final = 1  # the bits of a number
START: Final = 2  # of a text: its position, and its length in bytes
LENGTH: Final = 3
CELL_PARTS: Final = 4

MISSING: Final = 0  # this and NULL both write null
NULL: Final = 1
VALUE: Final = 2
ESCAPED: Final = 3  # a text with escapes of JSON

# The parts of a column that put_row() reads; json_rows.py has more.
FORMAT: Final = 0  # an integer of 1, 2, 4 or 8 bytes, or another format of row_frame.py
SCALE: Final = 1  # of a numeric

_U: Final = np.uint64
_NEGATIVE: Final = 0x4000


@inlined
def put2(out: Any, at: Any, number: Any) -> Any:
    """Write the low 2 bytes of a number; return the position after them."""
    out[at] = (number >> 8) & 255
    out[at + 1] = number & 255
    return at + 2


@inlined
def put4(out: Any, at: Any, number: Any) -> Any:
    """Write the low 4 bytes of a number; return the position after them."""
    out[at] = (number >> 24) & 255
    out[at + 1] = (number >> 16) & 255
    out[at + 2] = (number >> 8) & 255
    out[at + 3] = number & 255
    return at + 4


@inlined
def put8(out: Any, at: Any, number: Any) -> Any:
    """Write the 8 bytes of a number; return the position after them."""
    return put4(out, put4(out, at, number >> 32), number)


@inlined
def _put_text(out: Any, at: Any, text: Any, start: Any, length: Any) -> Any:
    """Write bytes of `text`; return the position after them."""
    for byte in range(length):
        out[at + byte] = text[start + _U(byte)]
    return at + length


@inlined
def put_row(out: Any, at: Any, cells: Any, text: Any, columns: Any) -> Any:
    """Write the cells of a row, whose texts lie in `text`; return the position after them."""
    for column in range(len(cells)):
        state = cells[column, STATE]
        if state <= NULL:
            at = put4(out, at, -1)
            continue
        format_ = columns[column, FORMAT]
        if format_ == 4:
            at = put4(out, put4(out, at, 4), cells[column, NUMBER])
        elif format_ == BYTES:
            start, length = _U(cells[column, START]), cells[column, LENGTH]
            if state == ESCAPED:
                after = write_unescaped(out, at + 4, text, start, start + _U(length))
                put4(out, at, after - at - 4)
                at = after
            else:
                at = _put_text(out, put4(out, at, length), text, start, length)
        elif format_ == 8:
            at = put8(out, put4(out, at, 8), cells[column, NUMBER])
        elif format_ == 2:
            at = put2(out, put4(out, at, 2), cells[column, NUMBER])
        elif format_ == 1:
            at = put4(out, at, 1)
            out[at] = cells[column, NUMBER] & 255
            at += 1
        elif format_ == JSONB:
            # jsonb_recv() in src/backend/utils/adt/jsonb.c reads the number of the format, 1, and the text.
            start, length = _U(cells[column, START]), cells[column, LENGTH]
            at = put4(out, at, length + 1)
            out[at] = 1
            at = _put_text(out, at + 1, text, start, length)
        else:
            at = put_numeric(out, at, cells[column, NUMBER], columns[column, SCALE])
    return at


@called
def put_numeric(out: Any, at: Any, scaled: Any, scale: Any) -> Any:
    """Write a numeric, which is `scaled` / 10^`scale`; return the position after it.

    numeric_recv() in Postgres's src/backend/utils/adt/numeric.c reads four numbers of 2 bytes (the count of groups,
    the weight of the first one, the sign, the places shown) and then the groups of four decimal digits.
    """
    magnitude = abs(scaled)
    power = np.int64(1)
    for _ in range(scale):
        power *= 10
    whole, fraction = magnitude // power, magnitude % power
    for _ in range((4 - scale % 4) % 4):
        fraction *= 10
    # Groups of zeros at either end are not stored.
    fraction_groups = (scale + 3) // 4
    while fraction_groups > 0 and fraction % 10000 == 0:
        fraction //= 10000
        fraction_groups -= 1
    whole_groups, rest = 0, whole
    while rest > 0:
        whole_groups += 1
        rest //= 10000
    weight = whole_groups - 1
    if fraction_groups == 0:
        while whole > 0 and whole % 10000 == 0:
            whole //= 10000
            whole_groups -= 1
    stored = whole_groups + fraction_groups
    if whole == 0 and fraction > 0:
        unit = np.int64(1)
        for _ in range(fraction_groups):
            unit *= 10000
        while fraction // (unit // 10000) == 0:
            unit //= 10000
            weight -= 1
            stored -= 1
    at = put4(out, at, 8 + 2 * stored)
    at = put2(out, at, stored)
    at = put2(out, at, weight if stored > 0 else 0)
    at = put2(out, at, _NEGATIVE if scaled < 0 else 0)
    at = put2(out, at, scale)
    end = at + 2 * stored
    for group in range(stored):
        # From the last one to the first.
        if group < fraction_groups:
            put2(out, end - 2 * (group + 1), fraction % 10000)
            fraction //= 10000
        else:
            put2(out, end - 2 * (group + 1), whole % 10000)
            whole //= 10000
    return end
