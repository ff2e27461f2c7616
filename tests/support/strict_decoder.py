"""Decode one JSON value in plain Python, to a row, a reject or a tombstone.

It shares no code with what it is compared with, and looks at one value at a time. A value of a row is what
Postgres shows for the column by the expression in SHOWN.
"""

import calendar
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from struct import pack, unpack
from typing import Any

# How a column is asked for, to be compared without what a driver may make of it: as text, but moments as numbers
# since 1970, since years before Christ have no one way to be written.
SHOWN: Mapping[str, str] = {
    "date": "({} - date '1970-01-01')::text",
    "timestamptz": "(extract(epoch from {}) * 1000000)::bigint::text",
    "timestamp": "(extract(epoch from {}) * 1000000)::bigint::text",
    "int[]": "to_json({})::text",
    "text[]": "to_json({})::text",
}


class Refused(Exception):
    """A value is a reject; the message says why."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of JSON, as it is written."""

    written: str


class Fields(list[tuple[str, Any]]):
    """The fields of an object, in their order, repeated ones too."""


def select_rows(columns: Mapping[str, str], labels: frozenset[str]) -> Callable[[bytes], list[Any]]:
    """A function from a value to its row for columns of these types, or Refused. `labels` are an enum's."""

    def row(value: bytes) -> list[Any]:
        fields = _object(value)
        found: dict[str, Any] = {}
        for name, field in fields:
            if name in columns:
                if name in found:
                    raise Refused(f"{name} is given twice")
                found[name] = field
        return [
            None if found.get(name) is None else _as(type_, found[name], labels)
            for name, type_ in columns.items()
        ]

    return row


def _object(value: bytes) -> Fields:
    try:
        text = value.decode("utf-8").removeprefix("\ufeff").strip(" \t\r\n")
        found = json.loads(
            text,
            object_pairs_hook=Fields,
            parse_int=Number,
            parse_float=_float,
            parse_constant=_no_constant,
        )
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Refused(str(error)[:200]) from None
    except RecursionError:
        raise Refused("nested too deep") from None
    if not isinstance(found, Fields):
        raise Refused("no object")
    if "\\u" in text:
        _refuse_half_pairs(found)
    return found


def _no_constant(written: str) -> None:
    raise Refused(f"{written} is no JSON")


def _float(written: str) -> Number:
    """No exponent may be above 308, but that fractional digits count against it: 1.5e309 is 15e308."""
    mantissa, _, exponent = written.lower().partition("e")
    if exponent and _integer(exponent) > 308 + len(mantissa.partition(".")[2]):
        raise Refused("an exponent that no double has")
    return Number(written)


def _integer(written: str) -> int:
    """An integer; beyond a billion the limit is as good, and int() refuses thousands of digits."""
    digits = written.lstrip("+-").lstrip("0") or "0"
    number = int(digits) if len(digits) < 10 else 10**9
    return -number if written.startswith("-") else number


def _refuse_half_pairs(found: Any) -> None:
    waiting = [found]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            try:
                each.encode("utf-8")
            except UnicodeEncodeError:
                raise Refused("half a surrogate pair") from None
        elif isinstance(each, list | tuple):
            waiting += each


def _as(type_: str, field: Any, labels: frozenset[str]) -> str:
    """A field that is not null as a value of a type, shown as text."""
    match type_:
        case "smallint" | "int" | "bigint":
            return _as_integer(field, {"smallint": 16, "int": 32, "bigint": 64}[type_])
        case "float8":
            return repr(_finite(float(_number(field))))
        case "real":
            return repr(_finite(_nearest_real(_number(field))))
        case "numeric":
            return _as_numeric(_number_or_text(field))
        case "numeric(10,2)":
            return _as_decimal(_number_or_text(field), 10, 2)
        case "boolean":
            if not isinstance(field, bool):
                raise Refused("no boolean")
            return "true" if field else "false"
        case "text":
            return _text(field)
        case "varchar(5)":
            if len(_text(field)) > 5:
                raise Refused("more than 5 characters")
            return _text(field)
        case "date":
            return str(_days(_match(_DATE, _text(field))))
        case "timestamp" | "timestamptz":
            return str(_microseconds(_match(_MOMENT, _text(field))))
        case "uuid":
            digits = _match(_UUID, _text(field))[0].strip("{}").replace("-", "").lower()
            return "-".join(
                digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
            )
        case "mood":
            if _text(field) not in labels:
                raise Refused("no label")
            return _text(field)
        case "jsonb":
            return canonical(field)
        case "int[]":
            return _as_array(field, lambda each: int(_as_integer(each, 32)))
        case "text[]":
            return _as_array(field, _text)
    raise AssertionError(type_)


def _as_array(field: Any, element: Callable[[Any], Any]) -> str:
    if not isinstance(field, list) or isinstance(field, Fields):
        raise Refused("no array")
    return json.dumps([None if each is None else element(each) for each in field])


def _as_integer(field: Any, bits: int) -> str:
    written = _number(field)
    if not re.fullmatch("-?[0-9]+", written):
        raise Refused("no integer, or none that is written as one")
    if len(written) > 20 or not -(2 ** (bits - 1)) <= int(written) < 2 ** (bits - 1):
        raise Refused("out of range")
    return str(int(written))


def _number(field: Any) -> str:
    if not isinstance(field, Number):
        raise Refused("no number")
    return field.written


def _text(field: Any) -> str:
    if not isinstance(field, str):
        raise Refused("no string")
    if "\0" in field:
        raise Refused("U+0000")
    return field


def _number_or_text(field: Any) -> str:
    return field.written if isinstance(field, Number) else _text(field)


def _finite(number: float) -> float:
    if abs(number) == float("inf"):
        raise Refused("out of range")
    return number


def _nearest_real(written: str) -> float:
    """The nearest number of 32 bits, ties to even, without rounding to 64 bits first."""
    double = float(written)
    if double in (0, float("inf"), -float("inf")):
        return double
    exact = abs(Fraction(Decimal(written)))
    if exact >= _BEYOND_REAL:
        return float("inf")
    (near,) = unpack("<I", pack("<f", min(abs(double), _real(_LARGEST_REAL))))
    around = range(max(0, near - 1), min(near + 1, _LARGEST_REAL) + 1)
    best = _real(min(around, key=lambda bits: (abs(Fraction(_real(bits)) - exact), bits % 2)))
    return -best if double < 0 else best


_LARGEST_REAL = 0x7F7FFFFF  # bits
_BEYOND_REAL = Fraction(2**128 - 2**103)  # from here on, the nearest of 32 bits is infinity


def _real(bits: int) -> float:
    return float(unpack("<f", pack("<I", bits))[0])


# What a JSON number is, and what else a string for numeric(10,2) may hold.
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_ANY_NUMBER = re.compile(r"[+-]?(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")


def _as_numeric(written: str) -> str:
    """Without a precision: 131072 digits before the point, 16383 after it."""
    fraction, exponent = _match(_JSON_NUMBER, written).groups(default="")
    power = _integer(exponent or "0")
    if len(fraction) - power > 16383 or power >= 10**9:
        raise Refused("too many places")
    number = Decimal(written)
    if number and number.adjusted() >= 131072:
        raise Refused("too many digits")
    return shown(number)


def _as_decimal(written: str, precision: int, scale: int) -> str:
    """With a precision: neither more digits than that, nor more than 38 places, may be written at all."""
    whole, fraction, exponent = _match(_ANY_NUMBER, written).groups(default="")
    digits = len(whole.lstrip("0")) + len(fraction)
    places = len(fraction) - _integer(exponent or "0")
    if places > 38 or digits + max(0, -places) > precision:
        raise Refused("too many digits")
    number = Decimal(f"{whole or '0'}.{fraction or '0'}e{exponent or '0'}").scaleb(scale)
    if number != int(number) or number >= 10**precision:
        raise Refused("would be rounded, or does not fit")
    return shown(Decimal(("-" if written[0] == "-" else "") + str(int(number))).scaleb(-scale))


def shown(number: Decimal) -> str:
    """A number as Postgres shows it: without an exponent, with the places that it has, and no -0."""
    if not number:
        return format(Decimal((0, (0,), min(0, int(number.as_tuple().exponent)))), "f")
    return format(number, "f")


def canonical(field: Any) -> str:
    """Return a field as jsonb stores it, with ordered keys, so that equal values are the same."""
    return json.dumps(_plain(field), sort_keys=True)


def _plain(field: Any) -> Any:
    """Numbers become objects with an empty key, which stands for no other field of the same text."""
    if isinstance(field, Number):
        return ["number", _as_numeric(field.written)]
    if isinstance(field, Fields):
        if len({name for name, _ in field}) < len(field):
            raise Refused("an object with a field given twice")
        return {_text(name): _plain(each) for name, each in field}
    if isinstance(field, list):
        return ["array", *map(_plain, field)]
    return _text(field) if isinstance(field, str) else field


def as_expected(type_: str, shown_: str | None) -> str | None:
    """Convert a column's value, as Postgres shows it, to the form of this module."""
    if shown_ is None:
        return None
    match type_:
        case "float8":
            return repr(float(shown_))
        case "real":
            return repr(unpack("<f", pack("<f", float(shown_)))[0])
        case "int[]" | "text[]":
            return json.dumps(json.loads(shown_))
        case "jsonb":
            return canonical(
                json.loads(shown_, object_pairs_hook=Fields, parse_int=Number, parse_float=Number)
            )
    return shown_


_DATE = re.compile("([0-9]{4})-([0-9]{2})-([0-9]{2})")
_MOMENT = re.compile(
    _DATE.pattern
    + "(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:[.]([0-9]{1,6}))?)?)?"
    + "(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
# Postgres's documentation, "UUID Type": braces, and a hyphen after any group of four digits.
_UUID = re.compile("(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}|[{](?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}[}]")


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise Refused(f"{text[:50]!r} is not of the form")
    return match


def _days(match: re.Match[str]) -> int:
    """Days since 1970, in the Gregorian calendar of all years; the year 0 is 1 BC."""
    year, month, day = map(int, match.groups()[:3])
    # The calendar repeats after 400 years, which have 146097 days; Python's begins with the year 1.
    cycles = 1 if year == 0 else 0
    year += 400 * cycles
    if not 1 <= month <= 12 or not 1 <= day <= calendar.monthrange(year, month)[1]:
        raise Refused("no such day")
    return date(year, month, day).toordinal() - date(1970, 1, 1).toordinal() - 146097 * cycles


def _microseconds(match: re.Match[str]) -> int:
    hour, minute, second = (int(each or 0) for each in match.groups()[3:6])
    east, hours, minutes = match[8], int(match[9] or 0), int(match[10] or 0)
    if hour > 23 or minute > 59 or second > 59 or hours > 23 or minutes > 59:
        raise Refused("no such time")
    offset = (hours * 60 + minutes) * 60 * (-1 if east == "-" else 1)
    seconds = _days(match) * 86400 + (hour * 60 + minute) * 60 + second - offset
    return seconds * 10**6 + int((match[7] or "").ljust(6, "0"))
