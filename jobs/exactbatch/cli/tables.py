"""How places, times and durations are written in tables on a terminal."""

from datetime import datetime
from typing import Protocol

from rich.markup import escape


class InPartition(Protocol):
    """Something that is in one partition of a topic."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def partition_text(located: InPartition) -> str:
    """Write a partition as topic[number]."""
    return escape(f"{located.topic}[{located.partition}]")


def time_text(time: datetime | None) -> str:
    """Write a time to the minute; a dash for none."""
    return f"{time:%m-%d %H:%M}" if time else "–"


def duration_text(seconds: float | None) -> str:
    """Write a duration in its two largest units; a dash for none."""
    if seconds is None:
        return "–"
    sign, whole = ("-" if seconds < 0 else ""), int(abs(seconds))
    if whole < 60:
        return f"{sign}{whole} s"
    units = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next(index for index, (_, count) in enumerate(units) if count)
    return sign + " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count)
