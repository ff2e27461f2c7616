"""MongoDB's events: `before` and `after` are documents as text, with values in MongoDB's extended JSON.

The connector writes the strict mode of version 1, such as {"$numberLong": "5"} and {"$date": 1514764800000}; version 2
has the same names.
"""

import base64
import json
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column, Field
from exactbatch.formats.connect.readings import Reading
from exactbatch.formats.connect.types_of_schema import ConnectType
from exactbatch.formats.debezium.declared import declared_reading
from exactbatch.formats.debezium.envelope import unwrap_event
from exactbatch.formats.json.raw_fields import refuse_escaped_nul

_IMAGES: Final = ("before", "after")
# How a document begins in JSON; inside of a string, its quotation marks have backslashes.
_BEGINS: Final = r'"(?:before|after)"\s*:\s*"\s*\{'
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_FINITE: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def document_reading(column: Column) -> Reading:
    """Return how a column takes a value of a document; raise ValueError if it cannot."""
    if _is_json(column):
        return Reading(None, refuse_escaped_nul if column.type == "jsonb" else None)
    return declared_reading(column, {}, None, "string")


def are_documents(values: pa.BinaryArray, payload: ConnectType | None) -> pa.BooleanArray:
    """Return true for events that are MongoDB's; `payload` is their type, if they have a schema."""
    if payload is not None:
        after = payload.field("after")
        return pa.repeat(pa.scalar(after is not None and after.type == "string"), len(values))
    suspect = pc.match_substring_regex(values, _BEGINS)
    if not pc.any(suspect, min_count=0).as_py():
        return suspect
    # A column of a table may be named before or after as well.
    pairs = zip(suspect.to_pylist(), values, strict=True)
    return pa.array(
        [each and _has_document(unwrap_event(value.as_py())) for each, value in pairs], pa.bool_()
    )


def _has_document(event: dict[str, Any]) -> bool:
    return any(isinstance(event.get(image), str) for image in _IMAGES)


def _is_json(column: Column) -> bool:
    return column.type.removesuffix("[]") in ("json", "jsonb")


def with_rows(values: pa.BinaryArray, fields: Sequence[Field]) -> pa.BinaryArray:
    """Return events of MongoDB as events of a table, whose columns are the fields of a document.

    A value in extended JSON becomes one of JSON: numbers, dates as ISO text, object IDs and UUIDs as text, bytes as
    base64. Objects stay as they are, and so do values that no JSON can hold, those of json columns, fields that are no
    columns, and events that are not MongoDB's.
    """
    names = {each.own_member for each in fields if not _is_json(each.column)}
    return pa.array([_with_row(value.as_py(), names) for value in values], pa.binary())


def _with_row(value: bytes, names: Collection[str | None]) -> bytes:
    try:
        event = json.loads(value, object_pairs_hook=_object)
        inner = event["payload"] if isinstance(event.get("payload"), dict) else event
        for image in _IMAGES:
            if isinstance(inner.get(image), str):
                document = json.loads(inner[image], object_pairs_hook=_object)
                inner[image] = {
                    name: _plain_or_as_sent(each) if name in names else each
                    for name, each in document.items()
                }
        return json.dumps(event, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return value  # which is refused as it is


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise ValueError for a name that occurs twice, as BSON allows: which value counts is open."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


def _plain_or_as_sent(value: Any) -> Any:
    """Return a value as JSON; a value that JSON cannot hold as it was sent, which no column takes."""
    try:
        plain = _plain(value)
        json.dumps(plain, allow_nan=False)
    except (ValueError, TypeError):
        return value
    return plain


def _plain(value: Any) -> Any:
    match value:
        case list():
            return [_plain(element) for element in value]
        case {"$oid": str(text), **rest} if not rest:
            return text
        case {"$numberInt": str(text), **rest} if not rest:
            return _integer(text, bits=32)
        case {"$numberLong": str(text), **rest} if not rest:
            return _integer(text, bits=64)
        case {"$numberDecimal": str(text), **rest} if not rest and _FINITE.fullmatch(text):
            return text
        case {"$numberDouble": str(text), **rest} if not rest:
            return float(text)
        case {"$date": moment, **rest} if not rest:
            return _moment(_plain(moment))
        case {"$uuid": str(text), **rest} if not rest:
            return text
        case {"$binary": str(text), "$type": str(), **rest} if not rest:
            return _bytes(text)
        case {"$binary": {"base64": str(text), "subType": str()}, **rest} if not rest:
            return _bytes(text)
        case _:
            return value


def _integer(text: str, *, bits: int) -> int:
    if _INTEGER.fullmatch(text) is None or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise ValueError(f"expected an integer of {bits} bits, found {text!r}")
    return int(text)


def _moment(moment: Any) -> str:
    """Return milliseconds since 1970, or ISO text, as ISO text; raise ValueError for a year beyond 1 to 9999."""
    if isinstance(moment, str):
        return moment
    try:
        return (
            (_EPOCH + timedelta(milliseconds=moment))
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except OverflowError:
        raise ValueError(f"expected a date of the years 1 to 9999, found {moment} ms") from None


def _bytes(text: str) -> str:
    return base64.b64encode(base64.b64decode(text, validate=True)).decode()
