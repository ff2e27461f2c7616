"""The layout of all tables on a terminal and in the log of a task."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table


def new_table(title: str, *, text: Sequence[str], numbers: Sequence[str]) -> Table:
    """Create a table that fits 80 characters: without a frame, and with headers that may break at a space."""
    table = Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        min_width=70,
    )
    for name in text:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", min_width=max(map(len, name.split())))
    return table
