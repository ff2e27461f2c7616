"""Avro bodies, one for each record, and the header of Confluent's wire format before them.

It is bounded how deep their values nest, and how many parts they have that take no bytes.

fastavro's reader, in C, overflows its stack for deep values. Only schemas with a record that contains itself, directly
or not, allow any depth. Each such record gets a first field without bytes, whose reader counts the levels before the
record is read; a reader of the record removes the field.

The bytes of a body bound how many parts it has, but not those that are encoded in no bytes: an array has as many nulls
as it says, and a record of two records, each of two records and so on, needs no byte at all. The readers of such parts
count them.
"""

import io
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from operator import itemgetter
from typing import Any, Final

import fastavro
import fastavro.read
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.avro.parsed_schema import register
from exactbatch.formats.bounds import TooLarge, check_names, check_together
from exactbatch.formats.json.raw_fields import TOO_DEEP
from exactbatch.formats.registry.schemas import Inquiry, cut_prefixes, fetch_schema, most_frequent_first
from exactbatch.formats.registry.wire_format import SchemaId, read_schema_id, unknown

_MOST: Final = (
    900  # records, arrays and maps inside of each other; fastavro overflows 8 MB of stack from 4,500 on
)
_FIELD: Final = "exactbatch_levels"
_ENTER: Final = "exactbatch-enter"
_LEAVE: Final = "exactbatch-leave"
_COUNT: Final = "exactbatch-count"
_INNER: Final = ("items", "values", "type")
# How many parts without bytes a value may have: a fixed number, and some for each of its bytes. Reading one takes
# about a microsecond and 100 bytes of memory.
_MOST_PARTS: Final = 10_000
_PARTS_PER_BYTE: Final = 2
# The bytes of an encoded value; the least for one of any length. The length of a text or array, and the number of a
# branch, take one.
_WIDTHS: Final[Mapping[str, int]] = {"null": 0, "float": 4, "double": 8}
_TOKEN: Final = 16  # bytes
_NO_TOKEN: Final = bytes(_TOKEN)
ENDS_ELSEWHERE: Final = "the body does not end with the last field of its schema"


class TooDeep(ValueError):
    """A value that nests deeper than a reader can follow. The message is the reason of the reject."""


class _Counts(threading.local):
    levels = 0
    parts = 0
    most_parts = 0


_counts: Final = _Counts()


def read(stream: io.BytesIO, schema: Any) -> Any:
    """Read a value of a schema that bounded() returned. Raises TooDeep, TooLarge, and what fastavro raises."""
    _counts.levels = _counts.parts = 0
    _counts.most_parts = _MOST_PARTS + _PARTS_PER_BYTE * stream.getbuffer().nbytes
    return fastavro.schemaless_reader(stream, schema, None)


def bounded(schema: Any) -> Any:
    """Return a parsed schema, with full names, by which read() raises TooDeep and TooLarge instead of crashing the
    process or filling its memory. Raises ValueError for names that a small value could repeat until they fill it."""
    readers: Any = fastavro.read.LOGICAL_READERS
    readers[f"null-{_ENTER}"] = _enter
    for kind in ("record", "error"):
        readers[f"{kind}-{_LEAVE}"], readers[f"{kind}-{_COUNT}"] = _leave, _count
    readers[f"null-{_COUNT}"] = readers[f"fixed-{_COUNT}"] = _count
    _check_names(schema)
    return _marked(schema, _recursive(schema), _Widths(schema))


def _check_names(schema: Any) -> None:
    for each in _within(schema):
        if isinstance(each, dict):
            check_names([*(field["name"] for field in each.get("fields", ())), *each.get("symbols", ())])


def _enter(_nothing: None, mark: Mapping[str, Any], _reader_schema: Any = None) -> None:
    _counts.levels += mark["levels"]
    if _counts.levels >= _MOST:
        raise TooDeep(TOO_DEEP)


def _leave(record: dict[str, Any], schema: Mapping[str, Any], _reader_schema: Any = None) -> dict[str, Any]:
    _counts.levels -= schema["fields"][0]["type"]["levels"]
    del record[_FIELD]
    _count(record, schema)
    return record


def _count(value: Any, schema: Mapping[str, Any], _reader_schema: Any = None) -> Any:
    _counts.parts += schema["parts"]
    if _counts.parts > _counts.most_parts:
        raise TooLarge(
            f"the record has more than {_counts.most_parts:,} parts that take no bytes, such as nulls in an array"
        )
    return value


class _Widths:
    """How many bytes values of a schema, and of the types that it names, take at least."""

    def __init__(self, schema: Any) -> None:
        self._named = {
            each["name"]: each for each in _within(schema) if isinstance(each, dict) and "name" in each
        }
        self._known: dict[str, int] = {}

    def of(self, schema: Any) -> int:
        """Return the bytes; for a record that contains itself without end, any number."""
        match schema:
            case list():
                return 1 + min(map(self.of, schema), default=0)
            case str() if schema in self._named:
                if schema not in self._known:
                    self._known[schema] = 0
                    self._known[schema] = self._of_type(self._named[schema])
                return self._known[schema]
            case {"name": name} if name in self._named:
                return self.of(name)
            case _:
                return self._of_type(schema)

    def _of_type(self, schema: Any) -> int:
        match schema:
            case {"fields": fields}:
                return sum(self.of(field["type"]) for field in fields)
            case {"type": "fixed", "size": size}:
                return int(size)
            case {"type": str(kind)} | str(kind):
                return _WIDTHS.get(kind, 1)
            case {"type": inner}:
                return self.of(inner)
        return 0

    def parts_without_bytes(self, record: Any) -> int:
        """Return how many parts a record has, itself and its fields, beyond two for each of its bytes."""
        return max(0, 1 + len(record["fields"]) - _PARTS_PER_BYTE * self.of(record))


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, dict) and _is_null(schema["type"]))


def _parts(schema: Any) -> Iterator[Any]:
    """Yield the schemas directly inside of a schema."""
    match schema:
        case list():
            yield from schema
        case dict():
            yield from (field["type"] for field in schema.get("fields", ()))
            yield from (schema[key] for key in _INNER if key in schema)


def _within(schema: Any) -> Iterator[Any]:
    """Yield a schema, and all schemas inside of it, the outer ones first."""
    yield schema
    for part in _parts(schema):
        yield from _within(part)


def _recursive(schema: Any) -> Set[str]:
    """Return the names of the records that contain themselves, directly or not.

    This is Tarjan's search for strongly connected components. One pass is enough: a schema defines a name before it
    mentions it.
    """
    # Records that may lead to one around them, in order; by their names, the least index of one that they lead to.
    least: dict[str, int] = {}
    found = set()

    def led_to(part: Any) -> int:
        if isinstance(part, str):
            return least.get(part, sys.maxsize)
        index, name = len(least), part["name"] if isinstance(part, dict) and "fields" in part else None
        if name is not None:
            least[name] = index
        reached = min(map(led_to, _parts(part)), default=sys.maxsize)
        if name is None:
            return reached
        if reached <= index:
            found.add(name)
        if reached < index:
            least[name] = reached
            return reached
        while len(least) > index:
            least.popitem()
        return sys.maxsize

    led_to(schema)
    return found


def _levels_to(schema: Any, recursive: Set[str]) -> int:
    """Return how many arrays, maps and other records are around a record of `recursive`, at most; -1 without one."""
    match schema:
        case str():
            return 0 if schema in recursive else -1
        case {"name": name} if name in recursive:
            return 0
    most = max((_levels_to(part, recursive) for part in _parts(schema)), default=-1)
    return most if most < 0 or isinstance(schema, list) else most + 1


def _marked(schema: Any, recursive: Set[str], widths: _Widths) -> Any:
    """Return a schema whose records of `recursive` begin with the field that counts levels, and whose parts without
    bytes are counted."""
    match schema:
        case list():
            return [_marked(branch, recursive, widths) for branch in schema]
        case dict():
            changed = {key: _marked(schema[key], recursive, widths) for key in _INNER if key in schema}
            if schema["type"] == "fixed" and schema["size"] == 0:
                changed |= {"logicalType": _COUNT, "parts": 1}
            if "items" in schema and _is_null(schema["items"]):
                changed["items"] = {"type": "null", "logicalType": _COUNT, "parts": 1}
            if "fields" in schema:
                changed["fields"] = [
                    {**field, "type": _marked(field["type"], recursive, widths)} for field in schema["fields"]
                ]
                changed["parts"] = widths.parts_without_bytes(schema)
                if changed["parts"]:
                    changed["logicalType"] = _COUNT
            if schema.get("name") in recursive:
                inner = max(_levels_to(part, recursive) for part in _parts(schema))
                mark = {"type": "null", "logicalType": _ENTER, "levels": 1 + max(inner, 0)}
                changed["fields"].insert(0, {"name": _FIELD, "type": mark})
                changed["logicalType"] = _LEAVE
            own = {
                key: value for key, value in schema.items() if not key.startswith("__")
            }  # no notes of fastavro
            return {**own, **changed}
        case _:
            return schema


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
    schema = fetch_schema(registry, schema_id, properties, inquiry)
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
