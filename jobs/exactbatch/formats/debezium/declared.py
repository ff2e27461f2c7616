"""The declarations of a pipeline about events without a schema: units of times, decimals, and bytes in text."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column, Field, is_vector
from exactbatch.formats.connect.readings import (
    CLOCKS,
    MOMENTS,
    VARIABLE_SCALE,
    Reading,
    find_reading,
    number_or_text,
    plain,
)
from exactbatch.formats.connect.structs import hstore_of_json, is_hstore
from exactbatch.formats.connect.times import dates_from_iso, timestamps_from_text
from exactbatch.formats.connect.types_of_schema import DECIMAL, ConnectType
from exactbatch.formats.debezium.spec import TEMPORAL, TIME, TIMESTAMP, TIMESTAMPS, UNITS
from exactbatch.formats.declared_fields import is_kept_as_text
from exactbatch.formats.json.raw_fields import vectors_of_json

_MOMENT_OF: Final[Mapping[str, str]] = {unit: name for name, unit in reversed(MOMENTS.items())}
_CLOCK_OF: Final[Mapping[str, str]] = {unit: name for name, unit in reversed(CLOCKS.items())}
_ISO: Final = {
    "date": "io.debezium.time.IsoDate",
    TIMESTAMP: "io.debezium.time.IsoTimestamp",
    TIME: "io.debezium.time.IsoTime",
}
# Text that is a number, and base64 as well: it may be the bytes of another number.
_EITHER: Final = "(?:[0-9eE+]{4})+"
# As the connector and its converter write NaN and infinity.
_NOT_FINITE: Final = re.compile(r"found '(NaN|NAN|-?Infinity|POSITIVE_INFINITY|NEGATIVE_INFINITY)'$")
_EITHER_PATTERN: Final = re.compile(_EITHER)


def declared_reading(
    column: Column, epoch: Mapping[str, str], times: str | None, decimals: str | None
) -> Reading:
    """Return how a column of events without a schema is read; raise ValueError if its declarations do not suit it."""
    unit = epoch.get(column.name)
    if unit is None and times is not None and times in UNITS:
        of_moments, of_clocks = UNITS[times]
        unit = {TIMESTAMP: of_moments, TIME: of_clocks, "date": "d"}.get(column.type)
    if unit is not None:
        names = _CLOCK_OF if column.type == TIME else _MOMENT_OF
        return find_reading(column, ConnectType("int64", names[unit]))
    if times == "isostring" and column.type in _ISO:
        return find_reading(column, ConnectType("string", _ISO[column.type]))
    if column.type in TIMESTAMPS:
        return Reading(pa.string(), partial(timestamps_from_text, type_=column.arrow_type))
    if column.type == "date":
        return Reading(plain(column).read, dates_from_iso)
    if column.type.startswith("numeric") and decimals == "precise":
        written = _precise(column.element or column.type)
        return find_reading(column, ConnectType("array", element=written) if column.element else written)
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
    text: pa.StringArray, fields: Sequence[Field], rows_in: Callable[[dict[str, Any]], Sequence[Any]]
) -> None:
    """Raise ValueError for decimals in text, such as "1234", that base64 may also write for another number.

    For events without a schema whose pipeline does not declare `decimals`. `rows_in` returns the rows in an event.
    """
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
            if isinstance(value, str) and (reason := why_ambiguous(value)):
                raise ValueError(reason)


def why_ambiguous(text: str) -> str | None:
    """Return why a decimal in text is refused that may be base64 as well; None if it cannot be."""
    if not _EITHER_PATTERN.fullmatch(text):
        return None
    return (
        f"{text!r} is a number as text, or the bytes of another number in base64: declare decimals='string' "
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
    if column.type in TEMPORAL and not has_schema:
        return (
            f"{reason}: the event has no schema that says what the number counts. Declare epoch={{{column.name!r}: "
            f"'us'}} with its unit, or times=, the connector's time.precision.mode"
        )
    return reason
