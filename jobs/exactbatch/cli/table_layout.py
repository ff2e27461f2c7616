"""The layout of all tables on a terminal, and the formats of places, times and durations."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from rich import box
from rich.markup import escape
from rich.table import Table

from exactbatch.errors.printable import printable


class InPartition(Protocol):
    """Something that is in one partition of a topic."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def create_text_table(title: str, *, text: Sequence[str], numbers: Sequence[str]) -> Table:
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


def short(value: object, characters: int) -> str:
    """Return the text of a value, printable and shortened; a dash for null."""
    if value is None:
        return "–"
    text = printable(str(value))
    return text if len(text) <= characters else text[: characters - 1] + "…"


def format_partition(located: InPartition) -> str:
    """Write a partition as topic[number]."""
    return escape(f"{located.topic}[{located.partition}]")


def time_text(time: datetime | None) -> str:
    """Write a time to the minute; a dash for none."""
    return f"{time:%m-%d %H:%M}" if time else "–"


def format_duration(seconds: float | None) -> str:
    """Write a duration in its two largest units; a dash for none."""
    if seconds is None:
        return "–"
    sign, whole = ("-" if seconds < 0 else ""), int(abs(seconds))
    if whole < 60:
        return f"{sign}{whole} s"
    units = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next(index for index, (_, count) in enumerate(units) if count)
    return sign + " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count)
