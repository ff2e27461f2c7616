"""Read Debezium's events from Avro bodies after the header of Confluent's wire format."""

import base64
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import fastavro
import pyarrow as pa

from exactbatch.formats.avro.bodies import ENDS_ELSEWHERE, Bodies
from exactbatch.formats.avro.parsed_schema import write_json
from exactbatch.formats.connect.readings import Reading
from exactbatch.formats.connect.types_of_schema import ConnectType, from_avro
from exactbatch.formats.debezium.images import Images
from exactbatch.formats.decimals import parse_decimals

_MOST_SCHEMAS: Final = 256  # that a process keeps
_SHOWN: Final = 200  # characters of a schema


class AvroEvents:
    """Events of one Avro schema, each after a header of `header` bytes. `payload` is their type."""

    def __init__(self, schema: str, header: int) -> None:
        """Raise ValueError for an invalid schema."""
        try:
            named: dict[str, Any] = {}
            parsed: Any = fastavro.parse_schema(json.loads(schema), named)
            self.payload: ConnectType = from_avro(parsed, named)
            self._bodies = Bodies(_bare(parsed), header, lambda _body: ENDS_ELSEWHERE)
        except Exception as error:  # fastavro's errors about a schema have no common base
            raise ValueError(
                f"invalid Avro schema {schema[:_SHOWN]!r}: {type(error).__name__}: {error}"
            ) from None

    def decode(self, values: pa.BinaryArray) -> list[dict[str, Any]]:
        """Return the events, with bytes as base64 text, as in JSON; raise ValueError for a body that is none."""
        return _records(self._bodies.decode(values))

    def decode_alone(self, value: bytes) -> dict[str, Any]:
        """Return one event, or raise what decode() raises for it."""
        return _records([self._bodies.decode_alone(value)])[0]


def _records(events: list[Any]) -> list[dict[str, Any]]:
    if not all(isinstance(event, dict) for event in events):
        raise ValueError("expected a record, found another value")
    return events


@lru_cache(maxsize=_MOST_SCHEMAS)
def build_events(schema: str, header: int) -> AvroEvents:
    """Return what decodes events of a schema, each after `header` bytes; raise ValueError for an invalid one."""
    return AvroEvents(schema, header)


def _bare(schema: Any) -> Any:
    """Return a parsed schema without logical types: numbers and bytes stay what they are, exactly."""
    match schema:
        case list():
            return [_bare(branch) for branch in schema]
        case dict():
            kept = {
                key: value
                for key, value in schema.items()
                if key in ("type", "name", "size", "symbols") or key in _INNER
            }
            return {key: _bare_part(key, value) for key, value in kept.items()}
        case _:
            return schema


_INNER: Final = ("items", "values", "fields", "type")


def _bare_part(key: str, value: Any) -> Any:
    if key == "fields":
        return [{"name": field["name"], "type": _bare(field["type"])} for field in value]
    return _bare(value) if key in _INNER else value


def avro_images(
    events: Sequence[Mapping[str, Any]], readings: Mapping[str, Reading], source: Mapping[str, pa.DataType]
) -> Images:
    """Return what events say, in the arrays that JSON would give. Raises ValueError for a field of another type."""
    images = {name: [_part(event, name) for event in events] for name in ("before", "after", "source")}

    def has(image: str) -> pa.BooleanArray:
        return pa.array([row is not None for row in images[image]], pa.bool_())

    def column(name: str, deleted: pa.BooleanArray) -> pa.Array:
        rows = [images["before" if each else "after"][at] for at, each in enumerate(deleted.to_pylist())]
        return read_as(readings[name], [None if row is None else row.get(name) for row in rows])

    def of_source(name: str) -> pa.Array:
        values = [None if row is None else row.get(name) for row in images["source"]]
        return build_array(values, source[name])

    op = build_array([event.get("op") for event in events], pa.string())
    return Images(op, has, column, of_source)


def read_as(reading: Reading, values: list[Any]) -> pa.Array:
    """Return values of Avro in the Arrow type of a reading; raise ValueError for values of another type."""
    if reading.read is None:
        return write_json(values, "json")
    if not pa.types.is_primitive(reading.read):
        values = [value if type(value) is str else _as_in_json(value) for value in values]
    return build_array(values, reading.read)


def _part(event: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    part = event.get(name)
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"{name}: expected a record, found {type(part).__name__}")
    return part


def _as_in_json(value: Any) -> Any:
    """Return a value with all bytes in base64."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_as_in_json(element) for element in value]
        case dict():
            return {key: _as_in_json(member) for key, member in value.items()}
        case _:
            return value


def build_array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return values in an Arrow type, exactly; raise ValueError for values of another type."""
    try:
        if pa.types.is_decimal(type_):
            return parse_decimals(
                pa.chunked_array([pa.array(_numbers(values), pa.string())]), type_
            ).combine_chunks()
        element = type_.value_type if pa.types.is_list(type_) else type_
        if pa.types.is_integer(element) and _has_float(values):  # pyarrow would truncate it
            raise ValueError("expected an integer, found a floating-point number")
        return pa.array(values, type_)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _has_float(values: list[Any]) -> bool:
    return any(
        isinstance(value, float) or (isinstance(value, list) and _has_float(value)) for value in values
    )


def _numbers(values: list[Any]) -> list[str | None]:
    if any(isinstance(value, bool) for value in values):
        raise ValueError("expected a number, found a boolean")
    return [None if value is None else str(value) for value in values]
