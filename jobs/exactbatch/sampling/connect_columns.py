"""Types of columns for the fields of Kafka Connect's schemas, which say what a value of Debezium's events means."""

from collections.abc import Mapping, Sequence
from typing import Final

from exactbatch.formats.connect.types_of_schema import DECIMAL, ConnectType
from exactbatch.sampling.value_types import Choice

_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_CONNECT: Final = "org.apache.kafka.connect.data."
_PRECISION: Final = "connect.decimal.precision"
# By the name of a schema: the best type first.
_BY_NAME: Final[Mapping[str, Sequence[str]]] = {
    f"{_TIME}Date": ("date",),
    f"{_CONNECT}Date": ("date",),
    f"{_TIME}IsoDate": ("date",),
    f"{_TIME}Timestamp": ("timestamp", "bigint"),
    f"{_TIME}MicroTimestamp": ("timestamp", "bigint"),
    f"{_TIME}NanoTimestamp": ("timestamp", "bigint"),
    f"{_TIME}IsoTimestamp": ("timestamp",),
    f"{_CONNECT}Timestamp": ("timestamp", "bigint"),
    f"{_TIME}Time": ("time", "interval", "bigint"),
    f"{_TIME}MicroTime": ("time", "interval", "bigint"),
    f"{_TIME}NanoTime": ("time", "interval", "bigint"),
    f"{_CONNECT}Time": ("time", "interval", "bigint"),
    f"{_TIME}IsoTime": ("time",),
    f"{_TIME}ZonedTimestamp": ("timestamptz",),
    f"{_TIME}ZonedTime": ("timetz",),
    f"{_TIME}Interval": ("interval",),
    f"{_DATA}VariableScaleDecimal": ("numeric",),
    f"{_DATA}Json": ("jsonb", "json"),
    f"{_DATA}Uuid": ("uuid",),
}
_BY_TYPE: Final[Mapping[str, Sequence[str]]] = {
    "int8": ("smallint", "integer", "bigint", "numeric"),
    "int16": ("smallint", "integer", "bigint", "numeric"),
    "int32": ("integer", "bigint", "numeric"),
    "int64": ("bigint", "numeric"),
    "float": ("real", "double precision"),
    "float32": ("real", "double precision"),
    "double": ("double precision", "numeric"),
    "float64": ("double precision", "numeric"),
    "boolean": ("boolean",),
    "string": ("text",),
    "bytes": ("bytea",),
}


def list_choices(written: Sequence[ConnectType]) -> tuple[Choice, ...]:
    """Return types for a field, the best one first. `written` are its types in the schemas of a sample, oldest
    first."""
    found = list(dict.fromkeys(type_ for each in reversed(written) for type_ in list_types(each)))
    return tuple(Choice(type_) for type_ in dict.fromkeys([*found, "text", "jsonb"]))


def list_types(written: ConnectType) -> Sequence[str]:
    """Return types for a value of this type, the best one first."""
    if written.name == DECIMAL:
        return (_decimal(written), "numeric")
    if written.name in _BY_NAME:
        return _BY_NAME[written.name]
    if written.element is not None:
        first = list_types(written.element)[0]
        return ("jsonb",) if first == "jsonb" or first.endswith("[]") else (f"{first}[]", "jsonb")
    return _BY_TYPE.get(written.type, ("jsonb",))


def _decimal(written: ConnectType) -> str:
    """Return numeric with the precision that the connector writes next to the scale."""
    precision, scale = written.parameters.get(_PRECISION, ""), written.parameters.get("scale", "")
    if (
        precision.isdecimal()
        and scale.isdecimal()
        and 1 <= int(precision) <= 1000
        and int(scale) <= int(precision)
    ):
        return f"numeric({precision},{scale})"
    return "numeric"
