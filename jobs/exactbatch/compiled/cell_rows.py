"""The compiled loop from cells, which arrow_rows.py fills from Arrow columns, to COPY rows."""

from typing import Any

from exactbatch.compiled.binary_rows import put_row
from exactbatch.compiled.compiler import entry


@entry
def cell_rows(rows: Any, head: Any, cells: Any, text: Any, columns: Any, out: Any, ends: Any) -> Any:
    """Write the rows of c columns; return the bytes written.

    Each row begins with the bytes of `head`, uint8. `cells` is int64[c, n, CELL_PARTS] for n rows or more, and
    `columns` int64[c, …], as put_row() describes them. `out` has room for all rows; `ends`, int64[n], receives the
    position after each.
    """
    written = 0
    for row in range(rows):
        for byte in range(len(head)):
            out[written + byte] = head[byte]
        written = put_row(out, written + len(head), cells[:, row], text, columns)
        ends[row] = written
    return written
