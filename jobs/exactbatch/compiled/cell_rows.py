"""The compiled loop from cells, which arrow_rows.py fills from Arrow columns, to COPY rows."""

from typing import Any

from exactbatch.compiled.binary_rows import put2, put_row
from exactbatch.compiled.compiler import entry


@entry
def cell_rows(rows: Any, fields: Any, cells: Any, text: Any, columns: Any, out: Any, ends: Any) -> Any:
    """Write so many rows of c columns; return the bytes written.

    Each row begins with the number of its fields, `fields`, unless that is 0. `cells` is int64[c, n, CELL_PARTS] for n
    rows or more, and `columns` int64[c, …], as put_row() describes them. `out` has room for all rows; `ends`, int64[n],
    receives the position after each.
    """
    written = 0
    for row in range(rows):
        if fields > 0:
            written = put2(out, written, fields)
        written = put_row(out, written, cells[:, row], text, columns)
        ends[row] = written
    return written
