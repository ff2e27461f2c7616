"""The text formats from which Postgres reads exactly the value that is written, type by type.

Postgres accepts more: `now` and `today` as a time, 0x1F and 1_000 as integers, 2024-01-01 23:59:59 as a date. It
also drops digits and offsets that a type has no room for. Text in these formats avoids all of that, and its
meaning depends neither on a setting nor on the current time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_TIME_OF_DAY: Final = r"(([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6}0*)?)?"
_TIME: Final = _TIME_OF_DAY + r"|24:00(:00(\.0+)?)?)"  # the end of a day: only time types hold it
_OFFSET: Final = r"([Zz]|[+-][0-9]{2}(:?[0-9]{2}(:[0-9]{2})?)?)"
_DATE: Final = r"[0-9]{4,7}-[0-9]{2}-[0-9]{2}"
_NUMBER: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NOT_FINITE: Final = r"NaN|-?Infinity"
_SECONDS: Final = r"[0-9]+(\.[0-9]{1,6}0*)?"
_UNITS: Final = r"years?|mons?|months?|weeks?|days?|hours?|minutes?|mins?"
_PARTS: Final = rf"[+-]?([0-9]+ ?({_UNITS})|{_SECONDS} ?(seconds?|secs?))"
_CLOCK: Final = r"[+-]?[0-9]+:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6}0*)?)?"
# With IntervalStyle sql_standard, a minus before the first of several parts without signs applies to all of them.
_MINUS_OF_ALL: Final = r"(?!-[^+-]*[0-9][^+-]* [^+-]*[0-9][^+-]*$)"
# Postgres reads each number of this form as a double, which holds no microseconds from 2^33 s on.
_ISO: Final = (
    r"P(?=.)([+-]?[0-9]+Y)?([+-]?[0-9]+M)?([+-]?[0-9]+W)?([+-]?[0-9]+D)?"
    r"(T(?=.)([+-]?[0-9]+H)?([+-]?[0-9]+M)?([+-]?([0-9]+|[0-9]{1,9}\.[0-9]{1,6}0*)S)?)?"
)
_OCTET: Final = r"(0|[1-9][0-9]{0,2})"
_ADDRESS: Final = rf"({_OCTET}(\.{_OCTET}){{3}}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(/(0|[1-9][0-9]{{0,2}}))?"


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A Postgres regular expression that matches the whole text, and a description for the reasons of rejects."""

    pattern: str
    description: str


def _format(pattern: str, description: str) -> TextFormat:
    return TextFormat(f"^({pattern})$", description)


_INTEGER: Final = _format(r"[+-]?[0-9]+", "an integer in decimal digits")
_FLOAT: Final = _format(rf"{_NUMBER}|{_NOT_FINITE}", "a number that the type holds to the last digit")
TEXT_FORMATS: Final[Mapping[str, TextFormat]] = {
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": _INTEGER,
    "numeric": _format(
        rf"{_NUMBER}|{_NOT_FINITE}", "a number in decimal digits that it can hold without loss"
    ),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "bool": _format(
        "([tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?|[oO][nN]|[oO][fF][fF]|0|1)",
        "true or false, yes or no, on or off, their first letters, 1 or 0",
    ),
    "bytea": _format(r"\\x([0-9a-fA-F]{2})*", r"bytes in hexadecimal digits after \x"),
    "inet": _format(_ADDRESS, "a whole address"),
    "cidr": _format(_ADDRESS, "a whole address"),
    "macaddr": _format(
        "([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}[.-]){2}[0-9a-fA-F]{4}"
        "|[0-9a-fA-F]{6}[:-]?[0-9a-fA-F]{6}",
        "an address of 12 hexadecimal digits",
    ),
    "date": _format(rf"{_DATE}( BC)?|-?infinity", "a date as 2024-02-29, without a time"),
    "time": _format(_TIME, "a time as 10:00:00.123456, without a date or an offset"),
    "timetz": _format(rf"{_TIME}{_OFFSET}", "a time with its offset, as 10:00:00.123456+02:00"),
    "timestamp": _format(
        rf"{_DATE}([T ]{_TIME_OF_DAY}))?( BC)?|-?infinity",
        "a timestamp as 2024-02-29T10:00:00.123456, without an offset",
    ),
    "timestamptz": _format(
        rf"{_DATE}[T ]{_TIME_OF_DAY}){_OFFSET}( BC)?|-?infinity",
        "a timestamp with its offset, as 2024-02-29T10:00:00.123456+02:00",
    ),
    "interval": _format(
        rf"(?=.){_MINUS_OF_ALL}({_PARTS}( +{_PARTS})*( +{_CLOCK})?|{_CLOCK}|{_ISO}|-?infinity)",
        "an interval as '1 day 02:00:00.5' or P1DT2H, of whole units but for seconds",
    ),
}
