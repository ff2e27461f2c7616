"""Tumbling windows of event time."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types
from exactbatch.sinks.values.cast import RejectRule

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
# Postgres can hold the start and the end of the window of any time between these.
_BEFORE_1970: Final = datetime(1970, 1, 1) - datetime(1, 1, 1)
_FIRST_TIME, _END_OF_TIMES = "0001-01-01 00:00:00+00", "10000-01-01 00:00:00+00"


def duration(written: str | timedelta, *, what: str) -> timedelta:
    """Return a fixed length of time, which is written as "1 hour", "15 minutes" or a timedelta.

    Raises ConfigurationError, which begins with `what`, for a month or year, whose length is not fixed, for
    a negative length, and for more than 365,000 days.
    """
    match = _DURATION.fullmatch(written) if isinstance(written, str) else None
    try:
        length = _UNITS[match[2]] * int(match[1]) if match else written
    except OverflowError:
        length = None
    if not isinstance(length, timedelta) or not timedelta(0) <= length <= _LONGEST:
        raise ConfigurationError(
            f"{what}: expected a timedelta, or a number of {', '.join(f'{unit}s' for unit in _UNITS)} up to "
            f"365000 days, as in '1 hour', found {written!r}"
        )
    return length


@dataclass(frozen=True)
class Window:
    """A tumbling window of event time: windows of one width follow one another without a gap.

    column    the column with the time of the event, a timestamptz, or "kafka_timestamp", the record's timestamp
              in Kafka
    width     "1 hour", "15 minutes", "1 day", …, or a timedelta
    name      the name of the column with the start of the window; `<column>_window` by default

    Windows begin at 1970-01-01 00:00 UTC plus multiples of the width: hours and days are those of UTC, and weeks
    begin on Thursdays.
    """

    column: str
    width: str | timedelta
    name: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.length:
            raise ConfigurationError(
                f"window of {self.column!r}: expected a width greater than zero, found {self.width!r}"
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
        """The start of a staged row's window; only for an event time that satisfies `fits`."""
        # Counted from a time before all others: Postgres 16.0 to 16.2 put a time before the origin, at the start of a
        # window, into the window before.
        before = self.length * -(-_BEFORE_1970 // self.length)
        return sql.SQL("date_bin({}, {}, (timestamp '1970-01-01' - {}) at time zone 'UTC')").format(
            sql.Literal(self.length), self.time, sql.Literal(before)
        )

    @property
    def fits(self) -> sql.Composable:
        """The condition that the event time of a staged row is not null, and in the years 1 to 9999."""
        return sql.SQL("coalesce({0} >= {1}::timestamptz and {0} < {2}::timestamptz, false)").format(
            self.time, sql.Literal(_FIRST_TIME), sql.Literal(_END_OF_TIMES)
        )

    @property
    def expected(self) -> str:
        """The start of the reason of a reject; what was found follows."""
        return f"column {self.column!r}: expected the time of the event, in the years 1 to 9999, found "

    @property
    def reject_rule(self) -> RejectRule:
        """The rule that rejects staged rows whose event time does not satisfy `fits`."""
        return RejectRule(
            sql.SQL("not {}").format(self.fits),
            sql.SQL("{} || coalesce(({} at time zone 'UTC')::text, 'null')").format(
                sql.Literal(self.expected),
                self.time,
            ),
        )
