"""Text that Postgres cannot hold (U+0000, halves of surrogate pairs, bytes that are no UTF-8), with a replacement.

Only records that would be rejects are looked at, and decoded once more. A pipeline asks for it: replace_unstorable.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from exactbatch.formats import record_headers
from exactbatch.formats.bounds import joined
from exactbatch.formats.csv import Csv
from exactbatch.formats.debezium import Debezium
from exactbatch.formats.format import Decoded, Format
from exactbatch.formats.json import Json
from exactbatch.formats.json_schema import JsonSchema
from exactbatch.formats.message import WithMessage
from exactbatch.formats.record_headers import Header, Unreadable
from exactbatch.formats.text import Text
from exactbatch.formats.wire_format import has_prefix, prefix_size

if TYPE_CHECKING:
    import pyarrow as pa

# An escape of a whole pair, of U+0000 or half a pair, and any other one, so that \\u0000 is a backslash and text.
_ESCAPE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<bad>\\u0000|\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_NO_UTF8: Final = re.compile("[\udc80-\udcff]")  # as "surrogateescape" reads such bytes
_NO_TEXT: Final = re.compile("[\0\udc80-\udcff]")
Clean = Callable[[bytes], bytes]


class Messages(record_headers.Messages, Protocol):
    """Values, keys and headers of n records."""

    def values(self) -> "pa.BinaryArray": ...


def why_not_replaced(text: str | None, value: Format | WithMessage, key: Format | None) -> str | None:
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
    if all(_cleaner(part, "") is None for part in parts):
        return (
            "replace_unstorable concerns Json, JsonSchema, Debezium, Csv and Text, whose bytes are text that is "
            "neither compressed nor encoded: no part of a record is of these formats. Remove it."
        )
    return None


def decode_replacing(
    decode: Callable[[Messages], Decoded],
    records: Messages,
    value: Format | WithMessage,
    key: Format | None,
    replacement: str | None,
) -> Decoded:
    """Decode records by `decode`, those that it rejects once more with replaced text.

    `key` is the format of message keys, for tombstones. Without a replacement, nothing is decoded again.
    """
    decoded = decode(records)
    if replacement is None or not decoded.rejects:
        return decoded
    cleaned = _cleaned(records, [at for at, _ in decoded.rejects], value, key, replacement)
    if not len(cleaned.at):
        return decoded
    again = decode(cleaned)
    return _merged(decoded, again, cleaned.at)


@dataclass(frozen=True)
class _Cleaned:
    """Records of a block with replaced text, and the position of each in the block."""

    at: list[int]
    _records: Messages
    _values: "pa.BinaryArray"
    _keys: "pa.BinaryArray"
    _headers: list[Any]

    def values(self) -> "pa.BinaryArray":
        return self._values

    def keys(self) -> "pa.BinaryArray":
        return self._keys

    def headers(self) -> list[Any]:
        return self._headers

    def last_headers(self, name: str) -> Mapping[int, Header]:
        found = self._records.last_headers(name)
        return {index: found[at] for index, at in enumerate(self.at) if at in found}


def _cleaned(
    records: Messages, at: Sequence[int], value: Format | WithMessage, key: Format | None, replacement: str
) -> _Cleaned:
    """Return those of some records in which text is replaced."""
    import pyarrow as pa

    headers_of: Mapping[str, Format] = {}
    reads_headers = isinstance(value, WithMessage) and bool(value.header or value.headers is not None)
    format_: Format | WithMessage = value
    if isinstance(value, WithMessage):
        format_, key, headers_of = value.value, value.key or key, value.header
    assert not isinstance(format_, WithMessage)
    of_value, of_key = _cleaner(format_, replacement), _cleaner(key, replacement)
    of_headers = {name: _cleaner(format_, replacement) for name, format_ in headers_of.items()}
    values, keys = records.values(), records.keys()
    headers: Sequence[Any] = records.headers() if reads_headers else [None] * len(values)
    found = []
    for index in at:
        before = values[index].as_py(), keys[index].as_py(), headers[index]
        after = (
            _apply(of_value, before[0]),
            _apply(of_key, before[1]),
            _clean_headers(before[2], of_headers),
        )
        if after != before:
            found.append((index, *after))
    positions, *columns = ([list(each) for each in zip(*found, strict=True)]) if found else ([], [], [], [])
    return _Cleaned(
        positions, records, pa.array(columns[0], pa.binary()), pa.array(columns[1], pa.binary()), columns[2]
    )


def _apply(clean: Clean | None, value: bytes | None) -> bytes | None:
    return value if clean is None or value is None else clean(value)


def _clean_headers(headers: Any, cleaners: Mapping[str, Clean | None]) -> Any:
    if not headers or isinstance(headers, Unreadable):
        return headers
    return [(name, _apply(cleaners.get(name), value)) for name, value in headers]


def _merged(decoded: Decoded, again: Decoded, at: Sequence[int]) -> Decoded:
    """Return what was decoded, with what some records, at their positions, were decoded to again."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = pa.concat_arrays([decoded.kept, pa.array(at, pa.int64()).take(again.kept)])
    order = pc.sort_indices(kept)
    reasons = {index: reason for index, reason in decoded.rejects if index not in set(at)}
    reasons |= {at[index]: reason for index, reason in again.rejects}

    def of_both(name: str) -> Any:
        parts = [getattr(each, name) for each in (decoded, again)]
        given = next((part for part in parts if part is not None), None)
        if given is None:
            return None
        empty = pa.scalar(False) if pa.types.is_boolean(given.type) else pa.scalar(None, given.type)
        whole = [
            pa.repeat(empty, len(each.rows)) if part is None else part
            for each, part in zip((decoded, again), parts, strict=True)
        ]
        return pa.concat_arrays(whole).take(order)

    return replace(
        decoded,
        rows=joined([decoded.rows, again.rows]).take(order),
        kept=kept.take(order),
        rejects=tuple(sorted(reasons.items())),
        tombstones=decoded.tombstones + again.tombstones,
        deleted=of_both("deleted"),
        unchanged=of_both("unchanged"),
        truncated=of_both("truncated"),
        replaced=len(at) - len(again.rejects),
    )


def _clean_after_prefix(value: bytes, replacement: str) -> bytes:
    """A value without a prefix has its schema's ID in a header."""
    size = prefix_size(value) if has_prefix(value) else 0
    return value[:size] + _clean_json(value[size:], replacement)


def _parts(value: Format | WithMessage) -> tuple[Format | None, ...]:
    return (value.value, value.key, *value.header.values()) if isinstance(value, WithMessage) else (value,)


def _cleaner(format_: Format | None, replacement: str) -> Clean | None:
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


def _clean_json(value: bytes, replacement: str) -> bytes:
    text = _NO_UTF8.sub(replacement, value.decode(errors="surrogateescape"))
    return _ESCAPE.sub(lambda found: replacement if found["bad"] else found[0], text).encode()
