"""Kafka Connect's schemas: the type, name and parameters of each field, from JSON and from Avro.

Debezium says by the name what a value means, such as io.debezium.time.MicroTimestamp. Connect's JSON converter writes a
schema next to each payload; Confluent's Avro converter keeps the name as `connect.name` and the parameters as
`connect.parameters`, and writes Connect's own decimals, dates and times as Avro's logical types.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

_CONNECT: Final = "org.apache.kafka.connect.data."
TIME: Final = "io.debezium.time."
DECIMAL: Final = f"{_CONNECT}Decimal"
# Avro's logical types, as Confluent's converter writes them for Connect's, each with its type. On any other type, Avro
# ignores it (https://avro.apache.org/docs/1.12.0/specification/#logical-types).
_LOGICAL: Final = {
    ("decimal", "bytes"): DECIMAL,
    ("decimal", "fixed"): DECIMAL,
    ("date", "int"): f"{_CONNECT}Date",
    ("time-millis", "int"): f"{_CONNECT}Time",
    ("timestamp-millis", "long"): f"{_CONNECT}Timestamp",
    ("time-micros", "long"): "io.debezium.time.MicroTime",
    ("timestamp-micros", "long"): "io.debezium.time.MicroTimestamp",
}
_AVRO_TYPES: Final = {
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "fixed": "bytes",
    "record": "struct",
    "enum": "string",
}
_MOST_SCHEMAS: Final = 256  # parsed schemas that a process keeps


@dataclass(frozen=True, slots=True)
class ConnectType:
    """The type of a field: Connect's name of the type (int32, bytes, struct, …), and what the value means.

    `name` is the name of the schema and `parameters` are its own, as text. An array has an `element`, a struct
    `fields`.
    """

    type: str
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    element: "ConnectType | None" = None
    fields: "Mapping[str, ConnectType]" = field(default_factory=dict, hash=False)

    def field(self, name: str) -> "ConnectType | None":
        """Return a field of a struct; None if it has no such field."""
        return self.fields.get(name)


@lru_cache(maxsize=_MOST_SCHEMAS)
def from_json(schema: bytes) -> ConnectType:
    """Parse the schema that Connect's JSON converter writes; raise ValueError for anything else."""
    try:
        return _from_json(json.loads(schema))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"expected a schema of Kafka Connect, found another: {type(error).__name__}: {error}"
        ) from None


def _from_json(schema: Any) -> ConnectType:
    parameters = schema.get("parameters") or {}
    return ConnectType(
        str(schema["type"]),
        str(schema.get("name") or ""),
        {str(name): str(value) for name, value in parameters.items()},
        _from_json(schema["items"]) if schema["type"] == "array" else None,
        {str(each["field"]): _from_json(each) for each in schema.get("fields") or ()},
    )


def from_avro(schema: Any, named: Mapping[str, Any]) -> ConnectType:
    """Return the type of a parsed Avro schema; `named` has the types that it may refer to by name.

    A union of null and one type is that type; any other union is a "union". A type that is named several times is one
    object: a small schema may name types within types so that copies of them would be any number.
    """
    return _from_avro(schema, named, {})


def _from_avro(schema: Any, named: Mapping[str, Any], known: dict[str, ConnectType]) -> ConnectType:
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        return _from_avro(others[0], named, known) if len(others) == 1 else ConnectType("union")
    if isinstance(schema, str):
        if schema in named and schema not in known:
            known[schema] = _from_avro(named[schema], named, known)
        return known[schema] if schema in known else ConnectType(_AVRO_TYPES.get(schema, schema))
    kind, logical = schema["type"], schema.get("logicalType")
    if not isinstance(kind, str):
        return _from_avro(kind, named, known)
    parameters = {str(name): str(value) for name, value in (schema.get("connect.parameters") or {}).items()}
    if logical == "decimal":
        parameters.setdefault("scale", str(schema.get("scale", 0)))
    # Connect's types of 8 and 16 bits are ints with another `connect.type`.
    return ConnectType(
        str(schema.get("connect.type") or _AVRO_TYPES.get(kind, kind)),
        str(schema.get("connect.name") or _LOGICAL.get((str(logical), kind), "")),
        parameters,
        _from_avro(schema["items"], named, known) if kind == "array" else None,
        {each["name"]: _from_avro(each["type"], named, known) for each in schema.get("fields") or ()},
    )
