"""Kafka Connect's schemas and values as Confluent's Avro converter writes them (AvroData.fromConnectSchema)."""

import base64
import io
from typing import Any

import fastavro

_TYPES = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "boolean": "boolean",
    "bytes": "bytes",
}
_LOGICAL = {"Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis", "Decimal": "decimal"}
_CONNECT = "org.apache.kafka.connect.data."


def avro_schema(schema: dict[str, Any], known: set[str] | None = None) -> Any:
    """Return the Avro schema; a struct that occurs again is its name."""
    known = set() if known is None else known
    written = _schema(schema, known)
    return ["null", written] if schema.get("optional") else written


def _schema(schema: dict[str, Any], known: set[str]) -> Any:
    kind, name = schema["type"], str(schema.get("name") or "")
    notes: dict[str, Any] = {}
    if name:
        notes["connect.name"] = name
    if schema.get("parameters"):
        notes["connect.parameters"] = schema["parameters"]
    if kind == "struct":
        if name in known:
            return name
        known.add(name)
        fields = [
            {"name": each["field"], "type": avro_schema(each, known), "default": None}
            if each.get("optional")
            else {"name": each["field"], "type": avro_schema(each, known)}
            for each in schema["fields"]
        ]
        return {"type": "record", "name": name, "fields": fields, **notes}
    if kind == "array":
        return {"type": "array", "items": avro_schema(schema["items"], known), **notes}
    if kind == "map":
        return {"type": "map", "values": avro_schema(schema["values"], known), **notes}
    if kind in ("int8", "int16"):
        notes["connect.type"] = kind
    if name and name.startswith(_CONNECT):
        notes["logicalType"] = _LOGICAL[name.removeprefix(_CONNECT)]
        if notes["logicalType"] == "decimal":
            scale = int(schema["parameters"]["scale"])
            if scale >= 0:
                notes |= {"precision": 64, "scale": scale}
            else:
                notes.pop("logicalType")
    return {"type": _TYPES[kind], **notes} if notes else _TYPES[kind]


def avro_value(schema: dict[str, Any], value: Any) -> Any:
    """Return a value of JSON as fastavro writes it, with bytes for base64."""
    if value is None:
        return None
    match schema["type"]:
        case "float" | "double":
            return float(value)  # also of "NaN", as JSON has it
        case "bytes":
            return base64.b64decode(value)
        case "struct":
            return {each["field"]: avro_value(each, value.get(each["field"])) for each in schema["fields"]}
        case "array":
            return [avro_value(schema["items"], element) for element in value]
        case "map":
            return {key: avro_value(schema["values"], member) for key, member in value.items()}
        case _:
            return value


def avro_body(schema: dict[str, Any], value: Any) -> bytes:
    """Return the Avro body of a value of JSON."""
    stream = io.BytesIO()
    bare = _without_logical(avro_schema(schema))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(bare), avro_value(schema, value))
    return stream.getvalue()


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _without_logical(each) for key, each in schema.items() if key != "logicalType"}
    return schema
