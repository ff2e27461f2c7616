"""From COPY rows to Arrow columns."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactbatch.compiled.binary_rows import FORMAT, SCALE
from exactbatch.compiled.row_columns import column_text, row_columns
from exactbatch.compiled.row_formats import BYTES, NUMERIC, row_format
from exactbatch.compiled.row_frame import EPOCH_DAYS, EPOCH_US

_INTEGERS: Final[dict[pa.DataType, Any]] = {
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.int32,
    pa.float64(): np.int64,
    pa.date32(): np.int32,
}


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
