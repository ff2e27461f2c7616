"""Refuse decimals that Arrow's readers would misread.

A decimal with more than 38 places, such as 1e-41, makes Arrow read past the end of its table of powers of ten: it reads
a wrong number there, or crashes (https://github.com/apache/arrow/issues/50964).

Arrow multiplies a decimal by 10^scale modulo 2^128, and the remainder may look like a number that fits, as 40 does in a
decimal128(38, 37). Its readers first refuse more digits than the precision, so that a product is too large only if
precision and scale together exceed 38. Such columns are read with 256 bits, which hold any product.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_MOST_PLACES: Final = 38  # decimal128's
_MOST_DIGITS: Final = 38  # decimal128's
# A number of this many digits, times 10^38, is less than 2^255.
_FEW_DIGITS: Final = r"^[-+]?[0-9.]{1,38}$"
# Arrow refuses more than 38 digits before it counts the places, so that more than 38 places need an exponent. The
# search for any negative exponent is fast; the second pattern excludes what only looks like one, such as part of a
# uuid.
_NEGATIVE_EXPONENT: Final = "(?i)e-[0-9]"
_FAR_EXPONENT: Final = "(?:^|[^0-9A-Za-z-])[-+]?[0-9.]+[eE]-0*[1-9][0-9]|[0-9]{29}[.]?[eE]-[0-9]"
# A character of a number in a JSON string.
_ESCAPED: Final = r"\\u00(?:2[bdeBDE]|3[0-9]|[46]5)"
_WITH_EXPONENT: Final = re.compile(r"[^.]*(?:\.([0-9]*))?[eE]-([0-9]+)")
_SHOWN: Final = 60  # characters of a number in a message
_EXPONENT_DIGITS: Final = 9  # an exponent with more digits is below that of any decimal


def has_decimals(type_: pa.DataType) -> bool:
    """True for a decimal, and for a type that contains one."""
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return pa.types.is_decimal(type_) or any(map(has_decimals, inner))


def without_wrapping(type_: pa.DataType) -> pa.DataType:
    """Return a decimal type in which Arrow's JSON reader multiplies exactly, and any other type unchanged."""
    if pa.types.is_decimal128(type_) and type_.precision + type_.scale > _MOST_DIGITS:
        return pa.decimal256(type_.precision, type_.scale)
    return type_


def parse_decimals(text: pa.ChunkedArray, type_: pa.Decimal128Type) -> pa.ChunkedArray:
    """Convert text to decimals; raise ValueError for text that is not a number with at most 38 places."""
    text = pc.ascii_trim(text, characters=" \t")
    long = text.filter(pc.invert(pc.match_substring_regex(text, _FEW_DIGITS)))
    _refuse_too_large(long.to_pylist(), type_)
    try:
        return text.cast(pa.decimal256(type_.precision, type_.scale)).cast(type_)
    except ValueError:
        _refuse_too_large(text.drop_null().to_pylist(), type_)
        raise


def check_digits(decimals: pa.ChunkedArray | pa.Array) -> None:
    """Raise ValueError for a decimal with more digits than its type has."""
    try:
        decimals.validate(full=True)
    except ValueError as error:
        type_ = decimals.type
        if match := re.search(r"Decimal value (-?)([0-9]+) does not fit in precision", str(error)):
            number = Decimal((len(match[1]), tuple(map(int, match[2])), -type_.scale))
            raise ValueError(
                too_large(re.sub(r"\.?0*$", "", f"{number:f}") if type_.scale else str(number), type_)
            ) from None
        raise


def refuse_tiny_fields(objects: pa.StringArray, row: pa.StructType) -> None:
    """Raise ValueError if a field of JSON objects that is read as a decimal has more than 38 places.

    Text that is not JSON, or nested too deeply to check, is refused only if it may have such a field.
    """
    suspect = objects.filter(
        pc.or_(
            pc.match_substring_regex(objects, _NEGATIVE_EXPONENT),
            pc.match_substring_regex(objects, _ESCAPED),
        )
    )
    suspect = suspect.filter(pc.match_substring_regex(suspect, f"{_FAR_EXPONENT}|{_ESCAPED}"))
    for text in suspect.to_pylist():
        try:
            parsed = json.loads(text, parse_float=str, parse_int=str)
        except RecursionError:
            raise ValueError("expected fewer than 900 levels of nesting, found more") from None
        refuse_tiny(_decimals(parsed, row))


def may_be_tiny(lines: pa.StringArray) -> bool:
    """True if a number in a line may have more than 38 places."""
    return bool(pc.any(pc.match_substring_regex(lines, _FAR_EXPONENT)).as_py())


def refuse_tiny(numbers: Iterable[str]) -> None:
    """Raise ValueError for the first number with more than 38 places. Text that is not a number passes."""
    for number in numbers:
        if match := _WITH_EXPONENT.fullmatch(number.strip(" \t")):
            fraction, exponent = match.groups(default="")
            digits = exponent.lstrip("0")
            if len(digits) > _EXPONENT_DIGITS or len(fraction) + int(digits or 0) > _MOST_PLACES:
                raise ValueError(too_tiny(number))


def too_tiny(number: str) -> str:
    """Return why a number with more than 38 places is refused."""
    return f"expected a decimal with at most {_MOST_PLACES} places, found {number[:_MOST_PLACES]}"


def _refuse_too_large(numbers: Iterable[str], type_: pa.Decimal128Type) -> None:
    for number in numbers:
        try:
            exact = Decimal(number)
        except InvalidOperation:
            raise ValueError(f"expected a number, found {number[:_SHOWN]!r}") from None
        if exact.is_finite() and exact and exact.adjusted() >= type_.precision - type_.scale:
            raise ValueError(too_large(number, type_))


def too_large(number: str, type_: pa.DataType) -> str:
    """Return why a number with more digits before the point than its type has is refused."""
    return (
        f"expected at most {type_.precision - type_.scale} digits before the point, found {number[:_SHOWN]}"
    )


def _decimals(value: Any, type_: pa.DataType) -> Iterator[str]:
    """Yield what a parsed value has where its type has decimals: numbers, and strings that may hold one."""
    if pa.types.is_decimal(type_):
        if isinstance(value, str):
            yield value
    elif pa.types.is_list(type_) and isinstance(value, list):
        for element in value:
            yield from _decimals(element, type_.value_type)
    elif pa.types.is_struct(type_) and isinstance(value, dict):
        for field in type_:
            yield from _decimals(value.get(field.name), field.type)
