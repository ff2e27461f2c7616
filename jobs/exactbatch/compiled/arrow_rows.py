"""From Arrow columns to COPY rows."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.compiled.binary_rows import (
    CELL_PARTS,
    FORMAT,
    LENGTH,
    NULL,
    NUMBER,
    SCALE,
    START,
    STATE,
    VALUE,
)
from exactbatch.compiled.cell_rows import cell_rows
from exactbatch.compiled.packed_fields import packed_values
from exactbatch.compiled.row_formats import BYTES, FIELDS, PACKED, PACKED_TYPE, cell_bound, row_format
from exactbatch.compiled.row_frame import EPOCH_DAYS, EPOCH_US

_NO_TEXT: Final = np.zeros(0, np.uint8)


class _Cells(NamedTuple):
    """A column's cells: what put_row() reads of each row."""

    valid: npt.NDArray[np.bool_] | None  # None if all are
    numbers: npt.NDArray[Any] | int = 0
    starts: npt.NDArray[Any] | int = 0
    lengths: npt.NDArray[Any] | int = 0
    text: npt.NDArray[np.uint8] | None = None


def column_table(schema: pa.Schema) -> npt.NDArray[np.int64]:
    """Return the columns as put_row() describes them. Raises ValueError for a type that row_format() does not know."""
    formats = [format_ for field in schema if (format_ := row_format(field.type)) is not None]
    if len(formats) < len(schema):
        raise ValueError(f"expected types with a binary form, found {schema}")
    columns = np.zeros((len(schema), 2), np.int64)
    columns[:, FORMAT] = formats
    columns[:, SCALE] = [getattr(field.type, "scale", 0) for field in schema]
    return columns


def _split(schema: pa.Schema, constants: Mapping[str, Any]) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns that are no constants, and those that are, in the order of the constants."""
    others = pa.schema([field for field in schema if field.name not in constants])
    return others, pa.schema([schema.field(name) for name in constants])


class ArrowRows:
    """Writes batches as COPY rows.

    schema: the columns that are read of batches
    names: the columns of the rows, in their order
    """

    def __init__(
        self, schema: pa.Schema, packed_names: Sequence[str] = (), constants: Mapping[str, Any] | None = None
    ) -> None:
        """`packed_names` are the columns whose fields are in PACKED, the last column of the schema, if there are any.
        `constants` are the values of columns of the schema that are the same in all rows of all batches: these columns
        are not read.

        Raises ValueError for a type that row_format() does not know.
        """
        constants = constants or {}
        schema, constant = _split(schema, constants)
        self.schema = schema
        self.names = [*constants, *(name for name in schema.names if name != PACKED), *packed_names]
        self._head = struct.pack(">h", len(self.names))
        if constants:
            values = [pa.array([value], constant.field(name).type) for name, value in constants.items()]
            self._head += ArrowRows(constant).packed(pa.record_batch(values, schema=constant))[0].as_py()
        self._columns = column_table(schema)
        self._row_bound = len(self._head) + sum(map(cell_bound, self._columns[:, FORMAT].tolist()))
        # Kept from batch to batch: new memory costs as much time as the loop. A column's cells lie together, because
        # a column is filled at once.
        self._cells = np.empty((len(schema), 0, CELL_PARTS), np.int64)
        self._out = np.empty(0, np.uint8)

    def write(self, batch: pa.RecordBatch) -> bytes:
        """Return the rows of a batch, whose columns may have another order.

        Raises TypeError if the types are not those of the schema.
        """
        data, _ = self._encode(batch, self._head)
        return data

    def packed(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the fields of each row as one value, as PACKED has them, but for those of constants.

        Raises TypeError as write() does.
        """
        return packed_values(*self._encode(batch, b""))

    def _encode(self, batch: pa.RecordBatch, head: bytes) -> tuple[bytes, npt.NDArray[np.int64]]:
        """Return the rows, which begin with `head`, and the position after each."""
        found = {field.name: field.type for field in batch.schema}
        for field in self.schema:
            if found.get(field.name) != field.type:
                raise TypeError(
                    f"column {field.name!r}: expected {field.type}, found {found.get(field.name, 'none')}"
                )
        rows = len(batch)
        if rows == 0:
            return b"", np.empty(0, np.int64)
        if self._cells.shape[1] < rows:
            self._cells = np.empty((len(self.schema), rows * 5 // 4, CELL_PARTS), np.int64)
        texts: list[npt.NDArray[np.uint8]] = []
        before = 0
        bound = rows * self._row_bound
        for at, field in enumerate(self.schema):
            column, cells = _cells(batch.column(field.name)), self._cells[at, :rows]
            cells[:, STATE] = VALUE if column.valid is None else np.where(column.valid, VALUE, NULL)
            if column.text is None:
                cells[:, NUMBER] = column.numbers
                continue
            cells[:, START] = column.starts + np.int64(before)
            cells[:, LENGTH] = column.lengths
            texts.append(column.text)
            before += len(column.text)
            bound += int(np.sum(column.lengths))
        text = texts[0] if len(texts) == 1 else np.concatenate([_NO_TEXT, *texts])
        text.flags.writeable = False  # as the bytes of Arrow are: compiled code tells the two apart
        if len(self._out) < bound:
            self._out = np.empty(bound * 5 // 4, np.uint8)
        ends = np.empty(rows, np.int64)
        written = cell_rows(
            rows, np.frombuffer(head, np.uint8), self._cells, text, self._columns, self._out, ends
        )
        return self._out[:written].tobytes(), ends


def _cells(column: pa.Array) -> _Cells:
    """Return the cells of a column with at least one value."""
    type_ = column.type
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False) if column.null_count else None
    if row_format(type_) in (BYTES, FIELDS):
        return _text_cells(column, valid)
    if pa.types.is_decimal128(type_):
        # Two words of 64 bits, the low one first: the high one is only the sign of a number that fits.
        words = np.frombuffer(column.buffers()[1], np.int64)
        return _Cells(valid, words[2 * column.offset : 2 * (column.offset + len(column)) : 2])
    if pa.types.is_timestamp(type_):
        return _Cells(valid, _integers(column.view(pa.int64())) - EPOCH_US)
    if pa.types.is_date32(type_):
        return _Cells(valid, _integers(column.view(pa.int32())).astype(np.int64) - EPOCH_DAYS)
    if pa.types.is_float64(type_):
        return _Cells(valid, _integers(column.view(pa.int64())))
    if pa.types.is_float32(type_):
        return _Cells(valid, _integers(column.view(pa.int32())))
    if pa.types.is_boolean(type_):
        return _Cells(valid, _integers(column.cast(pa.int8())))
    return _Cells(valid, _integers(column))


def _integers(column: pa.Array) -> npt.NDArray[Any]:
    """Return integers as an array, with 0 for null: with nulls in it, numpy would make floats of them."""
    column = column.fill_null(0) if column.null_count else column
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _text_cells(column: pa.Array, valid: npt.NDArray[np.bool_] | None) -> _Cells:
    _, offsets, data = column.buffers()
    width = np.int64 if column.type == PACKED_TYPE else np.int32
    bounds = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    text = _NO_TEXT if data is None else np.frombuffer(data, np.uint8)[first:last]
    lengths = np.diff(bounds)
    if valid is not None:
        lengths[~valid] = 0
    return _Cells(valid, starts=bounds[:-1] - first, lengths=lengths, text=text)
