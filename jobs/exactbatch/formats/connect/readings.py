"""Convert the values of a field to the type of its column, by the schema that Kafka Connect gives the field."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column, is_vector
from exactbatch.formats.connect.binary_text import decimals_from_base64, decimals_with_scales, decoded_text
from exactbatch.formats.connect.structs import convert_texts, hstore_of_json, is_hstore, text_for
from exactbatch.formats.connect.times import (
    Unit,
    clock_from_iso,
    dates_from_iso,
    moments_from_numbers,
    times_of_day,
    timestamps_from_iso,
)
from exactbatch.formats.connect.types_of_schema import DECIMAL, TIME, ConnectType
from exactbatch.formats.decimals import parse_decimals
from exactbatch.formats.json.blocks import readable
from exactbatch.formats.json.raw_fields import elements, numbers_or_strings, vectors_of_json
from exactbatch.formats.not_finite import FLOAT_TYPES, floats_as_text, refuse_in_json, round_to_reals

_DATA: Final = "io.debezium.data."
_CONNECT: Final = "org.apache.kafka.connect.data."
MOMENTS: Final[dict[str, Unit]] = {
    f"{TIME}Date": "d",
    f"{TIME}Timestamp": "ms",
    f"{TIME}MicroTimestamp": "us",
    f"{TIME}NanoTimestamp": "ns",
    f"{_CONNECT}Date": "d",
    f"{_CONNECT}Timestamp": "ms",
}
CLOCKS: Final[dict[str, Unit]] = {
    f"{TIME}Time": "ms",
    f"{TIME}MicroTime": "us",
    f"{TIME}NanoTime": "ns",
    f"{_CONNECT}Time": "ms",
}
_ISO_MOMENTS: Final = (f"{TIME}ZonedTimestamp", f"{TIME}IsoTimestamp", f"{TIME}IsoDate")
_ISO_CLOCKS: Final = (f"{TIME}ZonedTime", f"{TIME}IsoTime")
_DURATIONS: Final = (f"{TIME}MicroDuration", f"{TIME}NanoDuration")
VARIABLE_SCALE: Final = f"{_DATA}VariableScaleDecimal"
_BITS: Final = f"{_DATA}Bits"

_INTEGERS: Final = ("smallint", "integer", "bigint")
_FLOATS: Final = ("real", "double precision")
_TIMESTAMPS: Final = ("timestamp with time zone", "timestamp without time zone")
_TIMES: Final = ("time without time zone", "time with time zone")
_JSON: Final = ("json", "jsonb")
_INTEGER_TYPES: Final = ("int8", "int16", "int32", "int64")
_NESTED: Final = ("struct", "map", "array", "union")
_SHORT_FLOATS: Final = ("float", "float32")
_SUITABLE: Final = {True: "numeric, or an integer type", False: "boolean"}
# SpecialValueDecimal.toString() → Postgres's spelling.
_SPECIAL_DECIMALS: Final = {
    "NAN": "NaN",
    "POSITIVE_INFINITY": "Infinity",
    "NEGATIVE_INFINITY": "-Infinity",
}
# What a number or bytes of these names mean is not what JSON would show.
_ENCODED: Final = {
    **dict.fromkeys(MOMENTS, "timestamp"),
    **dict.fromkeys(CLOCKS, "time"),
    DECIMAL: "numeric",
    _BITS: "numeric",
}

Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a column is read: the Arrow type of the values as they are written (None for the JSON text of any value),
    and how they become values of the column, which raises ValueError for those that cannot; None leaves them as
    they are. `is_base64` is true for bytes that are read as base64, whatever the pipeline declares. `of_json` makes
    text, or lists of it, of JSON texts that are read."""

    read: pa.DataType | None
    convert: Convert | None = None
    is_base64: bool = False
    of_json: Convert | None = None


def convert_values(reading: Reading, values: pa.Array) -> pa.Array:
    """Return what was read as values of the column; raise ValueError for those that cannot be."""
    return values if reading.convert is None else reading.convert(values)


def plain(column: Column) -> Reading:
    """Read values that are written in the column's own way; bytea as text."""
    if (column.element or column.type) == "bytea":
        return Reading(pa.list_(pa.string()) if column.element else pa.string())
    return Reading(readable(column.arrow_type))


def number_or_text(column: Column) -> Reading:
    """Read numbers, bare or in strings, for a numeric column that is staged as text: with the digits as written."""
    if column.element is None:
        return Reading(None, special_decimals, of_json=numbers_or_strings)
    return Reading(
        None,
        partial(_in_lists, special_decimals),
        of_json=lambda texts: _in_lists(numbers_or_strings, elements(texts)),
    )


def find_reading(column: Column, written: ConnectType) -> Reading:
    """Return how a column takes a field of a type; raise ValueError if it cannot.

    Bytes are read as base64 text.
    """
    if column.element is not None:
        if written.element is None:
            raise _misfit(written, "array")
        return _of_lists(find_reading(Column(column.name, column.element), written.element), written)
    if column.type in _JSON and written.type != "string":
        if written.name in _ENCODED:
            raise _misfit(written, _ENCODED[written.name])
        return Reading(None, partial(refuse_in_json, written=written, type_=column.type))
    if written.name in MOMENTS:
        return _moment(column, written, MOMENTS[written.name])
    if written.name in CLOCKS:
        return _clock(column, written, CLOCKS[written.name])
    if written.name in _ISO_MOMENTS or written.name in _ISO_CLOCKS:
        return _iso(column, written)
    if written.name in _DURATIONS:
        return _duration(column, written)
    if written.name in (DECIMAL, VARIABLE_SCALE):
        return _decimal(column, written)
    if written.name == _BITS:
        return _bits(column, written)
    if written.type in _NESTED:
        return _nested(column, written)
    return _simple(column, written)


def _is_text(column: Column) -> bool:
    return column.type == "text" or column.type.startswith("character")


def _is_own(column: Column) -> bool:
    return "." in column.type


def _is_zoned(column: Column) -> bool:
    return column.type.endswith(".timestamptz")


def _is_number(column: Column) -> bool:
    return column.type in _INTEGERS or column.type.startswith("numeric")


def _misfit(written: ConnectType, *suitable: str) -> ValueError:
    kind = f"{written.type}, {written.name}" if written.name else written.type
    return ValueError(
        f"the connector writes this field as {kind}: declare the column as {' or '.join(suitable)}"
    )


def _number(column: Column) -> Reading:
    """Take integers as they are."""
    if column.staged_type != "text":
        return plain(column)
    return Reading(pa.int64(), lambda numbers: numbers.cast(pa.string()))


def _moment(column: Column, written: ConnectType, unit: Unit) -> Reading:
    if _is_number(column):
        return _number(column)
    staged = _is_text(column) or _is_own(column)
    if not staged and column.type not in (*_TIMESTAMPS, "date"):
        raise _misfit(written, "date" if unit == "d" else "timestamp")
    parsed = ("Z" if _is_zoned(column) else "") if _is_own(column) else None
    return Reading(
        pa.int64(),
        partial(moments_from_numbers, unit=unit, type_=column.arrow_type, staged=staged, parsed=parsed),
    )


def _clock(column: Column, written: ConnectType, unit: Unit) -> Reading:
    if _is_number(column):
        return _number(column)
    if column.type not in ("time without time zone", "interval") and not _is_text(column):
        raise _misfit(written, "time", "interval")
    within = column.type == "time without time zone"
    return Reading(pa.int64(), partial(times_of_day, unit=unit, within_a_day=within))


def _iso(column: Column, written: ConnectType) -> Reading:
    if _is_text(column):
        return Reading(pa.string())
    if written.name in _ISO_CLOCKS:
        if column.type not in _TIMES:
            raise _misfit(written, "timetz" if written.name.endswith("ZonedTime") else "time")
        return Reading(pa.string(), partial(clock_from_iso, zoned=column.type == "time with time zone"))
    if _is_own(column):
        return Reading(pa.string(), partial(clock_from_iso, zoned=_is_zoned(column)))
    if written.name.endswith("IsoDate") and column.type == "date":
        return Reading(pa.string(), dates_from_iso)
    if not written.name.endswith("IsoDate") and column.type in _TIMESTAMPS:
        return Reading(pa.string(), partial(timestamps_from_iso, type_=column.arrow_type))
    raise _misfit(written, "date" if written.name.endswith("IsoDate") else "timestamptz")


def _duration(column: Column, written: ConnectType) -> Reading:
    if _is_number(column) or column.type in _FLOATS:
        return _simple(column, ConnectType(written.type))
    raise ValueError(
        f"the connector writes an interval as an approximate number ({written.name}), in which a month has 30.4375 "
        f"days: configure interval.handling.mode=string, or declare the column as bigint to keep the number"
    )


def _decimal(column: Column, written: ConnectType) -> Reading:
    if not (_is_number(column) or _is_text(column) or column.type in _FLOATS):
        raise _misfit(written, "numeric")
    type_ = column.arrow_type
    if written.name == VARIABLE_SCALE:
        fields = pa.struct([("scale", pa.int32()), ("value", pa.string())])
        return Reading(fields, partial(decimals_with_scales, type_=type_))
    try:
        scale = int(written.parameters["scale"])
    except (KeyError, ValueError):
        raise ValueError(f"the event's schema gives no scale for {DECIMAL}") from None
    return Reading(pa.string(), partial(decimals_from_base64, scale=scale, type_=type_))


def _bits(column: Column, written: ConnectType) -> Reading:
    if column.type == "bytea":
        return Reading(pa.string(), is_base64=True)
    if _is_number(column):
        return Reading(pa.string(), partial(_unsigned, type_=column.arrow_type))
    raise _misfit(written, "bytea (its bytes, the lowest first)", "numeric (its number)")


def _unsigned(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the number that bits are, whose lowest byte comes first."""
    numbers = [
        None if each is None else str(int.from_bytes(each, "little"))
        for each in decoded_text(text, "base64").to_pylist()
    ]
    if pa.types.is_decimal(type_):
        return parse_decimals(pa.chunked_array([pa.array(numbers, pa.string())]), type_).combine_chunks()
    return pa.array(numbers, pa.string()).cast(type_)


def _nested(column: Column, written: ConnectType) -> Reading:
    if is_vector(column.type) and written.type == "array":
        return Reading(None, partial(vectors_of_json, type_=column.type))
    write = text_for(column.type, written.name, written.type) if _is_own(column) else None
    if write is None:
        raise _misfit(written, "jsonb")
    return Reading(None, partial(convert_texts, write=write))


def _simple(column: Column, written: ConnectType) -> Reading:
    """Read a value whose type says all: a number, text, bytes or a boolean."""
    if written.name == f"{_DATA}Json" and is_hstore(column.type):
        return Reading(pa.string(), hstore_of_json)
    is_number = written.type in (*_INTEGER_TYPES, *FLOAT_TYPES)
    if is_number and column.type in (*_TIMESTAMPS, *_TIMES, "date"):
        raise ValueError(
            f"the event's schema does not say what its {written.type} counts: declare the column as bigint"
        )
    if written.type in FLOAT_TYPES and column.type in _INTEGERS:
        raise _misfit(written, "numeric", "double precision")
    suitable = {
        "boolean": column.type == "boolean",
        "bytes": column.type == "bytea" or _is_text(column),
        "string": column.type not in (*_INTEGERS, *_FLOATS, "boolean"),
    }
    if not suitable.get(written.type, _is_number(column) or column.type in _FLOATS):
        raise _misfit(written, {"bytes": "bytea", "string": "text"}.get(written.type, _SUITABLE[is_number]))
    if column.type.startswith("numeric") and column.staged_type == "text":
        if written.type in _INTEGER_TYPES:
            return _number(column)
        if written.type in FLOAT_TYPES:
            floats = pa.float32() if written.type in _SHORT_FLOATS else pa.float64()
            return Reading(floats, floats_as_text)
        return Reading(pa.string(), special_decimals)
    if column.type == "real" and written.type in FLOAT_TYPES and written.type not in _SHORT_FLOATS:
        return Reading(pa.float64(), round_to_reals)
    return replace(plain(column), is_base64=column.type == "bytea" and written.type == "bytes")


def special_decimals(text: pa.Array) -> pa.Array:
    """Return decimals as text, with NaN and infinity as Postgres spells them."""
    for written, spelled in _SPECIAL_DECIMALS.items():
        text = pc.if_else(pc.equal(text, written), pa.scalar(spelled), text)
    return text


def _of_lists(element: Reading, written: ConnectType) -> Reading:
    if element.read is None:
        raise _misfit(written, "jsonb")
    convert = element.convert
    if convert is None:
        return Reading(pa.list_(element.read), is_base64=element.is_base64)
    return Reading(pa.list_(element.read), partial(_in_lists, convert))


def _in_lists(convert: Convert, lists: pa.ListArray) -> pa.ListArray:
    return pa.ListArray.from_arrays(lists.offsets, convert(lists.values), mask=lists.is_null())
