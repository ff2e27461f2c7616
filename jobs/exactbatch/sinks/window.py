"""Tumbling windows of event time."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types

TIMESTAMPTZ: Final = "timestamp with time zone"
_UNITS: Final = {
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_DURATION: Final = re.compile(rf"(\d+) ({'|'.join(_UNITS)})s?")
_LONGEST: Final = timedelta(days=365_000)
# A window of such a time, and its end, are times that Postgres can hold.
_FIRST_TIME, _END_OF_TIMES = "0001-01-01 00:00:00+00", "10000-01-01 00:00:00+00"


def duration(written: str | timedelta, *, what: str) -> timedelta:
    """A fixed length of time, written as "1 hour", "15 minutes" or a timedelta.

    Raises ConfigurationError, which begins with `what`, for a month or year, whose length is not fixed, for
    less than nothing, and for more than 365,000 days.
    """
    match = _DURATION.fullmatch(written) if isinstance(written, str) else None
    try:
        found = _UNITS[match[2]] * int(match[1]) if match else written
    except OverflowError:
        found = None
    if not isinstance(found, timedelta) or not timedelta(0) <= found <= _LONGEST:
        raise ConfigurationError(
            f"{what}: expected a timedelta, or a number of {', '.join(f'{unit}s' for unit in _UNITS)} up to "
            f"365000 days, as in '1 hour', found {written!r}"
        )
    return found


@dataclass(frozen=True)
class Window:
    """The window of event time that a row falls into: those of the width follow one another without a gap.

    column    the column with the time of the event, a timestamptz, or "kafka_timestamp", the time that Kafka
              has of the record
    width     "1 hour", "15 minutes", "1 day", …, or a timedelta
    name      of the column with the start of the window, `<column>_window` unless it is given

    Windows begin at 1970-01-01 00:00 UTC and multiples of the width from there: hours and days are those of
    UTC, and weeks begin on Thursdays.
    """

    column: str
    width: str | timedelta
    name: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.length:
            raise ConfigurationError(
                f"window of {self.column!r}: expected a width of more than nothing, found {self.width!r}"
            )

    @property
    def length(self) -> timedelta:
        """The width."""
        return duration(self.width, what=f"width of the window of {self.column!r}")

    @property
    def start(self) -> Column:
        """The column of the window's start."""
        return Column(self.name or f"{self.column}_window", TIMESTAMPTZ)

    @property
    def time(self) -> sql.Composable:
        """The event time of a staged row."""
        return sql.Identifier(self.column)

    @property
    def of_row(self) -> sql.Composable:
        """The start of a staged row's window; its event time has to be one that `fits`."""
        return sql.SQL("date_bin({}, {}, timestamptz '1970-01-01 00:00:00+00')").format(
            sql.Literal(self.length), self.time
        )

    @property
    def fits(self) -> sql.Composable:
        """Whether the event time of a staged row is there, and of the years 1 to 9999."""
        return sql.SQL("coalesce({0} >= {1}::timestamptz and {0} < {2}::timestamptz, false)").format(
            self.time, sql.Literal(_FIRST_TIME), sql.Literal(_END_OF_TIMES)
        )
