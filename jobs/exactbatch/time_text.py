"""Times and durations as a user writes them: "2026-11-21T08:00:00Z"; "30 minutes", or a timedelta."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from exactbatch.errors import ConfigurationError

Duration = str | timedelta

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


def parse_duration(written: Duration, *, what: str) -> timedelta:
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
            f"{what}: expected a length of time such as '1 hour' or '30 days', found {written!r}. Write a number of "
            f"{', '.join(f'{unit}s' for unit in _UNITS)}, at most 365000 days, or in Python a timedelta."
        )
    return length


def read_time(text: str) -> datetime:
    """Return an ISO 8601 time, UTC unless it has a UTC offset, in UTC. Raises ValueError, TypeError, OverflowError."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
