"""Change events that are rows: as those of Debezium, but for where the row is, and how an event says what happened.

What they say is read into the arrays that Debezium has for envelopes: the operation, and the row.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.connect.readings import Reading
from exactbatch.formats.connect.types_of_schema import ConnectType
from exactbatch.formats.debezium.avro_events import build_array, read_as
from exactbatch.formats.debezium.decoder import NOTHING, DebeziumDecoder
from exactbatch.formats.debezium.envelope import is_envelope, is_heartbeat
from exactbatch.formats.debezium.images import DELETE, UPDATE, Images, of_json_text, raw_fields
from exactbatch.formats.debezium.refused_events import PartsOf, split_flattened
from exactbatch.formats.debezium.row_readings import RowTypes
from exactbatch.formats.debezium.spec import DELETED, OP
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.json.blocks import read_objects
from exactbatch.formats.json.raw_fields import fields_as_text
from exactbatch.formats.postgres_limits import refuse_infinity

_BOOLEAN: Final = rf'"{DELETED}"\s*:\s*(?:true|false)'
_INSERT: Final = "c"
_SOURCE: Final = r'"source"\s*:\s*\{'
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


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Events, and the JSON of those that may be no rows at all."""

    images: Images
    suspects: pa.StringArray


def json_rows(text: pa.StringArray, readings: Mapping[str, Reading]) -> JsonRows:
    """Read events that are JSON objects. Raises ValueError for text that is none, and for a field of another type."""
    raw = raw_fields(text, readings)
    types = {name: reading.read for name, reading in readings.items() if name not in raw}
    read, deleted = _read(text, types)
    raw_columns = (Column("field", "jsonb"),) * len(raw)
    texts = dict(zip(raw, fields_as_text(text, raw_columns, tuple(raw)), strict=True)) if raw else {}

    def column(name: str, _deleted: pa.BooleanArray) -> pa.Array:
        if name in texts:
            return of_json_text(readings[name], texts[name])
        values = read.column(name)
        refuse_infinity(values)
        return values

    suspect = pc.match_substring_regex(text, _SOURCE)
    lacking = pa.repeat(pa.scalar(True), len(text))
    for values in (*texts.values(), *(read.column(name) for name in types)):
        lacking = pc.and_(lacking, values.is_null())
        if not lacking.true_count:
            break
    images = _images(operations(deleted, read.column(OP).cast(pa.string())), column)
    return JsonRows(images, text.filter(pc.or_(suspect, lacking)))


def _read(text: pa.StringArray, types: Mapping[str, pa.DataType]) -> tuple[pa.RecordBatch, pa.Array]:
    """Return fields of events, among them `__op`, and `__deleted`, which is text or boolean in all of them."""

    def read(type_of_deleted: pa.DataType) -> tuple[pa.RecordBatch, pa.Array]:
        fields = {OP: pa.string(), **types, DELETED: type_of_deleted}
        batch = read_objects(text, pa.schema(list(fields.items()))).combine_chunks().to_batches()[0]
        return batch, batch.column(DELETED)

    try:
        return read(pa.string())
    except ValueError:
        if not pc.any(pc.match_substring_regex(text, _BOOLEAN)).as_py():
            raise
    return read(pa.bool_())


def avro_rows(events: Sequence[Mapping[str, Any]], readings: Mapping[str, Reading]) -> Images:
    """Return what events say, in the arrays that JSON would give. Raises ValueError for a field of another type."""
    written = [event.get(DELETED) for event in events]
    is_boolean = any(isinstance(each, bool) for each in written)

    def column(name: str, _deleted: pa.BooleanArray) -> pa.Array:
        return read_as(readings[name], [event.get(name) for event in events])

    deleted = build_array(written, pa.bool_() if is_boolean else pa.string())
    op = build_array([event.get(OP) for event in events], pa.string())
    return _images(operations(deleted, op), column)


def operations(deleted: pa.Array, op: pa.StringArray) -> pa.StringArray:
    """Return what happened to each row, as `op` of an envelope says it, from `__deleted` and `__op`, which may be null.

    Without `__op`, an event with `__deleted` counts as an update, whose values may have been left out: deletes arrive,
    so that no value of an earlier row of the key can be taken for its own. Any other event counts as an insert.

    Raises ValueError for text that is neither true nor false, and if the two contradict each other.
    """
    if pa.types.is_string(deleted.type):
        known = pc.or_kleene(pc.is_in(deleted, pa.array(["true", "false"])), deleted.is_null())
        if not pc.all(known, min_count=0).as_py():
            wrong = deleted.filter(pc.invert(known))[0].as_py()
            raise ValueError(f"{DELETED}: expected true or false, found {wrong!r}")
        deleted = pc.equal(deleted, "true")
    contradicts = pc.not_equal(deleted, pc.equal(op, DELETE))  # null if one of them is missing
    if pc.any(contradicts, min_count=0).as_py():
        at = pc.indices_nonzero(contradicts)[0].as_py()
        raise ValueError(f"{DELETED} is {str(deleted[at]).lower()}, and {OP} is {op[at].as_py()!r}")
    unknown = pc.if_else(deleted.is_valid(), UPDATE, _INSERT)
    return pc.if_else(pc.fill_null(deleted, False), DELETE, pc.coalesce(op, unknown))


def _images(op: pa.StringArray, column: Callable[[str, pa.BooleanArray], pa.Array]) -> Images:
    def has(_image: str) -> pa.BooleanArray:
        return pa.repeat(pa.scalar(True), len(op))

    def source(_name: str) -> pa.Array:
        return pa.nulls(len(op))

    return Images(op, has, column, source)


class FlattenedDecoder(DebeziumDecoder):
    """Decodes rows that are events."""

    def decode_with_unavailable(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, as decode() does, and say which columns an event lacks."""
        written_nulls = None if self.spec.registry else _written_nulls(values)
        if written_nulls is None:
            return super().decode_with_unavailable(values)
        nothing = pa.scalar(None, values.type)
        decoded = super().decode_with_unavailable(pc.if_else(written_nulls, nothing, values))
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

    def _describe_unavailable(self, event: dict[str, Any], column: str) -> str:
        names = {"schema": event.get("__schema"), "db": event.get("__db"), "table": event.get("__table")}
        reason = super()._describe_unavailable({"source": names}, column)
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
