"""The compiled loops from COPY rows to columns, for rows_arrow.py."""

from typing import Any

import numpy as np

from exactbatch.compiled.binary_rows import FORMAT, SCALE
from exactbatch.compiled.compiler import called, entry, inlined
from exactbatch.compiled.row_formats import BYTES, NUMERIC


@entry
def row_columns(rows: Any, columns: Any, numbers: Any, lengths: Any) -> Any:
    """Read n rows of c columns; return the bytes read.

    A row is its fields, without their number. `columns` is int64[c, …], as put_row() describes it. `numbers`, int64[c,
    n], receives the bits of each number, sign-extended, and the position of each text; a numeric is multiplied by
    10^scale. `lengths`, int32[c, n], receives the bytes of each field, -1 for null.
    """
    at = np.int64(0)
    for row in range(numbers.shape[1]):
        for column in range(len(columns)):
            length = _get4(rows, at)
            at += 4
            lengths[column, row] = length
            if length < 0:
                numbers[column, row] = 0
                continue
            format_ = columns[column, FORMAT]
            if format_ == BYTES:
                numbers[column, row] = at
            elif format_ == NUMERIC:
                numbers[column, row] = get_numeric(rows, at, columns[column, SCALE])
            else:
                number = _signed(rows[at])
                for byte in range(1, length):
                    number = (number << 8) | np.int64(rows[at + byte])
                numbers[column, row] = number
            at += length
    return at


@entry
def column_text(rows: Any, starts: Any, lengths: Any, ends: Any, text: Any) -> Any:
    """Copy the texts of a column, int64[n] and int32[n] from row_columns(), one after the other into `text`, which
    has room for all; set `ends`, int64[n], to the position after each. Return the bytes copied."""
    to = np.int64(0)
    for row in range(len(starts)):
        start = starts[row]
        for byte in range(lengths[row]):  # none for null, whose length is -1
            text[to + byte] = rows[start + byte]
        to += max(np.int64(lengths[row]), np.int64(0))
        ends[row] = to
    return to


@inlined
def _signed(byte: Any) -> Any:
    number = np.int64(byte)
    return number - 256 if number > 127 else number


@inlined
def _get2(rows: Any, at: Any) -> Any:
    return (_signed(rows[at]) << 8) | np.int64(rows[at + 1])


@inlined
def _get4(rows: Any, at: Any) -> Any:
    return (_get2(rows, at) << 16) | (np.int64(rows[at + 2]) << 8) | np.int64(rows[at + 3])


@called
def get_numeric(rows: Any, at: Any, scale: Any) -> Any:
    """Return a numeric that put_numeric() has written, multiplied by 10^`scale`."""
    groups, weight = _get2(rows, at), _get2(rows, at + 2)
    is_negative = _get2(rows, at + 4) != 0
    scaled = np.int64(0)
    for group in range(groups):
        digits = _get2(rows, at + 8 + 2 * group)
        power = 4 * (weight - group) + scale
        for _ in range(power):
            digits *= 10
        for _ in range(-power):
            digits //= 10
        scaled += digits
    return -scaled if is_negative else scaled
