"""The compiled loop from cells, which arrow_rows.py fills from Arrow columns, to COPY rows."""

from typing import Any

from exactbatch.compiled.binary_rows import put, put_row
from exactbatch.compiled.compiler import entry


@entry
def cell_rows(
    states: Any,
    numbers: Any,
    starts: Any,
    lengths: Any,
    text: Any,
    formats: Any,
    scales: Any,
    out: Any,
) -> Any:
    """Write n rows of c columns; return the bytes written.

    The first four arrays are (n, c) and hold the cells that put_row() describes; `formats` and `scales` have c
    elements. `out` has room for all rows.
    """
    written = 0
    for row in range(len(states)):
        written = put(out, written, len(formats), 2)
        written = put_row(
            out, written, states[row], numbers[row], starts[row], lengths[row], text, formats, scales
        )
    return written
