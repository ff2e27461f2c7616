"""A trial of the machine code before any record is entrusted to it. It also makes numba load or compile it."""

from typing import Final

import numpy as np
import pyarrow as pa

from exactbatch.columns import Column
from exactbatch.compiled.arrow_rows import ArrowRows
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.row_frame import row_frame

_VALUES: Final = (b'{"a": -7, "b": "\\u00e9x"}', b'{"b": null, "a": "x"}')
_ROW: Final = (
    b"\x00\x06"
    b"\x00\x00\x00\x04\x00\x00\x00\x02"
    b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x05"
    b"\x00\x00\x00\x01t"
    b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x0f\x42\x40"
    b"\x00\x00\x00\x04\xff\xff\xff\xf9"
    b"\x00\x00\x00\x03\xc3\xa9x"
)
_CELLS: Final = b"\x00\x01\x00\x00\x00\x04\xff\xff\xff\xf9\x00\x01\xff\xff\xff\xff"


def check_machine_code() -> None:
    """Raise RuntimeError unless both loops give the rows that they should."""
    kernel = JsonKernel([Column("a", "integer"), Column("b", "text")], {}, row_frame(6, "t", 2, {}))
    data, sizes = b"".join(_VALUES), np.array([len(value) for value in _VALUES], np.uint64)
    ends = np.cumsum(sizes, dtype=np.uint64)
    taken = kernel.take(
        np.frombuffer(data, np.uint8),
        ends - sizes,
        ends,
        np.ones(2, np.bool_),
        np.array([5, 6], np.int64),
        np.full(2, 946_684_801_000, np.int64),
    )
    cells = ArrowRows(pa.schema([("a", pa.int32())])).write(
        pa.record_batch({"a": pa.array([-7, None], pa.int32())})
    )
    if (taken.data, taken.declined.tolist(), cells) != (_ROW, [1], _CELLS):
        raise RuntimeError("the compiled code does not give the rows that it should")
