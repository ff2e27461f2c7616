"""How text has to be written for Postgres to read no other value from it than the one that is written.

Postgres reads more: `now` and `today` as a time, 0x1F and 1_000 as integers, 2024-01-01 23:59:59 as a date. It
also leaves out digits and offsets that a type has no room for. What is written as here has none of that, and
depends neither on a setting nor on the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_TIME_OF_DAY: Final = r"(([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6}0*)?)?"
_TIME: Final = _TIME_OF_DAY + r"|24:00(:00(\.0+)?)?)"  # the end of a day, which only a type of times can hold
_OFFSET: Final = r"([Zz]|[+-][0-9]{2}(:?[0-9]{2}(:[0-9]{2})?)?)"
_DATE: Final = r"[0-9]{4,7}-[0-9]{2}-[0-9]{2}"
_NUMBER: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NOT_FINITE: Final = r"NaN|-?Infinity"
_SECONDS: Final = r"[0-9]+(\.[0-9]{1,6}0*)?"
_UNITS: Final = r"years?|mons?|months?|weeks?|days?|hours?|minutes?|mins?"
_PARTS: Final = rf"[+-]?([0-9]+ ?({_UNITS})|{_SECONDS} ?(seconds?|secs?))"
_CLOCK: Final = r"[+-]?[0-9]+:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6}0*)?)?"
# A minus before the first of several parts without signs is one of them all where IntervalStyle is sql_standard.
_MINUS_OF_ALL: Final = r"(?!-[^+-]*[0-9][^+-]* [^+-]*[0-9][^+-]*$)"
_ISO: Final = (
    rf"P(?=.)([+-]?[0-9]+Y)?([+-]?[0-9]+M)?([+-]?[0-9]+W)?([+-]?[0-9]+D)?"
    rf"(T(?=.)([+-]?[0-9]+H)?([+-]?[0-9]+M)?([+-]?{_SECONDS}S)?)?"
)
_OCTET: Final = r"(0|[1-9][0-9]{0,2})"
_ADDRESS: Final = rf"({_OCTET}(\.{_OCTET}){{3}}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(/(0|[1-9][0-9]{{0,2}}))?"


@dataclass(frozen=True, slots=True)
class Spelling:
    """A regular expression of Postgres that all of the text matches, and the words for it in a reason."""

    pattern: str
    words: str


def _spelling(pattern: str, words: str) -> Spelling:
    return Spelling(f"^({pattern})$", words)


_INTEGER: Final = _spelling(r"[+-]?[0-9]+", "an integer in decimal digits")
_FLOAT: Final = _spelling(rf"{_NUMBER}|{_NOT_FINITE}", "a number that the type holds to the last digit")
SPELLINGS: Final[Mapping[str, Spelling]] = {
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": _INTEGER,
    "numeric": _spelling(
        rf"{_NUMBER}|{_NOT_FINITE}", "a number in decimal digits that it can hold without loss"
    ),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "bool": _spelling(
        "([tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?|[oO][nN]|[oO][fF][fF]|0|1)",
        "true or false, yes or no, on or off, their first letters, 1 or 0",
    ),
    "bytea": _spelling(r"\\x([0-9a-fA-F]{2})*", r"bytes in hexadecimal digits after \x"),
    "inet": _spelling(_ADDRESS, "a whole address"),
    "cidr": _spelling(_ADDRESS, "a whole address"),
    "macaddr": _spelling(
        "([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}[.-]){2}[0-9a-fA-F]{4}"
        "|[0-9a-fA-F]{6}[:-]?[0-9a-fA-F]{6}",
        "an address of 12 hexadecimal digits",
    ),
    "date": _spelling(rf"{_DATE}( BC)?|-?infinity", "a date as 2024-02-29, without a time"),
    "time": _spelling(_TIME, "a time as 10:00:00.123456, without a date or an offset"),
    "timetz": _spelling(rf"{_TIME}{_OFFSET}", "a time with its offset, as 10:00:00.123456+02:00"),
    "timestamp": _spelling(
        rf"{_DATE}([T ]{_TIME_OF_DAY}))?( BC)?|-?infinity",
        "a timestamp as 2024-02-29T10:00:00.123456, without an offset",
    ),
    "timestamptz": _spelling(
        rf"{_DATE}[T ]{_TIME_OF_DAY}){_OFFSET}( BC)?|-?infinity",
        "a timestamp with its offset, as 2024-02-29T10:00:00.123456+02:00",
    ),
    "interval": _spelling(
        rf"(?=.){_MINUS_OF_ALL}({_PARTS}( +{_PARTS})*( +{_CLOCK})?|{_CLOCK}|{_ISO}|-?infinity)",
        "an interval as '1 day 02:00:00.5' or P1DT2H, of whole units but for seconds",
    ),
}
