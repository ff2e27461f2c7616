"""Bound how deep values of recursive Avro schemas nest: fastavro's reader, in C, overflows its stack for deep ones.

Only schemas with a record that contains itself, directly or not, allow any depth. Each such record gets a first field
without bytes, whose reader counts the levels before the record is read; a reader of the record removes the field.
"""

import io
import threading
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from exactbatch.formats.raw_json_fields import TOO_DEEP

_MOST: Final = (
    900  # records, arrays and maps inside of each other; fastavro overflows 8 MB of stack from 4,500 on
)
_FIELD: Final = "exactbatch_levels"
_ENTER: Final = "exactbatch-enter"
_LEAVE: Final = "exactbatch-leave"
_INNER: Final = ("items", "values", "type")


class TooDeep(ValueError):
    """A value that nests deeper than a reader can follow. The message is the reason of the reject."""


class _Levels(threading.local):
    count = 0


_levels: Final = _Levels()


def read(stream: io.BytesIO, schema: Any) -> Any:
    """Read a value of a schema that bounded() returned. Raises TooDeep, and what fastavro raises."""
    import fastavro

    _levels.count = 0
    return fastavro.schemaless_reader(stream, schema, None)


def bounded(schema: Any) -> Any:
    """Return a parsed schema, with full names, by which read() raises TooDeep instead of crashing the process."""
    import fastavro.read

    readers: Any = fastavro.read.LOGICAL_READERS
    readers[f"null-{_ENTER}"], readers[f"record-{_LEAVE}"] = _enter, _leave
    readers[f"error-{_LEAVE}"] = _leave
    inside: dict[str, Set[str]] = {}
    _collect(schema, inside)
    recursive = {name for name in inside if name in _reached_from(name, inside)}
    return _marked(schema, recursive) if recursive else schema


def _enter(_nothing: None, mark: Mapping[str, Any], _reader_schema: Any = None) -> None:
    _levels.count += mark["levels"]
    if _levels.count >= _MOST:
        raise TooDeep(TOO_DEEP)


def _leave(record: dict[str, Any], schema: Mapping[str, Any], _reader_schema: Any = None) -> dict[str, Any]:
    _levels.count -= schema["fields"][0]["type"]["levels"]
    del record[_FIELD]
    return record


def _parts(schema: Any) -> Iterator[Any]:
    """Yield the schemas directly inside of a schema."""
    match schema:
        case list():
            yield from schema
        case dict():
            yield from (field["type"] for field in schema.get("fields", ()))
            yield from (schema[key] for key in _INNER if key in schema)


def _names(schema: Any) -> Iterator[str]:
    """Yield the names of the types that a schema mentions or defines inside."""
    for part in _parts(schema):
        if isinstance(part, str):
            yield part
            continue
        if isinstance(part, dict) and "fields" in part:
            yield part["name"]
        yield from _names(part)


def _collect(schema: Any, inside: dict[str, Set[str]]) -> None:
    """Collect the names inside of each record."""
    if isinstance(schema, dict) and "fields" in schema:
        inside[schema["name"]] = set(_names(schema))
    for part in _parts(schema):
        _collect(part, inside)


def _reached_from(name: str, inside: Mapping[str, Set[str]]) -> Set[str]:
    """Return the names inside of a record, and inside of those."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        new = inside.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _levels_to(schema: Any, recursive: Set[str]) -> int:
    """Return how many arrays, maps and other records are around a record of `recursive`, at most; -1 without one."""
    match schema:
        case str():
            return 0 if schema in recursive else -1
        case {"name": name} if name in recursive:
            return 0
    most = max((_levels_to(part, recursive) for part in _parts(schema)), default=-1)
    return most if most < 0 or isinstance(schema, list) else most + 1


def _marked(schema: Any, recursive: Set[str]) -> Any:
    """Return a schema whose records of `recursive` begin with the field that counts levels."""
    match schema:
        case list():
            return [_marked(branch, recursive) for branch in schema]
        case dict():
            changed = {key: _marked(schema[key], recursive) for key in _INNER if key in schema}
            if "fields" in schema:
                changed["fields"] = [
                    {**field, "type": _marked(field["type"], recursive)} for field in schema["fields"]
                ]
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
