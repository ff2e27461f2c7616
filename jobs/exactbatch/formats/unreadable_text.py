"""Bytes as text, and what to say of bytes that are none: these are the slow path, one value at a time."""

import codecs
import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.member_paths import Path, Step

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Bytes that are no UTF-8, in Python's text of them ("surrogateescape").
_ESCAPED: Final = re.compile("[\udc80-\udcff]")


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
