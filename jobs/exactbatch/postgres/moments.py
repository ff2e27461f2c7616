"""Dates and times as Postgres writes them, also those that Python cannot hold."""

from datetime import date
from typing import Final

_EPOCH: Final = date(1970, 1, 1).toordinal()
_CYCLE: Final = 146_097  # days of 400 years, after which the calendar repeats
_DAY: Final = 86_400_000_000  # microseconds


def day_text(days: int | None) -> str | None:
    """Return a number of days since 1970-01-01 as a date in ISO 8601, with BC after a year before 1."""
    if days is None:
        return None
    day, era = _day(days)
    return day + era


def moment_text(microseconds: int | None, *, offset: str) -> str | None:
    """Return a number of microseconds since 1970 as a date and time; `offset` is "+00" with a time zone, else ""."""
    if microseconds is None:
        return None
    days, of_day = divmod(microseconds, _DAY)
    day, era = _day(days)
    seconds, fraction = divmod(of_day, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        time += f".{fraction:06}".rstrip("0")
    return f"{day} {time}{offset}{era}"


def _day(days: int) -> tuple[str, str]:
    """Return year, month and day, and the era."""
    cycles, of_cycle = divmod(days + _EPOCH - 1, _CYCLE)
    day = date.fromordinal(of_cycle + 1)
    year = day.year + 400 * cycles
    return f"{year if year > 0 else 1 - year:04}-{day:%m-%d}", "" if year > 0 else " BC"
