"""Dates and timestamps in ISO 8601, as formats/json/spec.py reads them, since 2000, as Postgres stores them."""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.compiler import called

_U: Final = np.uint64
_1: Final = np.uint64(1)

_MINUS: Final = 45
_PLUS: Final = 43
_POINT: Final = 46
_COLON: Final = 58
_SPACE: Final = 32
_LETTER_T: Final = 84
_LETTER_Z: Final = 90
_SECOND: Final = 1_000_000  # microseconds
_DAYS_BEFORE_2000: Final = 730_425  # since March 1st of the year 0


@called
def read_date(buffer: Any, start: Any, stop: Any) -> Any:
    """Return the days since 2000-01-01 of YYYY-MM-DD, of the years 1 to 9999, and whether it is such a date."""
    if stop != start + _U(10) or buffer[start + _U(4)] != _MINUS or buffer[start + _U(7)] != _MINUS:
        return np.int64(0), False
    century, rest = _two_digits(buffer, start), _two_digits(buffer, start + _U(2))
    month, day = _two_digits(buffer, start + _U(5)), _two_digits(buffer, start + _U(8))
    year = century * 100 + rest
    if century < 0 or rest < 0 or year < 1 or month < 1 or month > 12 or day < 1:
        return np.int64(0), False
    if day > 28 and day > _days_of_month(year, month):
        return np.int64(0), False
    # Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil: years that begin in March.
    shifted = year - (month <= 2)
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return np.int64(era * 146_097 + day_of_era - _DAYS_BEFORE_2000), True


@called
def read_timestamp(buffer: Any, start: Any, stop: Any) -> Any:
    """Return the microseconds since 2000-01-01 UTC of a date, or of YYYY-MM-DD[T ]hh:mm[:ss[.f…]] with up to six
    digits of fraction and with Z, ±hh, ±hhmm, ±hh:mm or nothing at its end; and whether it is one."""
    if stop < start + _U(10):
        return np.int64(0), False
    days, good = read_date(buffer, start, start + _U(10))
    moment = days * (86_400 * _SECOND)
    at = start + _U(10)
    if not good or at == stop:
        return moment, good
    if (
        stop < at + _U(6)
        or (buffer[at] != _LETTER_T and buffer[at] != _SPACE)
        or buffer[at + _U(3)] != _COLON
    ):
        return np.int64(0), False
    hour, minute = _two_digits(buffer, at + _1), _two_digits(buffer, at + _U(4))
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return np.int64(0), False
    moment += (hour * 3600 + minute * 60) * _SECOND
    at += _U(6)
    if at + _U(3) <= stop and buffer[at] == _COLON:
        second = _two_digits(buffer, at + _1)
        if second < 0 or second > 59:
            return np.int64(0), False
        moment += second * _SECOND
        at += _U(3)
        if at < stop and buffer[at] == _POINT:
            at += _1
            unit = np.int64(_SECOND)
            while at < stop and 48 <= buffer[at] <= 57:
                unit //= 10
                moment += np.int64(buffer[at] - 48) * unit
                if unit == 0:
                    return np.int64(0), False  # a seventh digit
                at += _1
            if unit == _SECOND:
                return np.int64(0), False
    offset, good = _read_offset(buffer, at, stop)
    return moment - offset, good


@called
def _read_offset(buffer: Any, at: Any, stop: Any) -> Any:
    """Return the microseconds by which a time zone is ahead of UTC, and whether it is one."""
    length = np.int64(stop - at)
    if length == 0 or (length == 1 and buffer[at] == _LETTER_Z):
        return np.int64(0), True
    if (buffer[at] != _PLUS and buffer[at] != _MINUS) or length not in (3, 5, 6):
        return np.int64(0), False
    hours = _two_digits(buffer, at + _1)
    minutes = np.int64(0)
    if length == 5:
        minutes = _two_digits(buffer, at + _U(3))
    elif length == 6:
        minutes = _two_digits(buffer, at + _U(4))
        if buffer[at + _U(3)] != _COLON:
            return np.int64(0), False
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return np.int64(0), False
    offset = (hours * 60 + minutes) * 60 * _SECOND
    return offset if buffer[at] == _PLUS else -offset, True


@called
def _two_digits(buffer: Any, at: Any) -> Any:
    """Return the number that two digits stand for, or -1."""
    tens, ones = np.int64(buffer[at]) - 48, np.int64(buffer[at + _1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(-1)
    return tens * 10 + ones


@called
def _days_of_month(year: Any, month: Any) -> Any:
    if month == 2:
        return 29 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 else 28
    return 30 if month in (4, 6, 9, 11) else 31
