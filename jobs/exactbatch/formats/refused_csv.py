"""Why lines of CSV are refused, for many at once: the same reasons as Csv gives for each alone (refused_json.py)."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from exactbatch.columns import Column
from exactbatch.formats.postgres_limits import is_too_fine, too_fine
from exactbatch.formats.refused_text import (
    NUMBER,
    Undecided,
    has_zone,
    is_no_day,
    is_no_integer,
    is_no_moment,
)
from exactbatch.formats.unreadable_text import not_utf8

if TYPE_CHECKING:
    import pyarrow as pa

HEXADECIMAL: Final = "expected an integer in decimal digits, found a hexadecimal number"
_LONGEST: Final = 500  # characters of a reason
_BOOLEANS: Final = frozenset({"true", "false", "1", "0"})
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"(?!")')
_FEW: Final = 30  # characters of a number that any type holds
# Of a field that is not null: true if its column refuses it when Arrow converts it. Raises Undecided.
_Check = Callable[[str], bool]


class RefusedCsv:
    """Finds the lines that some columns refuse. A line with a quote is left to Arrow."""

    def __init__(self, columns: Sequence[Column], delimiter: str, null: str) -> None:
        self._columns = [(f"column {column.name!r}, {column.type}", _check(column)) for column in columns]
        self._delimiter, self._null = delimiter, null

    def reasons(self, values: "pa.BinaryArray") -> Iterable[tuple[int, str]]:
        """Yield the index of each value that is surely refused, and the reason."""
        for index, value in enumerate(values.to_pylist()):
            try:
                reason = self._reason(value)
            except Undecided:
                continue
            if reason is not None:
                yield index, reason

    def _reason(self, value: bytes) -> str | None:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return not_utf8(value)
        text = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
        if not text or any(each in text for each in "\r\n\0"):
            raise Undecided
        fields, is_closed = self._split(text)
        if not is_closed and len(fields) == len(self._columns) + 1:
            raise Undecided  # the last field takes the place of the one that Csv adds
        if len(fields) != len(self._columns):
            return f"expected a line of {len(self._columns)} fields, found {len(fields)}"
        if not is_closed:
            if any(check(field) for (_, check), (field, _) in zip(self._columns, fields, strict=True)):
                raise Undecided
            return "a quote is not closed"
        if "0x" in text.lower():  # what Arrow would misread is looked for first
            if any(check in (_is_no_decimal, _is_later) for _, check in self._columns):
                raise Undecided
            for (label, check), (field, _) in zip(self._columns, fields, strict=True):
                if isinstance(check, partial) and check.func is _is_no_integer and "0x" in field.lower():
                    return f"{label}: {HEXADECIMAL}"
        for (label, check), (field, is_quoted) in zip(self._columns, fields, strict=True):
            if (is_quoted or field != self._null) and check(field):
                reason = f"invalid value '{field}'"
                if check is _is_no_decimal:
                    reason = f"The string '{field}' is not a valid decimal128 number"
                elif is_too_fine(field):
                    reason = too_fine(field)
                return f"{label}: {reason[:_LONGEST]}"
        return None

    def _split(self, line: str) -> tuple[list[tuple[str, bool]], bool]:
        """Return the fields of a line, with whether each is in quotes, and whether the last quote is closed. Raises
        Undecided for quotes that RFC 4180 does not allow."""
        if '"' not in line:
            return [(field, False) for field in line.split(self._delimiter)], True
        fields, start = [], 0
        while True:
            if line[start : start + 1] != '"':
                field = line[start:].partition(self._delimiter)[0]
                if '"' in field:
                    raise Undecided
                fields.append((field, False))
                start += len(field)
            elif match := _QUOTED.match(line, start):
                fields.append((match[1].replace('""', '"'), True))
                start = match.end()
            elif '"' not in line[start + 1 :]:
                return [*fields, (line[start + 1 :], True)], False
            else:
                raise Undecided
            if start == len(line):
                return fields, True
            if line[start] != self._delimiter:
                raise Undecided
            start += 1


def _check(column: Column) -> _Check:
    import pyarrow as pa

    type_ = column.arrow_type
    if pa.types.is_integer(type_):
        return partial(_is_no_integer, type_)
    if pa.types.is_floating(type_):
        return _is_no_float
    if pa.types.is_boolean(type_):
        return _is_no_boolean
    if pa.types.is_date(type_):
        return lambda text: is_no_day(_unpadded(text))
    if pa.types.is_timestamp(type_):
        return partial(_is_no_timestamp, type_.tz is not None)
    if pa.types.is_decimal(type_):
        return _is_no_decimal if type_.precision + type_.scale <= 38 else _is_later
    return _is_later if column.type.startswith("numeric") else lambda _text: False


def _unpadded(text: str) -> str:
    if not text or text[0] in " \t" or text[-1] in " \t":
        raise Undecided
    return text


def _is_no_integer(type_: "pa.DataType", text: str) -> bool:
    return is_no_integer(_unpadded(text), type_)


def _is_no_float(text: str) -> bool:
    if NUMBER.fullmatch(_unpadded(text)):
        if len(text) > _FEW or "e" in text or "E" in text:
            raise Undecided
        return False
    if text[:1].isdigit() and text[-1:].isalpha():
        return True
    raise Undecided  # NaN and infinity have many spellings


def _is_no_boolean(text: str) -> bool:
    if _unpadded(text).lower() in _BOOLEANS:
        if text not in _BOOLEANS:
            raise Undecided
        return False
    return True


def _is_no_timestamp(needs_zone: bool, text: str) -> bool:
    if is_no_moment(_unpadded(text)):
        return True
    if has_zone(text) != needs_zone:
        raise Undecided
    return False


def _is_no_decimal(text: str) -> bool:
    if NUMBER.fullmatch(_unpadded(text)):
        if len(text) > _FEW // 4 or not text.isdigit():
            raise Undecided
        return False
    return True


def _is_later(text: str) -> bool:
    """A number of more digits than Arrow's is checked after all columns."""
    if NUMBER.fullmatch(text) and len(text) < _FEW // 4 and "e" not in text.lower():
        return False
    raise Undecided
