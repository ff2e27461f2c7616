"""Some fields of COPY rows as one value for each row: what a row keeps of its record needs no decoding."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactbatch.compiled.arrow_rows import ArrowRows
from exactbatch.compiled.row_columns import row_fields


class PackedFields:
    """Packs fields of rows of so many columns: those at `positions`, in this order, any of them several times."""

    def __init__(self, columns: int, positions: Sequence[int]) -> None:
        self._runs = _runs(positions)
        self._copies = max(Counter(positions).values())  # of one field, at most
        self._bounds = np.empty(columns + 1, np.int64)

    def of_rows(self, data: bytes, rows: int, skipped: int) -> pa.Array:
        """Return the fields, pa.binary()[rows], of COPY rows, each with `skipped` bytes before the fields.

        Raises RuntimeError if the rows have more or fewer bytes than `data`.
        """
        fields, ends = np.empty(self._copies * len(data), np.uint8), np.zeros(rows + 1, np.int32)
        read = row_fields(np.frombuffer(data, np.uint8), skipped, self._bounds, self._runs, ends[1:], fields)
        if read != len(data):
            raise RuntimeError(f"expected {rows} rows in {len(data)} bytes, found them in {read}")
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(fields[: ends[-1]])]
        return pa.Array.from_buffers(pa.binary(), rows, buffers)


class PackedColumns:
    """Packs all columns of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        """Raises ValueError for a type that row_format() does not know."""
        self._rows = ArrowRows(schema)
        self._fields = PackedFields(len(schema), range(len(schema)))

    def of_batch(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the columns, pa.binary()[rows], of a batch that has them, and any others."""
        return self._fields.of_rows(self._rows.write(batch), len(batch), skipped=2)  # the number of fields


def _runs(positions: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return positions as runs of successive ones, int64[k, 2]: the first of each, and the one after its last."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and runs[-1][1] == position:
            runs[-1][1] += 1
        else:
            runs.append([position, position + 1])
    return np.array(runs, np.int64).reshape(-1, 2)
