"""Bound how deep values of Avro schemas nest, and how many parts they have that take no bytes.

fastavro's reader, in C, overflows its stack for deep values. Only schemas with a record that contains itself, directly
or not, allow any depth. Each such record gets a first field without bytes, whose reader counts the levels before the
record is read; a reader of the record removes the field.

The bytes of a body bound how many parts it has, but not those that are encoded in no bytes: an array has as many nulls
as it says, and a record of two records, each of two records and so on, needs no byte at all. The readers of such parts
count them.
"""

import io
import sys
import threading
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

import fastavro
import fastavro.read

from exactbatch.formats.bounds import TooLarge, check_names
from exactbatch.formats.json.raw_fields import TOO_DEEP

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
