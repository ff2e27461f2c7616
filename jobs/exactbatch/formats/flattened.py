"""The format Flattened: change events of Debezium that ExtractNewRecordState has flattened to rows.

What a row means, its types, values that were left out and all options, is Debezium's: only where the row is, and how an
event says what happened to it, differs.
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from exactbatch.errors import ConfigurationError
from exactbatch.formats.connect_schema import ConnectType
from exactbatch.formats.connect_values import Reading
from exactbatch.formats.debezium import NOTHING, Debezium
from exactbatch.formats.debezium_event import is_envelope, is_heartbeat
from exactbatch.formats.debezium_images import Images
from exactbatch.formats.debezium_readings import RowTypes
from exactbatch.formats.flattened_images import DELETED, OP, avro_rows, json_rows
from exactbatch.formats.format import Decoded
from exactbatch.formats.refused_events import RowsOf, rows_of_flattened
from exactbatch.formats.refused_json import find_each

if TYPE_CHECKING:
    import pyarrow as pa

_ENVELOPE: Final = (
    "the value is an envelope of Debezium, {before, after, op, source}, and not flattened: decode the topic with "
    "Debezium(…)"
)
# The connectors' own events, which the transformation passes on: heartbeats, transaction metadata, schema changes and
# logical decoding messages.
_OWN: Final = "io.debezium.connector."
_ADDED: Final = "__"  # the default of add.fields.prefix
# Two ways in which Connect's JSON converter writes a null that has a schema, as the transformation gives deletes.
_NULL: Final = b"null"
_NULL_PAYLOAD: Final = r'^\s*\{\s*"(?:schema|payload)".*\}\s*$'
_SUSPECT_PAYLOAD: Final = r'"payload"\s*:\s*null\s*[,}]'


@dataclass(frozen=True)
class Flattened(Debezium):
    """Values are change events of Debezium that its transformation ExtractNewRecordState has flattened: rows, as JSON
    with or without their schema, or as Avro with a registry.

    schema       the columns of the row, as for Debezium; also fields that add.fields adds, such as
                 `"op text from '__op'"`
    unavailable, binary, epoch, times, decimals, registry   as for Debezium

    The field `__deleted` says whether an event is a delete. A null value deletes the row of its key, which the
    pipeline's `key` decodes: `key=Flattened("id int")`. So does JSON's null, which Connect's JSON converter writes in
    the mode tombstone. A value that the source left out is taken for that of an update if `__op` says so or, without
    `__op`, if the event has `__deleted`, which shows that deletes arrive.

    The transformation drops truncates, and there is no version: the offset orders the changes of a key, which
    connectors write to one partition.

    Raises ConfigurationError for a column that takes `__deleted`, and what Debezium raises.
    """

    tombstone_deletes: ClassVar[bool] = True

    version: None = field(default=None, init=False, repr=False)
    truncate: Literal["reject"] = field(default="reject", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, own in self.field_names.items():
            if own == DELETED:
                raise ConfigurationError(
                    f"column {name!r}: Flattened makes deletes of the field {DELETED!r}, and no column. For a column "
                    f"that says what happened, add op to the connector's add.fields: \"{name} text from '__op'\"."
                )

    def decode_with_unchanged(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, as decode() does, and say which columns an event lacks."""
        import pyarrow as pa
        import pyarrow.compute as pc

        written_nulls = None if self.registry else _written_nulls(values)
        if written_nulls is None:
            return super().decode_with_unchanged(values)
        nothing = pa.scalar(None, values.type)
        decoded = super().decode_with_unchanged(pc.if_else(written_nulls, nothing, values))
        return replace(decoded, written_nulls=written_nulls)

    @property
    def unordered_columns(self) -> frozenset[str]:
        """The columns of fields that add.fields adds, such as `__lsn` and `__ts_ms`."""
        return frozenset(name for name, own in self.field_names.items() if own.startswith(_ADDED))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.field_names.values())

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

    def _change_nothing(self, values: "pa.BinaryArray", payload: ConnectType | None) -> "pa.BooleanArray":
        import pyarrow as pa

        is_nothing = payload is not None and payload.name.startswith(_OWN)
        if payload is not None and not is_nothing:
            self._check_payload(payload)
        return pa.repeat(pa.scalar(is_nothing), len(values))

    def _are_documents(self, values: "pa.BinaryArray", _payload: ConnectType | None) -> "pa.BooleanArray":
        import pyarrow as pa

        return pa.repeat(pa.scalar(False), len(values))

    def _rows_in(self, event: dict[str, Any]) -> Sequence[Any]:
        return (event,)

    @property
    def _rows_of(self) -> RowsOf:
        return rows_of_flattened(self._names)

    def _row_of(self, event: dict[str, Any]) -> Any:
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
        self, text: "pa.StringArray", readings: Mapping[str, Reading], _source: "Mapping[str, pa.DataType]"
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
        _source: "Mapping[str, pa.DataType]",
    ) -> Images:
        return avro_rows(events, readings)

    def _find_refused(
        self, readings: Mapping[str, Reading], has_schema: bool, values: "pa.BinaryArray"
    ) -> Iterator[tuple[int, str]]:
        yield from find_each(self._refused(readings, has_schema).reason, values)

    def _marked_alike(self, event: Mapping[str, Any]) -> Hashable:
        return repr(event.get(DELETED)), repr(event.get(OP))

    def _left_out_of(self, event: dict[str, Any], column: str) -> str:
        names = {"schema": event.get("__schema"), "db": event.get("__db"), "table": event.get("__table")}
        reason = super()._left_out_of({"source": names}, column)
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


def _written_nulls(values: "pa.BinaryArray") -> "pa.BooleanArray | None":
    """Return true for values that Connect's JSON converter wrote for a null with a schema; None if there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
