"""Text that Postgres cannot hold (U+0000, halves of surrogate pairs, bytes that are no UTF-8), with a replacement.

Only records that would be rejects are looked at, and decoded once more. A pipeline asks for it: replace_unstorable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.bounds import join_batches
from exactbatch.formats.cleaned_text import Clean, find_cleaner
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.format import Format
from exactbatch.formats.message import record_headers
from exactbatch.formats.message.record_headers import Header, Unreadable
from exactbatch.formats.message.spec import WithKeyAndHeaders


class WholeMessages(record_headers.Messages, Protocol):
    """Values, keys and headers of n records."""

    def values(self) -> pa.BinaryArray: ...


def decode_replacing(
    decode: Callable[[WholeMessages], Decoded],
    records: WholeMessages,
    value: Format,
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
    _records: WholeMessages
    _values: pa.BinaryArray
    _keys: pa.BinaryArray
    _headers: list[Any]

    def values(self) -> pa.BinaryArray:
        return self._values

    def keys(self) -> pa.BinaryArray:
        return self._keys

    def headers(self) -> list[Any]:
        return self._headers

    def last_headers(self, name: str) -> Mapping[int, Header]:
        found = self._records.last_headers(name)
        return {index: found[at] for index, at in enumerate(self.at) if at in found}


def _cleaned(
    records: WholeMessages, at: Sequence[int], value: Format, key: Format | None, replacement: str
) -> _Cleaned:
    """Return those of some records in which text is replaced."""
    headers_of: Mapping[str, Format] = {}
    reads_headers = isinstance(value, WithKeyAndHeaders) and bool(
        value.headers or value.all_headers is not None
    )
    format_: Format = value
    if isinstance(value, WithKeyAndHeaders):
        format_, key, headers_of = value.value, value.key or key, value.headers
    of_value, of_key = find_cleaner(format_, replacement), find_cleaner(key, replacement)
    of_headers = {name: find_cleaner(format_, replacement) for name, format_ in headers_of.items()}
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
        rows=join_batches([decoded.rows, again.rows]).take(order),
        kept=kept.take(order),
        rejects=tuple(sorted(reasons.items())),
        tombstones=decoded.tombstones + again.tombstones,
        deleted=of_both("deleted"),
        unavailable=of_both("unavailable"),
        truncated=of_both("truncated"),
        replaced=len(at) - len(again.rejects),
    )
