"""Avro bodies, one for each record, and the header of Confluent's wire format before them."""

import io
import secrets
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.avro.bounded_bodies import TooDeep, bounded, read
from exactbatch.formats.avro.logical_types import register
from exactbatch.formats.bounds import TooLarge, check_together
from exactbatch.formats.registry.prefixes import cut_prefixes, most_frequent_first
from exactbatch.formats.registry.schemas import Inquiry, writer_schema
from exactbatch.formats.registry.wire_format import SchemaId, read_schema_id, unknown

_TOKEN: Final = 16  # bytes
_NO_TOKEN: Final = bytes(_TOKEN)
ENDS_ELSEWHERE: Final = "the body does not end with the last field of its schema"


def by_header(
    values: pa.BinaryArray, at: pa.Int64Array
) -> Iterator[tuple[bytes, pa.BinaryArray, pa.Int64Array]]:
    """Yield each header, the most frequent first, the values that begin with it, and their positions, which `at` has
    for all values."""
    headers = cut_prefixes(values)
    for header in most_frequent_first(headers):
        matches = pc.equal(headers, pa.scalar(header, pa.binary()))
        yield header, values.filter(matches), at.filter(matches)


def schema_after(
    header: bytes, registry: str, properties: Mapping[str, Any], inquiry: Inquiry
) -> tuple[SchemaId, str]:
    """Return the ID or GUID and the schema of the bodies after a header, which are of the block of the inquiry.

    Raises ValueError with the reason to reject them.
    """
    schema_id = read_schema_id(header)
    schema = writer_schema(registry, schema_id, properties, inquiry)
    if schema is None:
        raise ValueError(unknown(schema_id))
    return schema_id, schema


class Bodies:
    """Decodes bodies of one schema, each after a header of `header` bytes.

    A body does not contain its length. All bodies are decoded at once, as an Avro array of bodies, each followed by a
    random token: if every token is in its place, every body ended with its last field.
    """

    def __init__(self, value: Any, header: int, reason: Callable[[bytes], str]) -> None:
        """`value` is the schema of a body, and `reason` returns why a body cannot be decoded."""
        self._schema, self._reason = _build_array(bounded(value), header), reason

    def decode(self, bodies: pa.BinaryArray) -> list[Any]:
        """Return the value of each body, or raise ValueError; TooLarge if their schema gives them too many parts."""
        check_together(bodies)
        # A single body needs no random token; a fixed one gives the same reason each time.
        token = secrets.token_bytes(_TOKEN) if len(bodies) > 1 else _NO_TOKEN
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(bodies)], bodies), token)[0].as_buffer()
        return self._read(memoryview(joined), len(bodies), token)

    def decode_alone(self, body: bytes) -> Any:
        """Return the value of one body, or raise what decode() raises for it, much faster."""
        return self._read(body, 1, _NO_TOKEN)[0]

    def _read(self, joined: bytes | memoryview, count: int, token: bytes) -> list[Any]:
        block = b"".join((_long(count), joined, token, _long(0)))
        stream = io.BytesIO(block)
        try:
            decoded: Any = read(stream, self._schema)
        except EOFError:
            raise ValueError(ENDS_ELSEWHERE) from None
        except (MemoryError, TooDeep, TooLarge):
            raise
        except Exception:  # fastavro raises errors of many types for broken bytes
            raise ValueError(self._reason(bytes(joined)) if count == 1 else "") from None
        tokens = list(map(itemgetter("token"), decoded))
        if tokens != [token] * count or stream.tell() != len(block):
            raise ValueError(ENDS_ELSEWHERE)
        return list(map(itemgetter("value"), decoded))


def _build_array(value: Any, header: int) -> Any:
    """Return the schema of an array of bodies, each between a header of `header` bytes and a token."""
    framed = [
        *([{"name": "header", "type": _fixed("ExactbatchHeader", header)}] if header else []),
        {"name": "value", "type": value},
        {"name": "token", "type": _fixed("ExactbatchToken", _TOKEN)},
    ]
    register()
    return fastavro.parse_schema(
        {"type": "array", "items": {"type": "record", "name": "ExactbatchBody", "fields": framed}}
    )


def _fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def _long(number: int) -> bytes:
    """Encode a number of 0 or more as an Avro long: zigzag, 7 bits a byte, lowest first."""
    rest, written = number << 1, bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])
