"""Map an Avro schema to Postgres columns: the type of each field, how fastavro returns its values, and how they are
written as JSON.

fastavro lacks readers of some logical types; others round a decimal to the precision of its schema, and read a negative
time as a time of the day before. fastavro looks readers up by name: those here have other names, so that other users of
fastavro are not affected.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Context, Decimal
from math import isfinite
from typing import Any, Final, Literal
from uuid import UUID

import fastavro
import fastavro.read
import msgspec
import pyarrow as pa

from exactbatch.columns import Column
from exactbatch.formats.connect.types_of_schema import TIME, ConnectType, from_avro
from exactbatch.formats.json.raw_fields import json_texts

# How a field's values become Arrow data: unchanged, as text, as JSON text, or as integers of a unit since 1970.
Reading = Literal["value", "text", "json", "s", "ms", "us", "ns", "d"]

_PRIMITIVE: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "bytes": "bytea",
    "fixed": "bytea",
    "enum": "text",
    "null": "text",
}
_TIMESTAMPS: Final[Mapping[tuple[str, str], tuple[str, Reading]]] = {
    ("int", "date"): ("date", "d"),
    ("long", "timestamp-millis"): ("timestamp with time zone", "ms"),
    ("long", "timestamp-micros"): ("timestamp with time zone", "us"),
    ("long", "timestamp-nanos"): ("timestamp with time zone", "ns"),
    ("long", "local-timestamp-millis"): ("timestamp without time zone", "ms"),
    ("long", "local-timestamp-micros"): ("timestamp without time zone", "us"),
    ("long", "local-timestamp-nanos"): ("timestamp without time zone", "ns"),
}
_TIMESTAMP_TYPES: Final = {"timestamp with time zone", "timestamp without time zone"}
_TIMES: Final = {("int", "time-millis"), ("long", "time-micros")}
_INTEGERS: Final = {"smallint", "integer", "bigint"}
_CHECKED: Final = {
    "decimal",
    "timestamp-nanos",
    "local-timestamp-nanos",
    *(logical for _, logical in _TIMES),
}
CHECKED: Final = "exactbatch-"  # prefix of the logical types that avro_logical reads
_MAX_PRECISION: Final = 1000  # digits that a numeric of Postgres may declare
VALUE: Final = "value"  # the usual name of the column of a schema other than a record
_SHOWN: Final = 500  # characters of a schema
_MIDNIGHT: Final = datetime(1970, 1, 1)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record: its natural Postgres type, and how its values are read.

    `schema` is the schema by which fastavro decodes it: bare integers for timestamps, which Arrow converts faster,
    and exactly. `connect` is what Debezium says that a number or text means; None if it says nothing.
    """

    name: str
    type: str
    reading: Reading
    schema: Any
    connect: ConnectType | None = None

    @property
    def is_exact_number(self) -> bool:
        """True for integers, decimals, and arrays of these."""
        own = self.type.removesuffix("[]")
        return own in _INTEGERS or own.startswith("numeric")

    def fits(self, column: Column) -> bool:
        """True if a column can hold the field's values; integers and decimals are checked value by value later."""
        if self.reading == "json":
            return column.type in ("json", "jsonb", "text")
        own, target = self.type.removesuffix("[]"), column.element or column.type
        if self.type.endswith("[]") != (column.element is not None):
            return False
        if target == own or (own in _INTEGERS and target in _INTEGERS):
            return True
        if own in _TIMESTAMP_TYPES and target in _TIMESTAMP_TYPES:
            return True
        if own == "real":
            return target == "double precision"
        if self.is_exact_number:
            return target.startswith("numeric")
        as_text = Column(column.name, target).staged_type == "text"
        return as_text and Column(self.name, own).staged_type == "text"


def parse(schema: str, name: str) -> tuple[Any, tuple[AvroField, ...]]:
    """Return a parsed schema, in which all names are full names, and its fields.

    A schema other than a record is one field with the given name. Raises ValueError for an invalid schema.
    """
    try:
        parsed: Any = fastavro.parse_schema(json.loads(schema))
        if isinstance(
            parsed, dict
        ):  # inside of another schema, fastavro would take its own notes for a part of it
            parsed = {key: value for key, value in parsed.items() if not key.startswith("__")}
        return parsed, _list_fields(parsed, name)
    except (
        Exception
    ) as error:  # fastavro's errors about a schema have no common base, and it does not check all
        raise ValueError(
            f"invalid Avro schema {schema[:_SHOWN]!r}: {type(error).__name__}: {error}"
        ) from None


def _list_fields(parsed: Any, name: str) -> tuple[AvroField, ...]:
    named: dict[str, Any] = {}
    _collect(parsed, named)
    if isinstance(parsed, dict) and parsed["type"] == "record":
        return tuple(_field(field["name"], field["type"], named) for field in parsed["fields"])
    return (_field(name, parsed, named),)


def checked(schema: Any) -> Any:
    """Return the schema with logical types for which fastavro calls the readers of avro_logical."""
    match schema:
        case list():
            return [checked(branch) for branch in schema]
        case dict():
            inner = {
                key: checked(schema[key]) for key in ("fields", "items", "values", "type") if key in schema
            }
            logical = schema.get("logicalType")
            is_checked = logical in _CHECKED or _is_fixed_uuid(schema)
            renamed = {"logicalType": f"{CHECKED}{logical}"} if is_checked else {}
            return {**schema, **inner, **renamed}
        case _:
            return schema


def _field(name: str, schema: Any, named: Mapping[str, Any]) -> AvroField:
    type_, reading, plain = _read(schema, named)
    return AvroField(name, type_, reading, plain, _connect_type(schema))


def _connect_type(schema: Any) -> ConnectType | None:
    """Return the type of a time of Debezium, whose name Confluent's converter keeps, such as MicroTimestamp."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        return _connect_type(others[0]) if len(others) == 1 else None
    if (
        not isinstance(schema, dict)
        or "logicalType" in schema
        or schema["type"] not in ("int", "long", "string")
    ):
        return None
    return from_avro(schema, {}) if str(schema.get("connect.name")).startswith(TIME) else None


def _read(schema: Any, named: Mapping[str, Any]) -> tuple[str, Reading, Any]:
    """Return Postgres type, reading, and the schema by which fastavro decodes."""
    if isinstance(schema, list):
        others = [branch for branch in schema if _kind(branch) != "null"]
        if len(others) != 1:
            return "jsonb", "json", schema
        type_, reading, plain = _read(others[0], named)
        return type_, reading, [plain if branch is others[0] else branch for branch in schema]
    kind = _kind(schema)
    if kind in named:
        kind, full = named[kind]["type"], named[kind]
    else:
        full = schema if isinstance(schema, dict) else {}
    logical = full.get("logicalType")
    if kind in ("record", "map"):
        return "jsonb", "json", schema
    if kind == "array":
        type_, reading, plain = _read(full["items"], named)
        if reading in ("text", "json") or type_.endswith("[]"):
            return "jsonb", "json", schema
        return type_ + "[]", reading, {**full, "items": plain}
    if (kind, logical) in _TIMESTAMPS:
        return *_TIMESTAMPS[kind, logical], kind
    if (kind, logical) in _TIMES:
        return "time without time zone", "text", schema
    if (kind, logical) == ("string", "uuid"):
        return "uuid", "value", kind
    if _is_fixed_uuid(full):
        return "uuid", "text", schema
    if logical == "decimal" and full["precision"] <= _MAX_PRECISION:
        type_ = f"numeric({full['precision']},{full.get('scale', 0)})"
        return type_, "text" if Column("x", type_).staged_type == "text" else "value", schema
    return _PRIMITIVE[kind], "value", schema


def _is_fixed_uuid(schema: Mapping[str, Any]) -> bool:
    """True for the second form of a uuid; the specification ignores the logical type of any other schema."""
    return (schema.get("type"), schema.get("logicalType"), schema.get("size")) == ("fixed", "uuid", 16)


def _kind(schema: Any) -> str:
    """Return the type of a schema, or the name of one that is defined elsewhere."""
    if isinstance(schema, dict):
        return str(schema["type"])
    return "union" if isinstance(schema, list) else str(schema)


def _collect(schema: Any, named: dict[str, Any]) -> None:
    """Collect the named types."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], named)
        for inner in ("items", "values"):
            if inner in schema:
                _collect(schema[inner], named)


def write_json(values: list[Any], type_: str) -> pa.StringArray:
    """Return the JSON text, for a type, of values that fastavro returned; null for None.

    Raises ValueError for NaN and infinity, and in a jsonb for U+0000.
    """
    encode = msgspec.json.Encoder(decimal_format="number").encode
    texts = list(map(encode, values))
    for value, text in zip(values, texts, strict=True):
        if b"null" in text:
            _refuse_not_finite(value)
    return json_texts(pa.array(texts, pa.binary()), type_)


def _refuse_not_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, which JSON does not have and which msgspec writes as null."""
    match value:
        case float() if not isfinite(value):
            raise ValueError(f"JSON has no number {value}")
        case dict():
            for member in value.values():
                _refuse_not_finite(member)
        case list():
            for element in value:
                _refuse_not_finite(element)


class InvalidAvro(ValueError):
    """A value that its schema does not allow. The message is the reason of the reject."""


def register() -> None:
    """Register the readers with fastavro; may be called several times."""
    readers: Any = fastavro.read.LOGICAL_READERS
    readers[f"bytes-{CHECKED}decimal"] = readers[f"fixed-{CHECKED}decimal"] = _decimal
    readers[f"int-{CHECKED}time-millis"] = _time_in("milliseconds")
    readers[f"long-{CHECKED}time-micros"] = _time_in("microseconds")
    readers[f"long-{CHECKED}timestamp-nanos"] = _timestamp_after(_MIDNIGHT.replace(tzinfo=UTC))
    readers[f"long-{CHECKED}local-timestamp-nanos"] = _timestamp_after(_MIDNIGHT)
    readers[f"fixed-{CHECKED}uuid"] = _uuid


def _decimal(data: bytes, fetch_schema: Any, _reader_schema: Any = None) -> Decimal:
    if not data:
        raise InvalidAvro("expected the bytes of a decimal, found none")
    unscaled = int.from_bytes(data, "big", signed=True)
    precision, scale = fetch_schema["precision"], fetch_schema.get("scale", 0)
    if abs(unscaled) >= 10**precision:
        raise InvalidAvro(f"expected a decimal of at most {precision} digits, found more")
    return Decimal(unscaled).scaleb(-scale, Context(prec=precision))


def _uuid(data: bytes, _writer_schema: Any, _reader_schema: Any = None) -> UUID:
    return UUID(bytes=data)


def _timestamp_after(epoch: datetime) -> Callable[[int, Any, Any], datetime]:
    def read(nanoseconds: int, _writer_schema: Any, _reader_schema: Any = None) -> datetime:
        return epoch + timedelta(microseconds=nanoseconds // 1_000)

    return read


def _time_in(unit: str) -> Callable[[int, Any, Any], time]:
    def read(number: int, _writer_schema: Any, _reader_schema: Any = None) -> time:
        try:
            since = timedelta(**{unit: number})
        except OverflowError:
            since = _DAY
        if not timedelta(0) <= since < _DAY:
            raise InvalidAvro(f"expected a time from 0 to 24 hours after midnight, found {number} {unit}")
        return (_MIDNIGHT + since).time()

    return read
