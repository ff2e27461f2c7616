"""What a pipeline declares about events without a schema: units of times, decimals, and bytes in text."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from exactbatch.columns import Column, Field, is_vector
from exactbatch.errors import ConfigurationError
from exactbatch.formats.connect_schema import DECIMAL, ConnectType
from exactbatch.formats.connect_structs import hstore_of_json, is_hstore
from exactbatch.formats.connect_times import dates_from_iso, timestamps_from_text
from exactbatch.formats.connect_values import (
    CLOCKS,
    MOMENTS,
    VARIABLE_SCALE,
    Reading,
    number_or_text,
    plain,
    reading_of,
)
from exactbatch.formats.raw_json_fields import check_names, is_kept_as_text
from exactbatch.formats.vectors import vectors_of_json

if TYPE_CHECKING:
    import pyarrow as pa

Times = Literal[
    "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
]
Decimals = Literal["precise", "double", "string"]

_TIMESTAMP: Final = "timestamp without time zone"
_MOMENTS: Final = (_TIMESTAMP, "timestamp with time zone")
_TIME: Final = "time without time zone"
_TEMPORAL: Final = (*_MOMENTS, "date", _TIME, "time with time zone")
_MOMENT_OF: Final[Mapping[str, str]] = {unit: name for name, unit in reversed(MOMENTS.items())}
_CLOCK_OF: Final[Mapping[str, str]] = {unit: name for name, unit in reversed(CLOCKS.items())}
# The unit that a mode gives all timestamps, and all times of day; adaptive modes give each column its own.
_UNITS: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "connect": ("ms", "ms"),
    "microseconds": ("us", "us"),
    "nanoseconds": ("ns", "ns"),
    "adaptive": (None, None),
    "adaptive_time_microseconds": (None, "us"),
}
_ISO: Final = {
    "date": "io.debezium.time.IsoDate",
    _TIMESTAMP: "io.debezium.time.IsoTimestamp",
    _TIME: "io.debezium.time.IsoTime",
}
# Text that is a number, and base64 as well: it may be the bytes of another number.
_EITHER: Final = "(?:[0-9eE+]{4})+"
# As the connector and its converter write NaN and infinity.
_NOT_FINITE: Final = re.compile(r"found '(NaN|NAN|-?Infinity|POSITIVE_INFINITY|NEGATIVE_INFINITY)'$")
_EITHER_PATTERN: Final = re.compile(_EITHER)


def check_fields(fields: Sequence[Field]) -> None:
    """Raise ConfigurationError for a column that takes anything but a field of the row, and for a field taken twice."""
    taken: dict[str, str] = {}
    for field in fields:
        name = field.own_member
        if name is None:
            raise ConfigurationError(
                f'column {field.column.name!r}: Debezium takes fields of the row, such as "is_deleted boolean from '
                f"'deleted'\", but neither a path nor a default, found "
                f"{'default' if field.default is not None else f'from {str(field.path)!r}'}. "
                f"Take the whole field, as jsonb if it is a document."
            )
        if name in taken:
            raise ConfigurationError(
                f"columns {taken[name]!r} and {field.column.name!r}: both take the field {name!r}. Remove one."
            )
        taken[name] = field.column.name
    check_names(fields)


def check_epoch(epoch: Mapping[str, str], times: str | None, columns: Sequence[Column]) -> None:
    """Raise ConfigurationError for a unit that does not suit its column, and for a column that the mode gives none."""
    types = {column.name: column.type for column in columns}
    for name, unit in epoch.items():
        type_ = types.get(name, "which is not a column")
        units = ("d",) if type_ == "date" else ("ms", "us", "ns") if type_ in (*_MOMENTS, _TIME) else ()
        if unit not in units:
            raise ConfigurationError(
                f"epoch: expected one of the units ms, us and ns for a column of type timestamp or time, or d for a "
                f"date, found {unit!r} for {name!r}, {type_}"
            )
    if times not in ("adaptive", "adaptive_time_microseconds"):
        return
    of_moments, of_clocks = _UNITS[times]
    for name, type_ in types.items():
        lacks = (type_ == _TIMESTAMP and of_moments is None) or (type_ == _TIME and of_clocks is None)
        if lacks and name not in epoch:
            raise ConfigurationError(
                f"times={times!r}: the unit of column {name!r} depends on its precision at the source, which an event "
                f"without a schema does not say. Add it to epoch: ms for a precision of 0 to 3 digits, us for 4 to 6, "
                f"ns for 7 to 9, as in epoch={{{name!r}: 'us'}}. Events with a schema need neither option."
            )


def declared_reading(
    column: Column, epoch: Mapping[str, str], times: str | None, decimals: str | None
) -> Reading:
    """Return how a column of events without a schema is read; raise ValueError if its declarations do not suit it."""
    import pyarrow as pa

    unit = epoch.get(column.name)
    if unit is None and times is not None and times in _UNITS:
        of_moments, of_clocks = _UNITS[times]
        unit = {_TIMESTAMP: of_moments, _TIME: of_clocks, "date": "d"}.get(column.type)
    if unit is not None:
        names = _CLOCK_OF if column.type == _TIME else _MOMENT_OF
        return reading_of(column, ConnectType("int64", names[unit]))
    if times == "isostring" and column.type in _ISO:
        return reading_of(column, ConnectType("string", _ISO[column.type]))
    if column.type in _MOMENTS:
        return Reading(pa.string(), partial(timestamps_from_text, type_=column.arrow_type))
    if column.type == "date":
        return Reading(plain(column).read, dates_from_iso)
    if column.type.startswith("numeric") and decimals == "precise":
        written = _precise(column.element or column.type)
        return reading_of(column, ConnectType("array", element=written) if column.element else written)
    if column.type.startswith("numeric") and is_kept_as_text(column):
        return number_or_text(column)
    if is_vector(column.type):
        return Reading(None, partial(vectors_of_json, type_=column.type))
    if is_hstore(column.type):
        return Reading(pa.string(), hstore_of_json)
    return plain(column)


def _precise(type_: str) -> ConnectType:
    """Return what decimal.handling.mode=precise writes for a numeric type."""
    if type_ == "numeric":
        return ConnectType("struct", VARIABLE_SCALE)
    scale = type_.removesuffix(")").rpartition(",")[2]
    return ConnectType("bytes", DECIMAL, {"scale": scale})


def images_in(event: dict[str, Any]) -> Sequence[Any]:
    """Return the rows in an envelope, bare or in its payload."""
    inner = event.get("payload") or event
    return [inner.get(image) for image in ("before", "after")]


def refuse_ambiguous(
    text: "pa.StringArray", fields: Sequence[Field], rows_in: Callable[[dict[str, Any]], Sequence[Any]]
) -> None:
    """Raise ValueError for decimals in text, such as "1234", that base64 may also write for another number.

    For events without a schema whose pipeline does not declare `decimals`. `rows_in` returns the rows in an event.
    """
    import pyarrow.compute as pc

    for each in fields:
        column, name = each.column, str(each.own_member)
        if not column.type.startswith("numeric"):
            continue
        before = r"\[[^]]*" if column.element else ""
        field = rf'{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*{before}"{_EITHER}"'
        suspect = pc.match_substring_regex(text, field)
        if not pc.any(suspect, min_count=0).as_py():
            continue
        for event in text.filter(suspect).to_pylist():
            _refuse_ambiguous(name, rows_in(json.loads(event, parse_float=str, parse_int=int)))


def _refuse_ambiguous(name: str, rows: Sequence[Any]) -> None:
    for row in rows:
        written = row.get(name) if isinstance(row, dict) else None
        for value in written if isinstance(written, list) else [written]:
            if not (isinstance(value, str) and _EITHER_PATTERN.fullmatch(value)):
                continue
            raise ValueError(
                f"{value!r} is a number as text, or the bytes of another number in base64: declare decimals='string' "
                f"or decimals='precise', the connector's decimal.handling.mode, or let it send schemas"
            )


def hint_for(column: Column, reason: str, *, has_schema: bool) -> str:
    """Return the reason why a value is refused, with the setting that may help."""
    if (match := _NOT_FINITE.search(reason)) and column.type.startswith("numeric("):
        if match[1].lower() != "nan":
            return f"{reason}: declare the column as numeric, without a precision, in the pipeline and in the target"
        return (
            f"{reason}: declare the column as numeric, without a precision; the target's column may be {column.type}, "
            f"which holds NaN"
        )
    if "found number" not in reason:
        return reason
    if has_schema and column.type.startswith("numeric"):
        return f"{reason}: the converter's decimal.format has to be BASE64, its default"
    if column.type in _TEMPORAL and not has_schema:
        return (
            f"{reason}: the event has no schema that says what the number counts. Declare epoch={{{column.name!r}: "
            f"'us'}} with its unit, or times=, the connector's time.precision.mode"
        )
    return reason
