"""Read texts without Postgres and exactbatch, with Python's integers, decimals and fractions."""

import ipaddress
import json
import re
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

Meaning = Any
MICROSECONDS = 1_000_000
DAY = 86_400 * MICROSECONDS
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
UNITS = {
    "year": (12, 0, 0), "mon": (1, 0, 0), "month": (1, 0, 0), "week": (0, 7, 0), "day": (0, 1, 0),
    "hour": (0, 0, 3600 * MICROSECONDS), "minute": (0, 0, 60 * MICROSECONDS), "min": (0, 0, 60 * MICROSECONDS),
    "second": (0, 0, MICROSECONDS), "sec": (0, 0, MICROSECONDS),
}  # fmt: skip


def number(text: str) -> Meaning:
    """A number to its last digit; NaN and infinities as they are spelt."""
    if text in ("NaN", "Infinity", "-Infinity"):
        return text
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        raise ValueError(text)
    try:
        digits = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if digits and not -20_000 < digits.adjusted() < 140_000:
        raise ValueError(text)
    return Fraction(digits)


def integer(text: str) -> Meaning:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(text)
    return Fraction(int(text))


def days(text: str) -> tuple[int, str]:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, and what follows the date."""
    match = re.match(r"(\d{4,})-(\d\d)-(\d\d)(?!\d)", text)
    if match is None:
        raise ValueError(text)
    year, month, day = map(int, match.groups())
    rest = text[match.end() :]
    if rest.endswith(" BC"):
        rest, year = rest.removesuffix(" BC"), 1 - year
        if year > 0:
            raise ValueError(text)
    elif year == 0:
        raise ValueError(text)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not (1 <= month <= 12 and 1 <= day <= MONTH_DAYS[month - 1] + (leap and month == 2)):
        raise ValueError(text)
    before = year - 1
    count = before * 365 + before // 4 - before // 100 + before // 400
    count += sum(MONTH_DAYS[: month - 1]) + (leap and month > 2) + day - 1
    return count - 719_162, rest


def date(text: str) -> Meaning:
    if text in ("infinity", "-infinity"):
        return text
    count, rest = days(text)
    if rest:
        raise ValueError(text)
    return count


def clock(text: str) -> Fraction:
    """Microseconds since midnight; 24:00 is the end of a day."""
    match = re.fullmatch(r"(\d\d):(\d\d)(?::(\d\d)(\.\d+)?)?", text)
    if match is None:
        raise ValueError(text)
    hour, minute, second = (int(each or 0) for each in match.groups()[:3])
    micros = ((hour * 60 + minute) * 60 + second + Fraction(match[4] or 0)) * MICROSECONDS
    if minute > 59 or second > 59 or micros > DAY or micros.denominator != 1:
        raise ValueError(text)
    return micros


def offset(text: str) -> tuple[str, int]:
    """Split a text into the part before its offset, and the offset in seconds."""
    match = re.fullmatch(r"(.*?)(?:([zZ])|([+-])(\d\d)(?::?(\d\d)(?::(\d\d))?)?)", text)
    if match is None:
        raise ValueError(text)
    seconds = int(match[4] or 0) * 3600 + int(match[5] or 0) * 60 + int(match[6] or 0)
    return match[1], -seconds if match[3] == "-" else seconds


def timestamp(text: str) -> Meaning:
    if text in ("infinity", "-infinity"):
        return text
    count, rest = days(text)
    micros = clock(rest[1:]) if rest[:1] in ("T", " ") and rest else Fraction(0)
    if (rest and rest[0] not in "T ") or micros == DAY:
        raise ValueError(text)
    return count * DAY + micros


def timestamptz(text: str) -> Meaning:
    if text in ("infinity", "-infinity"):
        return text
    bc = " BC" if text.endswith(" BC") else ""
    local, seconds = offset(text.removesuffix(" BC"))
    if ":" not in local:
        raise ValueError(text)
    return timestamp(local + bc) - seconds * MICROSECONDS


def timetz(text: str) -> Meaning:
    local, seconds = offset(text)
    return clock(local), seconds


def interval(text: str) -> Meaning:
    """Months, days and microseconds, which Postgres keeps apart."""
    if text in ("infinity", "-infinity"):
        return text
    if re.fullmatch(r"-[^+-]*\d[^+-]* [^+-]*\d[^+-]*", text):
        raise ValueError(text)  # of which parts the minus is depends on a setting
    total = [Fraction(0)] * 3

    def add(count: str, unit: str) -> None:
        if "." in count and unit not in ("second", "sec"):
            raise ValueError(text)
        for at, size in enumerate(UNITS[unit]):
            total[at] += Fraction(count) * size

    if text.startswith("P"):
        match = re.fullmatch(
            r"P(?=.)(?:([+-]?\d+)Y)?(?:([+-]?\d+)M)?(?:([+-]?\d+)W)?(?:([+-]?\d+)D)?"
            r"(?:T(?=.)(?:([+-]?\d+)H)?(?:([+-]?\d+)M)?(?:([+-]?[\d.]+)S)?)?",
            text,
        )
        if match is None:
            raise ValueError(text)
        for count, unit in zip(
            match.groups(), ("year", "month", "week", "day", "hour", "minute", "second"), strict=True
        ):
            add(count or "0", unit)
    else:
        rest = text
        if match := re.search(r"(?:^| )([+-]?)(\d+):(\d\d)(?::(\d\d)(\.\d+)?)?$", text):
            rest = text[: match.start()]
            seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0) + Fraction(match[5] or 0)
            total[2] += seconds * MICROSECONDS * (-1 if match[1] == "-" else 1)
        elif not text:
            raise ValueError(text)
        if rest and not re.fullmatch(r"(?:[+-]?[\d.]+ ?[a-z]+(?: +|$))+", rest):
            raise ValueError(text)
        for count, unit in re.findall(r"([+-]?[\d.]+) ?([a-z]+)", rest):
            if unit not in UNITS and unit.removesuffix("s") not in UNITS:
                raise ValueError(text)
            add(count, unit if unit in UNITS else unit.removesuffix("s"))
    if total[2].denominator != 1:
        raise ValueError(text)
    return tuple(total)


def boolean(text: str) -> Meaning:
    found = {"true": True, "t": True, "yes": True, "y": True, "on": True, "1": True,
             "false": False, "f": False, "no": False, "n": False, "off": False, "0": False}  # fmt: skip
    if text.lower() not in found:
        raise ValueError(text)
    return found[text.lower()]


def octets(text: str) -> Meaning:
    if not re.fullmatch(r"\\x(?:[0-9a-fA-F]{2})*", text):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def guid(text: str) -> Meaning:
    return uuid.UUID(text)


def inet(text: str) -> Meaning:
    return ipaddress.ip_interface(text)


def cidr(text: str) -> Meaning:
    return ipaddress.ip_network(text)


def mac(text: str) -> Meaning:
    found = re.sub(r"[-:.]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{12}", found):
        raise ValueError(text)
    return found


def jsonb(text: str) -> Meaning:
    """JSON, whose objects have no order and name each field once, with numbers to their last digit."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(text)
        return found

    def refuse(word: str) -> None:
        raise ValueError(word)

    found: Any = json.loads(
        text, parse_float=number, parse_int=number, parse_constant=refuse, object_pairs_hook=once
    )
    return found


def padded(length: int) -> Callable[[str], Meaning]:
    """char(length): blanks that fill it up are none of the value."""

    def read(text: str) -> Meaning:
        if len(text) > length or (len(text) < length and text.endswith(" ")):
            raise ValueError(text)
        return text.rstrip(" ")

    return read


def text(text: str) -> Meaning:
    """Return the text unchanged."""
    return text


def single(value: float) -> float:
    """The nearest single precision number."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
