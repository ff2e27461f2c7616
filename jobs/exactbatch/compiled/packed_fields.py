"""The fields of COPY rows as one value for each row: what a row keeps of its record needs no decoding."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactbatch.compiled.row_columns import row_fields
from exactbatch.compiled.row_formats import PACKED_TYPE


class PackedFields:
    """Packs fields of rows: those at `positions`, in this order, any of them several times."""

    def __init__(self, columns: int, positions: Sequence[int]) -> None:
        """Raises ValueError for a position without a column."""
        if not all(0 <= position < columns for position in positions):
            raise ValueError(f"expected positions from 0 to {columns - 1}, found {list(positions)}")
        self._are_all = list(positions) == list(range(columns))
        self._runs = _runs(positions)
        self._copies = max(Counter(positions).values())  # of one field, at most
        self._bounds = np.empty(columns + 1, np.int64)

    def of_rows(self, data: bytes, ends: npt.NDArray[np.int64]) -> pa.Array:
        """Return the fields, PACKED_TYPE[n], of n rows, which are fields without their number; `ends` has the position
        after each row."""
        if self._are_all:
            return packed_values(data, ends)
        fields, field_ends = np.empty(self._copies * len(data), np.uint8), np.empty(len(ends), np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
        written = row_fields(
            np.frombuffer(data, np.uint8), starts, self._bounds, self._runs, field_ends, fields
        )
        return packed_values(fields[:written], field_ends)


def packed_values(data: bytes | npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> pa.Array:
    """Return the bytes up to each end as values."""
    bounds = np.concatenate([np.zeros(1, np.int64), ends])
    return pa.Array.from_buffers(PACKED_TYPE, len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _runs(positions: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return positions as runs of successive ones, int64[k, 2]: the first of each, and the one after its last."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and runs[-1][1] == position:
            runs[-1][1] += 1
        else:
            runs.append([position, position + 1])
    return np.array(runs, np.int64).reshape(-1, 2)
