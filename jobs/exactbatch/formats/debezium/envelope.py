"""Tell apart what a Debezium topic holds besides changes of rows, and group JSON events by the schema that Connect's
converter writes before each payload.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.connect.types_of_schema import ConnectType
from exactbatch.formats.json.blocks import is_enveloped_null

_OF_ENVELOPE: Final = {"op", "before", "after"}
_SHOWN: Final = 3  # fields in a reason
_CLOCKS: Final = {"ts_ms", "ts_us", "ts_ns"}
_ENVELOPE: Final = '{"before":'  # how Debezium's JSON begins
_MESSAGE: Final = r'"op"\s*:\s*"m"'
_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'
# An object whose first field is a schema or payload, in any spacing.
_WRAPPED: Final = r'^\s*\{\s*"(?:schema|payload)"\s*:'
# Values are searched for this number of schemas at once; values with further ones are parsed one by one.
_MOST_HEADS: Final = 32


def unwrap_event(value: bytes) -> dict[str, Any]:
    """Return the envelope of an event, bare or as a payload; empty for a value that is not an event."""
    try:
        event = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    if isinstance(event, dict) and isinstance(event.get("payload"), dict):
        event = event["payload"]
    return event if isinstance(event, dict) else {}


def find_table(event: dict[str, Any]) -> str:
    """Return the table of an event, with its schema or database if the event names one."""
    source = event.get("source")
    if not isinstance(source, dict) or not source.get("table"):
        return "the table"
    return ".".join(str(part) for part in (source.get("schema") or source.get("db"), source["table"]) if part)


def changes_nothing(event: dict[str, Any]) -> bool:
    """True for an event that tells of no row: a logical decoding message (op m), a heartbeat, the begin or end of a
    transaction, a schema change, and the envelope of a null, which is a tombstone.

    The shapes are those of Debezium's documentation: "message events", heartbeat.interval.ms, "Transaction metadata",
    and "Schema change topic".
    """
    if is_enveloped_null(event):
        return True
    if "op" in event:
        return event["op"] == "m" and isinstance(event.get("message"), dict)
    if is_heartbeat(event):
        return True
    if event.get("status") in ("BEGIN", "END"):
        return isinstance(event.get("id"), str)
    return isinstance(event.get("source"), dict) and ("ddl" in event or "tableChanges" in event)


def is_heartbeat(event: Mapping[str, Any]) -> bool:
    """True for what connectors write at intervals, which holds nothing but the time."""
    return "ts_ms" in event and event.keys() <= _CLOCKS


def change_nothing(values: pa.BinaryArray, payload: ConnectType | None) -> pa.BooleanArray:
    """Return true for events that carry no row; `payload` is their type, if they have a schema.

    An event in another spacing or order than Debezium's may be missed here.
    """
    suspect = _may_change_nothing(values, payload)
    if not pc.any(suspect, min_count=0).as_py():
        return suspect
    pairs = zip(suspect.to_pylist(), values, strict=True)
    return pa.array(
        [each and changes_nothing(unwrap_event(value.as_py())) for each, value in pairs], pa.bool_()
    )


def _may_change_nothing(values: pa.BinaryArray, payload: ConnectType | None) -> pa.BooleanArray:
    """Return false for events that carry a row; `payload` is their type, if they have a schema."""
    if payload is not None:
        return pa.repeat(pa.scalar(not is_envelope(payload)), len(values))
    suspect = pc.invert(pc.starts_with(values, _ENVELOPE))
    if not pc.any(suspect, min_count=0).as_py():
        return suspect
    has_op = pc.match_substring(values, '"op"')
    return pc.and_(suspect, pc.or_(pc.invert(has_op), pc.match_substring_regex(values, _MESSAGE)))


def is_envelope(payload: ConnectType) -> bool:
    """True for the type of events that carry a row."""
    return "op" in payload.fields and ("after" in payload.fields or "before" in payload.fields)


def truncated(event: dict[str, Any]) -> str | None:
    """Return the reason to reject a truncate; None for any other event."""
    if event.get("op") != "t":
        return None
    return (
        f"op 't': {find_table(event)} was truncated at its source, and the target keeps its rows. In an Upsert with a "
        f"version, Debezium(…, truncate='apply') deletes them when this offset is replayed. Otherwise delete them by "
        f"hand, or load the topic under a new pipeline name, and allow for this record with max_rejects; "
        f"skipped.operations=t, the connector's default, omits such events."
    )


def is_document(event: dict[str, Any]) -> str | None:
    """Return the reason to reject an event of MongoDB, whose images are documents in strings; None for others."""
    if not any(isinstance(event.get(image), str) for image in ("before", "after")):
        return None
    return (
        "the event holds a document of MongoDB as text that is not JSON or names a field twice, or in Avro. Let the "
        "connector write it with JsonConverter, or unwrap it with ExtractNewDocumentState and decode the values with "
        "Json or Avro"
    )


def no_envelope(event: dict[str, Any], names: Collection[str]) -> str | None:
    """Return the reason to reject what is no envelope of a change: a CloudEvent, or a flattened row that has the fields
    `names`; None for others."""
    if event.keys() & _OF_ENVELOPE:
        return None
    if "specversion" in event:
        return (
            "the value is a CloudEvent, whose data holds the event: let the connector write the event itself, with "
            "value.converter JsonConverter or AvroConverter in place of CloudEventsConverter"
        )
    added = sorted(name for name in event if name.startswith("__"))
    if added or event.keys() & names:
        found = ", ".join([*added, *sorted(event.keys() & names)][:_SHOWN])
        return (
            f"the event has no op, before or after, but {found}: it is flattened, as ExtractNewRecordState does. "
            f"Decode it with Flattened, or let the connector write the whole event"
        )
    return None


class _Wrapped(msgspec.Struct, gc=False):
    schema: msgspec.Raw = msgspec.Raw(b"null")
    payload: msgspec.Raw = msgspec.Raw(b"null")


_DECODER: Final = msgspec.json.Decoder(_Wrapped)


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events with the same schema, as its JSON text; None for events without one, whose values are unchanged.

    `values` are the payloads, and `at` their positions.
    """

    schema: bytes | None
    values: pa.BinaryArray
    at: pa.Int64Array


def by_schema(values: pa.BinaryArray, at: pa.Int64Array) -> Iterator[EventGroup]:
    """Yield the groups of events. `at` has the position of each value; no value is null.

    All values of a group start with the same bytes, up to their payload: only these are compared, and the schema is
    parsed once.
    """
    for _ in range(_MOST_HEADS):
        if not len(values):
            return
        first = values[0].as_py()
        schema = _cut_schema(first)
        if schema is None:
            break
        head = _SCHEMA + schema + _PAYLOAD
        matches = pc.and_(pc.starts_with(values, head), pc.ends_with(values, "}"))
        if not matches[0].as_py():
            break
        found = values.filter(matches)
        yield EventGroup(schema, pc.binary_slice(found, len(head), -1), at.filter(matches))
        rest = pc.invert(matches)
        values, at = values.filter(rest), at.filter(rest)
    is_wrapped = pc.match_substring_regex(values, _WRAPPED)
    bare = pc.invert(is_wrapped)
    if pc.any(bare).as_py():
        yield EventGroup(None, values.filter(bare), at.filter(bare))
    wrapped: dict[bytes | None, tuple[list[bytes], list[int]]] = {}
    values, at = values.filter(is_wrapped), at.filter(is_wrapped)
    for value, index in zip(values.to_pylist(), at.to_pylist(), strict=True):
        schema, payload = _split(value)
        payloads, indexes = wrapped.setdefault(schema, ([], []))
        payloads.append(payload)
        indexes.append(index)
    for schema, (payloads, indexes) in wrapped.items():
        yield EventGroup(schema, pa.array(payloads, pa.binary()), pa.array(indexes, pa.int64()))


def _cut_schema(value: bytes) -> bytes | None:
    return _split(value)[0] if value.startswith(_SCHEMA) else None


def _split(value: bytes) -> tuple[bytes | None, bytes]:
    """Return the schema and the payload; no schema and the value itself if it is anything else."""
    try:
        wrapped = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, value
    schema = bytes(wrapped.schema)
    payload = bytes(wrapped.payload)
    return (schema, payload) if schema.startswith(b"{") and payload.startswith(b"{") else (None, value)
