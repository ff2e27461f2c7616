"""Group Debezium's JSON events by their schema, which Connect's JSON converter writes before each payload."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'
# An object whose first field is a schema or payload, in any spacing.
_WRAPPED: Final = r'^\s*\{\s*"(?:schema|payload)"\s*:'
# Values are searched for this number of schemas at once; values with further ones are parsed one by one.
_MOST_HEADS: Final = 32


class _Wrapped(msgspec.Struct, gc=False):
    schema: msgspec.Raw = msgspec.Raw(b"null")
    payload: msgspec.Raw = msgspec.Raw(b"null")


_DECODER: Final = msgspec.json.Decoder(_Wrapped)


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events with the same schema, as its JSON text; None for events without one, whose values are unchanged.

    `values` are the payloads, and `at` their positions.
    """

    schema: bytes | None
    values: pa.BinaryArray
    at: pa.Int64Array


def by_schema(values: pa.BinaryArray, at: pa.Int64Array) -> Iterator[EventGroup]:
    """Yield the groups of events. `at` has the position of each value; no value is null.

    All values of a group start with the same bytes, up to their payload: only these are compared, and the schema is
    parsed once.
    """
    for _ in range(_MOST_HEADS):
        if not len(values):
            return
        first = values[0].as_py()
        schema = _cut_schema(first)
        if schema is None:
            break
        head = _SCHEMA + schema + _PAYLOAD
        matches = pc.and_(pc.starts_with(values, head), pc.ends_with(values, "}"))
        if not matches[0].as_py():
            break
        found = values.filter(matches)
        yield EventGroup(schema, pc.binary_slice(found, len(head), -1), at.filter(matches))
        rest = pc.invert(matches)
        values, at = values.filter(rest), at.filter(rest)
    is_wrapped = pc.match_substring_regex(values, _WRAPPED)
    bare = pc.invert(is_wrapped)
    if pc.any(bare).as_py():
        yield EventGroup(None, values.filter(bare), at.filter(bare))
    wrapped: dict[bytes | None, tuple[list[bytes], list[int]]] = {}
    values, at = values.filter(is_wrapped), at.filter(is_wrapped)
    for value, index in zip(values.to_pylist(), at.to_pylist(), strict=True):
        schema, payload = _split(value)
        payloads, indexes = wrapped.setdefault(schema, ([], []))
        payloads.append(payload)
        indexes.append(index)
    for schema, (payloads, indexes) in wrapped.items():
        yield EventGroup(schema, pa.array(payloads, pa.binary()), pa.array(indexes, pa.int64()))


def _cut_schema(value: bytes) -> bytes | None:
    return _split(value)[0] if value.startswith(_SCHEMA) else None


def _split(value: bytes) -> tuple[bytes | None, bytes]:
    """Return the schema and the payload; no schema and the value itself if it is anything else."""
    try:
        wrapped = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, value
    schema = bytes(wrapped.schema)
    payload = bytes(wrapped.payload)
    return (schema, payload) if schema.startswith(b"{") and payload.startswith(b"{") else (None, value)
