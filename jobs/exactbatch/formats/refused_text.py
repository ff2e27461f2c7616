"""Text that is surely no value of a type, as Arrow reads it: decided from the text alone, without Arrow; and bytes that
are no text.

Arrow reports one bad value of many with an exception, so that finding a thousand of them takes a thousand blocks. This
is the slow path, one value at a time.
"""

import codecs
import decimal
import json
import re
import unicodedata
from calendar import monthrange
from collections.abc import Iterator
from math import inf
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.decimals import too_large, too_tiny
from exactbatch.member_paths import Path, Step

NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
INTEGER: Final = re.compile(r"-?\d+", re.ASCII)
_PARTS: Final = re.compile(r"[-+]?(?P<whole>\d*)\.?(?P<fraction>\d*)(?:[eE](?P<power>[-+]?\d+))?", re.ASCII)
_DAY: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_MOMENT: Final = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[T ](?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.(?P<fraction>\d+))?)?)?"
    r"(?P<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?",
    re.ASCII,
)
# From here on, a number is rounded to infinity: half a step above the largest real.
_BITS_OF_REAL: Final = 32
_FIRST_INFINITE: Final = 2.0**128 - 2.0**103
_MICROSECONDS: Final = 6  # digits
_GREGORIAN: Final = 400  # years after which the calendar repeats itself
_MOST_PLACES: Final = 38  # decimal128's, and so the most powers of ten that it multiplies by
_MOST_WIDE_PLACES: Final = 76  # decimal256's
_MOST_EXPONENT: Final = 9  # digits
_SHOWN: Final = 60  # characters of a number in a reason
_EXACT: Final = decimal.Context(prec=500, Emax=10**10, Emin=-(10**10))
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Bytes that are no UTF-8, in Python's text of them ("surrogateescape").
_ESCAPED: Final = re.compile("[\udc80-\udcff]")


def is_no_integer(text: str, type_: pa.DataType) -> bool:
    """True for text that is no integer, or one out of the range of the type."""
    if INTEGER.fullmatch(text) is None:
        return True
    bits = type_.bit_width
    digits = text.lstrip("-").lstrip("0")
    if len(digits) > bits:
        return True
    number = -int(digits or 0) if text.startswith("-") else int(digits or 0)
    return not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)


def is_infinite(number: str, bits: int) -> bool:
    """True for a number that a floating-point type of `bits` bits rounds to infinity."""
    rounded = abs(float(number))
    if bits == _BITS_OF_REAL and rounded == _FIRST_INFINITE:  # a double may be rounded up to it
        return decimal.Decimal(number).copy_abs() >= decimal.Decimal(_FIRST_INFINITE)
    return rounded > _FIRST_INFINITE if bits == _BITS_OF_REAL else rounded == inf


def is_no_day(text: str) -> bool:
    """True for text that is no date in ISO 8601."""
    match = _DAY.fullmatch(text)
    if match is None:
        return True
    year, month, day = map(int, match.groups())
    return not 1 <= month <= 12 or not 1 <= day <= monthrange(year or _GREGORIAN, month)[1]


def is_no_moment(text: str) -> bool:
    """True for text that is no timestamp in ISO 8601 with at most microseconds."""
    match = _MOMENT.fullmatch(text)
    return match is None or is_no_day(match["day"]) or len(match["fraction"] or "") > _MICROSECONDS


def has_zone(text: str) -> bool:
    """True for a timestamp with a zone offset."""
    match = _MOMENT.fullmatch(text)
    return match is not None and match["zone"] is not None


def why_no_decimal(text: str, type_: pa.DataType, *, is_wide: bool) -> str | None:
    """Return why text is no number of a decimal type, which Arrow reads with 256 bits if `is_wide`; None if it is."""
    parts = _PARTS.fullmatch(text)
    if parts is None or NUMBER.fullmatch(text) is None:
        return f"expected a number, found {text[:_SHOWN]!r}"
    whole, fraction, power = parts["whole"].lstrip("0"), parts["fraction"], parts["power"] or ""
    digits = power.lstrip("+-").lstrip("0")
    if is_wide and not digits and not whole and not fraction.strip("0"):
        return None
    if len(digits) > _MOST_EXPONENT and power.startswith("-"):
        return too_tiny(text)
    if len(digits) > _MOST_EXPONENT or len(fraction) > _MOST_WIDE_PLACES:
        return f"expected a number with fewer digits, found {text[:_SHOWN]}"
    exponent = int(digits or 0) * (-1 if power.startswith("-") else 1)
    places = len(fraction) - exponent
    if places > _MOST_PLACES and exponent:
        return too_tiny(text)
    if len(whole) > _MOST_WIDE_PLACES or places < -(_MOST_WIDE_PLACES if is_wide else _MOST_PLACES):
        return too_large(text, type_)
    if not is_wide and len(whole) + len(fraction) - min(places, 0) > type_.precision:
        return f"expected a number with at most {type_.precision} digits, found {text[:_SHOWN]}"
    scaled = _EXACT.create_decimal(text).scaleb(type_.scale, _EXACT)
    if scaled != scaled.to_integral_value(context=_EXACT):
        return f"expected a number with at most {type_.scale} places, found {text[:_SHOWN]}"
    # Not abs(), which rounds to the 28 digits of the thread's context.
    return too_large(text, type_) if scaled.copy_abs() >= 10**type_.precision else None


def decode_text(values: pa.BinaryArray) -> pa.StringArray:
    """Return values as text. Raises ValueError for invalid UTF-8, which for a single value names the byte and, in JSON,
    the field."""
    try:
        return values.cast(pa.string())
    except ValueError:
        if len(values) > 1:
            raise
        raise ValueError(not_utf8(values[0].as_py())) from None


def without_marks(values: pa.Array) -> pa.Array:
    """Return values, bytes or text, without the byte order mark that some begin with."""
    mark = codecs.BOM_UTF8.decode() if pa.types.is_string(values.type) else codecs.BOM_UTF8
    has_mark = pc.starts_with(values, mark)
    if not pc.any(has_mark, min_count=0).as_py():
        return values
    rest = [None if each is None else each.removeprefix(mark) for each in values.to_pylist()]
    return pa.array(rest, values.type)


def not_an_object(text: str) -> str:
    """Return why text is no JSON object, with its first character if that is one that nobody sees."""
    first = text[:1]
    if not first or (first.isprintable() and first != " "):
        return "expected a JSON object: { … }"
    name = unicodedata.name(first, "a control character")
    return f"expected a JSON object: {{ … }}, found U+{ord(first):04X} ({name}) at the start"


def half_surrogate(text: str) -> str | None:
    """Return why JSON text is refused if a string in it has half of a surrogate pair; None for any other text."""
    return _where(text, _SURROGATE, "half a surrogate pair")


def not_utf8(value: bytes) -> str:
    """Return why bytes that are no UTF-8 are refused, with the field if the rest is JSON."""
    if value.startswith(_UTF16):
        return "expected UTF-8, found UTF-16: the value begins with its byte order mark"
    try:
        value.decode()
    except UnicodeDecodeError as error:
        what = f"byte {value[error.start]:02X} at position {error.start}, which is not UTF-8"
        text = value.decode(errors="surrogateescape")
        return _where(text, _ESCAPED, what) or f"found {what}"
    raise AssertionError("the value is UTF-8")


def _where(text: str, bad: re.Pattern[str], what: str) -> str | None:
    """Return the first field of JSON text whose string or name has bad characters, in words; None if there is none."""
    if not text.lstrip().startswith(("{", "[", '"')):  # no JSON with a string: exceptions take longer
        return None
    try:
        found = next((path for path, string in _strings(json.loads(text), ()) if bad.search(string)), None)
    except (ValueError, RecursionError):
        return None
    if found is None:
        return None
    shown = _SURROGATE.sub("\ufffd", str(Path((found,))))
    return f"field {shown}: found {what}"


def _strings(value: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], str]]:
    """Yield the strings of parsed JSON, and the names in it, with their paths."""
    match value:
        case str():
            yield path, value
        case list():
            for number, element in enumerate(value):
                yield from _strings(element, (*path, number))
        case dict():
            for name, member in value.items():
                yield (*path, name), name
                yield from _strings(member, (*path, name))
