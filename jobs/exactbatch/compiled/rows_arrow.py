"""From COPY rows to Arrow columns."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactbatch.compiled.binary_rows import FORMAT, SCALE
from exactbatch.compiled.compiler import called, entry, inlined
from exactbatch.compiled.row_frame import BYTES, EPOCH_DAYS, EPOCH_US, NUMERIC, row_format

_INTEGERS: Final[dict[pa.DataType, Any]] = {
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.int32,
    pa.float64(): np.int64,
    pa.date32(): np.int32,
}


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


class RowsAsArrow:
    """Reads the fields of COPY rows, which are the columns of `schema`, without the number of fields before them."""

    def __init__(self, schema: pa.Schema) -> None:
        """Raises ValueError for a type that row_format() does not know."""
        self.schema = schema
        formats = [format_ for field in schema if (format_ := row_format(field.type)) is not None]
        if len(formats) < len(schema):
            raise ValueError(f"expected types with a binary form, found {schema}")
        self._columns = np.zeros((len(schema), 2), np.int64)
        self._columns[:, FORMAT] = formats
        self._columns[:, SCALE] = [getattr(field.type, "scale", 0) for field in schema]

    def read(self, data: bytes, rows: int) -> pa.RecordBatch:
        """Return the rows as a batch. Raises RuntimeError if they have more or fewer bytes than `data`."""
        numbers = np.empty((len(self.schema), rows), np.int64)
        lengths = np.empty((len(self.schema), rows), np.int32)
        buffer = np.frombuffer(data, np.uint8)
        if (read := row_columns(buffer, self._columns, numbers, lengths)) != len(data):
            raise RuntimeError(f"expected {rows} rows in {len(data)} bytes, found them in {read}")
        arrays = []
        for at, field in enumerate(self.schema):
            if self._columns[at, FORMAT] == BYTES:
                arrays.append(_text(field.type, buffer, numbers[at], lengths[at]))
            else:
                arrays.append(_array(field.type, numbers[at], lengths[at]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _text(
    type_: pa.DataType,
    rows: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
) -> pa.Array:
    bounds = np.zeros(len(starts) + 1, np.int64)
    text = np.empty(int(np.maximum(lengths, 0).sum(dtype=np.int64)), np.uint8)
    column_text(rows, starts, lengths, bounds[1:], text)
    large = pa.large_string() if pa.types.is_string(type_) else pa.large_binary()
    # Raises ValueError for 2 GiB and more, which offsets of 32 bits cannot reach.
    return _from_buffers(large, lengths, pa.py_buffer(bounds), pa.py_buffer(text)).cast(type_)


def _array(type_: pa.DataType, numbers: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> pa.Array:
    if row_format(type_) == NUMERIC:
        # Two words of 64 bits, the low one first: the high one is only the sign.
        words = np.stack([numbers, numbers >> 63], axis=1)
    elif pa.types.is_boolean(type_):
        words = np.packbits(numbers.astype(np.bool_), bitorder="little")
    elif pa.types.is_timestamp(type_):
        words = numbers + EPOCH_US
    else:
        words = (numbers + EPOCH_DAYS if pa.types.is_date32(type_) else numbers).astype(_INTEGERS[type_])
    return _from_buffers(type_, lengths, pa.py_buffer(words))


def _from_buffers(type_: pa.DataType, lengths: npt.NDArray[np.int32], *buffers: pa.Buffer) -> pa.Array:
    is_null = lengths < 0
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    return pa.Array.from_buffers(type_, len(lengths), [valid, *buffers])
