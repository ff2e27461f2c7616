"""Replace text that Postgres cannot hold in values: U+0000, halves of surrogate pairs, bytes that are no UTF-8."""

import re
from collections.abc import Callable
from typing import Final

from exactbatch.formats.csv.spec import Csv
from exactbatch.formats.debezium.spec import Debezium
from exactbatch.formats.format import Format
from exactbatch.formats.json.spec import Json, JsonSchema
from exactbatch.formats.message.spec import WithKeyAndHeaders
from exactbatch.formats.registry.wire_format import has_prefix, prefix_size
from exactbatch.formats.single.spec import Text

# An escape of a whole pair, of U+0000 or half a pair, and any other one, so that \\u0000 is a backslash and text.
_ESCAPE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<bad>\\u0000|\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_NO_UTF8: Final = re.compile("[\udc80-\udcff]")  # as "surrogateescape" reads such bytes
_NO_TEXT: Final = re.compile("[\0\udc80-\udcff]")
Clean = Callable[[bytes], bytes]


def why_not_replaced(text: str | None, value: Format, key: Format | None) -> str | None:
    """Return why a text cannot be the replacement in these formats; None if it can, or if there is none."""
    if text is None:
        return None
    parts = (*_parts(value), key)
    delimiters = {part.delimiter for part in parts if isinstance(part, Csv)}
    if not all(each.isprintable() and each not in {'"', "\\", *delimiters} for each in text):
        return (
            f"replace_unstorable: expected printable text without quotes, backslashes and delimiters, such as "
            f"{chr(0xFFFD)!r}, found {text!r}"
        )
    if all(find_cleaner(part, "") is None for part in parts):
        return (
            "replace_unstorable concerns Json, JsonSchema, Debezium, Csv and Text, whose bytes are text that is "
            "neither compressed nor encoded: no part of a record is of these formats. Remove it."
        )
    return None


def find_cleaner(format_: Format | None, replacement: str) -> Clean | None:
    """Return what replaces text in the bytes of a format; None for one that is not text, or is compressed."""
    match format_:
        case JsonSchema():
            return lambda value: _clean_after_prefix(value, replacement)
        case Json() if not format_.encodings:
            return lambda value: _clean_json(value, replacement)
        case Debezium(registry=None):
            return lambda value: _clean_json(value, replacement)
        case Text() | Csv():
            return lambda value: _NO_TEXT.sub(replacement, value.decode(errors="surrogateescape")).encode()
        case _:
            return None


def _clean_after_prefix(value: bytes, replacement: str) -> bytes:
    """A value without a prefix has its schema's ID in a header."""
    size = prefix_size(value) if has_prefix(value) else 0
    return value[:size] + _clean_json(value[size:], replacement)


def _clean_json(value: bytes, replacement: str) -> bytes:
    text = _NO_UTF8.sub(replacement, value.decode(errors="surrogateescape"))
    return _ESCAPE.sub(lambda found: replacement if found["bad"] else found[0], text).encode()


def _parts(value: Format) -> tuple[Format | None, ...]:
    return (
        (value.value, value.key, *value.headers.values())
        if isinstance(value, WithKeyAndHeaders)
        else (value,)
    )
