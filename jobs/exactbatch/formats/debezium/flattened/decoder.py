"""Change events that are rows: as those of Debezium, but for where the row is, and how an event says what happened."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.connect.readings import Reading
from exactbatch.formats.connect.types_of_schema import ConnectType
from exactbatch.formats.debezium.decoder import NOTHING, DebeziumDecoder
from exactbatch.formats.debezium.envelope import is_envelope, is_heartbeat
from exactbatch.formats.debezium.flattened.flat_images import avro_rows, json_rows
from exactbatch.formats.debezium.flattened.spec import DELETED, OP
from exactbatch.formats.debezium.images import Images
from exactbatch.formats.debezium.refused_events import PartsOf, split_flattened
from exactbatch.formats.debezium.row_readings import RowTypes
from exactbatch.formats.decoded import Decoded

_ENVELOPE: Final = (
    "the value is an envelope of Debezium, {before, after, op, source}, and not flattened: decode the topic with "
    "Debezium(…)"
)
# The connectors' own events, which the transformation passes on: heartbeats, transaction metadata, schema changes and
# logical decoding messages.
_OWN: Final = "io.debezium.connector."
# Two ways in which Connect's JSON converter writes a null that has a schema, as the transformation gives deletes.
_NULL: Final = b"null"
_NULL_PAYLOAD: Final = r'^\s*\{\s*"(?:schema|payload)".*\}\s*$'
_SUSPECT_PAYLOAD: Final = r'"payload"\s*:\s*null\s*[,}]'


class FlattenedDecoder(DebeziumDecoder):
    """Decodes rows that are events."""

    def decode_with_unchanged(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, as decode() does, and say which columns an event lacks."""
        written_nulls = None if self.spec.registry else _written_nulls(values)
        if written_nulls is None:
            return super().decode_with_unchanged(values)
        nothing = pa.scalar(None, values.type)
        decoded = super().decode_with_unchanged(pc.if_else(written_nulls, nothing, values))
        return replace(decoded, written_nulls=written_nulls)

    @property
    def _row_types(self) -> RowTypes:
        return _row_types

    def _check_payload(self, payload: ConnectType) -> None:
        if payload.name.startswith(_OWN):
            raise ValueError(NOTHING)
        if _is_envelope_type(payload):
            raise ValueError(_ENVELOPE)
        if not self._names & payload.fields.keys():
            raise ValueError(self._no_field(payload.fields))

    def _change_nothing(self, values: pa.BinaryArray, payload: ConnectType | None) -> pa.BooleanArray:
        is_nothing = payload is not None and payload.name.startswith(_OWN)
        if payload is not None and not is_nothing:
            self._check_payload(payload)
        return pa.repeat(pa.scalar(is_nothing), len(values))

    def _are_documents(self, values: pa.BinaryArray, _payload: ConnectType | None) -> pa.BooleanArray:
        return pa.repeat(pa.scalar(False), len(values))

    def _rows_in(self, event: dict[str, Any]) -> Sequence[Any]:
        return (event,)

    @cached_property
    def _parts_of(self) -> PartsOf:
        return split_flattened(self._names, self._no_field)

    def _take_row(self, event: dict[str, Any]) -> Any:
        return event

    def _why_no_row(self, event: dict[str, Any]) -> str | None:
        if not event:
            return None  # no object, or one without fields
        if is_heartbeat(event) and not self._names & event.keys():
            return NOTHING
        if _is_envelope(event):
            return _ENVELOPE
        return None if self._names & event.keys() else self._no_field(event)

    def _no_field(self, found: Mapping[str, Any]) -> str:
        fields = ", ".join(map(repr, list(found)[:5])) + (", …" if len(found) > 5 else "")
        return f"the event has none of the fields of the columns: it has {fields or 'none at all'}"

    def _json_images(
        self, text: pa.StringArray, readings: Mapping[str, Reading], _source: Mapping[str, pa.DataType]
    ) -> Images:
        images = json_rows(text, readings)
        for event in images.suspects.to_pylist():
            found = json.loads(event, parse_int=str, parse_float=str)
            if reason := self._why_no_row(found) if found else self._no_field(found):
                raise ValueError(reason)
        return images.images

    def _avro_images(
        self,
        events: Sequence[Mapping[str, Any]],
        readings: Mapping[str, Reading],
        _source: Mapping[str, pa.DataType],
    ) -> Images:
        return avro_rows(events, readings)

    def _marked_alike(self, event: Mapping[str, Any]) -> Hashable:
        return repr(event.get(DELETED)), repr(event.get(OP))

    def _describe_left_out(self, event: dict[str, Any], column: str) -> str:
        names = {"schema": event.get("__schema"), "db": event.get("__db"), "table": event.get("__table")}
        reason = super()._describe_left_out({"source": names}, column)
        if event.get(DELETED) is None and event.get("__op") is None:
            reason += (
                ", or add op to the connector's add.fields, so that an Upsert knows which events are updates"
            )
        return reason


def _row_types(payload: ConnectType) -> Sequence[ConnectType]:
    is_row = not payload.name.startswith(_OWN) and not _is_envelope_type(payload)
    return (payload,) if is_row else ()


def _is_envelope_type(payload: ConnectType) -> bool:
    """True for an envelope: a table may have columns op, before and after, but no column is a struct of this kind."""
    source = payload.field("source")
    return is_envelope(payload) and source is not None and source.type == "struct"


def _is_envelope(event: Mapping[str, Any]) -> bool:
    has_image = "before" in event or "after" in event
    return isinstance(event.get("op"), str) and isinstance(event.get("source"), dict) and has_image


def _written_nulls(values: pa.BinaryArray) -> pa.BooleanArray | None:
    """Return true for values that Connect's JSON converter wrote for a null with a schema; None if there are none."""
    is_null = pc.fill_null(pc.equal(values, _NULL), False)
    suspect = pc.and_(
        pc.match_substring_regex(values, _NULL_PAYLOAD), pc.match_substring_regex(values, _SUSPECT_PAYLOAD)
    )
    at = pc.indices_nonzero(pc.fill_null(suspect, False)).to_pylist()
    found = [index for index in at if _is_null_with_schema(values[index].as_py())]
    if found:
        is_null = pc.or_(is_null, pc.is_in(pa.array(range(len(values))), pa.array(found)))
    return is_null if is_null.true_count else None


def _is_null_with_schema(value: bytes) -> bool:
    try:
        written = json.loads(value)
    except (ValueError, RecursionError):
        return False
    if not isinstance(written, dict) or written.keys() != {"schema", "payload"}:
        return False
    return written["payload"] is None and isinstance(written["schema"], dict | None)
