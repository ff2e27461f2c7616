"""Why lines of CSV are refused: Arrow's rules, one field after the other, without Arrow.

Arrow reports one bad line of many with an exception, and reading one line takes it as long as reading a thousand. So
if a block fails, Csv asks here for the reason of each line; Arrow reads the others.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from exactbatch.columns import Column
from exactbatch.formats.decimals import without_wrapping
from exactbatch.formats.postgres_limits import NUL, OUT_OF_RANGE, is_too_fine, too_fine
from exactbatch.formats.refused_text import (
    NUMBER,
    has_zone,
    is_infinite,
    is_no_day,
    is_no_integer,
    is_no_moment,
    why_no_decimal,
)
from exactbatch.formats.unreadable_text import not_utf8

_QUOTE: Final = '"'
_LONGEST: Final = 500  # characters of a reason
_BOOLEANS: Final = frozenset({"true", "True", "TRUE", "false", "False", "FALSE", "1", "0"})
# Fields without quotes end at a delimiter or line; what follows a closing quote, up to there, belongs to the field.
_QUOTED: Final = re.compile(r'"((?:[^"]++|"")*+)"')
# As Arrow reads floating-point numbers: without regard to case, and any note in brackets.
_NOT_FINITE: Final = re.compile(r"[-+]?(?:nan(?:\([a-z0-9_]*\))?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
# Of a field that is not null: why its column refuses it; None if it does not.
_Check = Callable[[str], str | None]


class RefusedCsv:
    """Says which lines some columns refuse, and why."""

    def __init__(self, columns: Sequence[Column], delimiter: str, null: str) -> None:
        self._columns = [(f"column {column.name!r}, {column.type}", _check(column)) for column in columns]
        self._null = null
        self._unquoted = re.compile(f"[^{re.escape(delimiter)}\r\n]*")
        self._delimiter = delimiter

    def reason(self, value: bytes) -> str | None:
        """Return why a value is refused; None if it is not."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return not_utf8(value)
        lines, is_closed = self._lines(text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r"))
        if not is_closed:
            return "a quote is not closed"
        if len(lines) > 1:
            return f"expected one line, found {len(lines)}"
        (fields,) = lines
        if len(fields) != len(self._columns):
            found = "none" if fields == [("", False)] else len(fields)
            return f"expected a line of {len(self._columns)} fields, found {found}"
        for (label, check), (field, is_quoted) in zip(self._columns, fields, strict=True):
            if (is_quoted or field != self._null) and (reason := check(field)) is not None:
                return f"{label}: {reason[:_LONGEST]}"
        return None

    def _lines(self, text: str) -> tuple[list[list[tuple[str, bool]]], bool]:
        """Return the fields of each line, with whether each is in quotes, and whether the last quote is closed."""
        if _QUOTE not in text and "\n" not in text and "\r" not in text:
            return [[(field, False) for field in text.split(self._delimiter)]], True
        lines: list[list[tuple[str, bool]]] = [[]]
        at = 0
        while True:
            quoted = _QUOTED.match(text, at)
            if quoted is None and text.startswith(_QUOTE, at):
                return lines, False
            field = ""
            if quoted is not None:
                field, at = quoted[1].replace('""', _QUOTE), quoted.end()
            rest = self._unquoted.match(text, at)
            assert rest is not None
            at = rest.end()
            lines[-1].append((field + rest[0], quoted is not None))
            if at == len(text):
                return lines, True
            if text[at] != self._delimiter:
                at += text.startswith("\r\n", at)
                lines.append([])
            at += 1


def _check(column: Column) -> _Check:
    type_ = column.arrow_type
    if pa.types.is_integer(type_):
        return partial(_check_integer, type_)
    if pa.types.is_floating(type_):
        return partial(_check_float, type_.bit_width)
    if pa.types.is_boolean(type_):
        return lambda text: None if text in _BOOLEANS else _invalid(text)
    if pa.types.is_date(type_):
        return lambda text: _invalid(text) if is_no_day(_trimmed(text)) else None
    if pa.types.is_timestamp(type_):
        return partial(_check_timestamp, type_.tz is not None)
    if pa.types.is_decimal(type_):
        wide = without_wrapping(type_) != type_
        return lambda text: why_no_decimal(_trimmed(text), type_, is_wide=wide)
    return _check_numeric if column.type.startswith("numeric") else _check_text


def _trimmed(text: str) -> str:
    return text.strip(" \t")


def _invalid(text: str) -> str:
    return f"invalid value '{text}'"


def _check_integer(type_: pa.DataType, text: str) -> str | None:
    # Arrow reads a hexadecimal integer as two's complement: 0xffff as a smallint would be -1.
    if "0x" in text.lower():
        return "expected an integer in decimal digits, found a hexadecimal number"
    return _invalid(text) if is_no_integer(_trimmed(text), type_) else None


def _check_float(bits: int, text: str) -> str | None:
    number = _trimmed(text)
    if NUMBER.fullmatch(number):
        return OUT_OF_RANGE if is_infinite(number, bits) else None
    return OUT_OF_RANGE if _NOT_FINITE.fullmatch(number) else _invalid(text)


def _check_timestamp(needs_zone: bool, text: str) -> str | None:
    if is_no_moment(text):
        return too_fine(text) if is_too_fine(text) else _invalid(text)
    if has_zone(text) != needs_zone:
        return f"expected {'a' if needs_zone else 'no'} zone offset in '{text}'"
    return None


def _check_numeric(text: str) -> str | None:
    return None if NUMBER.fullmatch(_trimmed(text)) else "expected a number, found something else"


def _check_text(text: str) -> str | None:
    return NUL if "\0" in text else None
