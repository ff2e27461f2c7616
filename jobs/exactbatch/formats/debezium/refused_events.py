"""Find the reasons why Debezium's JSON events are refused, for many at once.

Python's parser reads them, and finds those in which a field does not have the type that its column reads. What the
column makes of the value is left to Arrow, for the values of all events together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from exactbatch.columns import Column
from exactbatch.formats.connect.readings import Reading, plain
from exactbatch.formats.debezium.commit_positions import CommitPosition, version_columns
from exactbatch.formats.debezium.declared import why_ambiguous
from exactbatch.formats.debezium.images import DELETE, WRITES
from exactbatch.formats.debezium.positions import source_types
from exactbatch.formats.debezium.spec import DELETED, OP
from exactbatch.formats.json.refused_objects import (
    ObjectMembers,
    check_float,
    check_integer,
    check_kind,
    find_check,
    parse_object,
)
from exactbatch.formats.not_finite import NOT_FINITE, has_floats
from exactbatch.formats.postgres_limits import NUL

_EMPTY: Final = ObjectMembers(())


@dataclass(frozen=True, slots=True)
class Parts:
    """A parsed event.

    event   what it says, as Avro would give it, but without the values of its row
    values  of its row in `event`, which are still to be added
    row     what the event is about
    other   the other image of the row, which Arrow parses as well, but nothing looks at
    """

    event: dict[str, Any]
    values: dict[str, Any]
    row: ObjectMembers
    other: ObjectMembers


# Returns the parts of a parsed object, or why it surely is no event; None if Arrow has to decide.
PartsOf = Callable[[ObjectMembers], Parts | str | None]


@dataclass(frozen=True, slots=True)
class _Field:
    """The field that a column takes.

    `check` says why the column refuses a value that was read; None if the column makes something else of it.
    """

    name: str
    column: Column
    reading: Reading
    check: Callable[[Any], str | None] | None


class RefusedEvents:
    """Finds the events that some columns refuse."""

    def __init__(
        self,
        columns: Sequence[Column],
        names: Mapping[str, str],
        readings: Mapping[str, Reading],
        split_parts: PartsOf,
        placeholders: Sequence[str],
        *,
        may_be_base64: bool,
    ) -> None:
        """`names` has the field that each column takes. `placeholders` are the texts for a value that was left out, and
        decimals in text `may_be_base64`."""
        self._fields = [
            _Field(
                names[column.name],
                column,
                reading := readings[column.name],
                find_check(column, {}) if reading == plain(column) else None,
            )
            for column in columns
        ]
        self._parts_of, self._placeholders, self._may_be_base64 = split_parts, placeholders, may_be_base64

    def examine(self, value: bytes) -> str | dict[str, Any] | None:
        """Return why an event is surely refused; or the event as Avro would give it, with the values that its columns
        may still refuse; None if Arrow has to decide."""
        parsed = parse_object(value)
        parts = self._parts_of(parsed) if isinstance(parsed, ObjectMembers) else parsed
        if not isinstance(parts, Parts):
            return parts
        may_be_base64 = (
            self._may_be_base64 and b"\\" not in value
        )  # where a name has escapes, nothing searches for it
        for each in self._fields:
            reason = self._why_refused(each, parts) or _why_other(each, parts.other)
            if may_be_base64:
                reason = reason or _why_ambiguous(each, parts.row)
            if reason is not None:
                return f"column {each.column.name!r}, {each.column.type}: {reason}"
        return parts.event

    def _why_refused(self, field: _Field, parts: Parts) -> str | None:
        """Return why a column surely refuses its field of a row.

        Adds a value to the event if the column makes something else of it, which may refuse it.
        """
        name, type_ = field.name, field.reading.read
        if name in parts.row.twice:
            return f"field {name!r} was specified twice"
        value = parts.row.get(name)
        if value is None or type_ is None or (has_floats(type_) and _may_be_not_finite(value)):
            return None
        if (reason := _why_unread(type_, value)) is not None:
            return reason
        if type(value) is str and (field.column.type == "bytea" or value in self._placeholders):
            parts.values[name] = value
        elif field.check is not None:
            reason = field.check(value)
            return None if reason == NUL and self._may_be_unavailable(value) else reason
        elif type(value) not in (list, ObjectMembers):
            parts.values[name] = _convert(type_, value)
        return None

    def _may_be_unavailable(self, value: Any) -> bool:
        written = [each for each in value if type(each) is str] if type(value) is list else [value]
        return any(text in each for text in self._placeholders for each in written)


def _may_be_not_finite(value: Any) -> bool:
    return any(each in NOT_FINITE for each in (value if type(value) is list else (value,)))


def _why_unread(type_: pa.DataType, value: Any) -> str | None:
    """Return why Arrow's reader surely refuses a value of a type."""
    if pa.types.is_integer(type_):
        return check_integer(type_, value)
    if pa.types.is_floating(type_):
        return check_float(type_.bit_width, value)
    if pa.types.is_string(type_):
        return check_kind("string", value)
    return check_kind("boolean", value) if pa.types.is_boolean(type_) else None


def _why_other(field: _Field, other: ObjectMembers) -> str | None:
    """Return why Arrow surely refuses a field of the other image."""
    if field.name in other.twice:
        return f"field {field.name!r} was specified twice"
    value, type_ = other.get(field.name), field.reading.read
    if value is None or type_ is None or pa.types.is_floating(type_):
        return None  # a float may be read as text, which nothing looks at
    return _why_unread(type_, value)


def _why_ambiguous(field: _Field, row: ObjectMembers) -> str | None:
    value = row.get(field.name)
    return why_ambiguous(value) if type(value) is str and field.column.type.startswith("numeric") else None


def _convert(type_: pa.DataType, value: Any) -> Any:
    """Return a value that is read as a type, as Avro would give it."""
    if pa.types.is_integer(type_):
        return int(value)
    return float(value) if pa.types.is_floating(type_) else value


def split_envelope(position: CommitPosition | None, source_columns: Mapping[str, Column]) -> PartsOf:
    """Return what finds the parts of an envelope, bare or as a payload; its source may hold a position, and fields that
    become columns."""
    columns = {name: version_columns(position)[0] for name in source_types(position)} if position else {}
    types = dict(source_types(position)) if position else {}
    types |= dict.fromkeys(source_columns, pa.string())
    columns |= source_columns
    kinds = {"op": "string", "before": "object", "after": "object"} | ({"source": "object"} if types else {})

    def split_parts(event: ObjectMembers) -> Parts | str | None:
        payload = event.get("payload")
        if payload is not None and (event.keys() & kinds or type(payload) is not ObjectMembers):
            return None if type(payload) is ObjectMembers else f"payload: {check_kind('object', payload)}"
        inner = event if payload is None else payload
        if (reason := _why_no_parts(inner, kinds)) is not None:
            return reason
        source = (inner.get("source") if types else None) or _EMPTY
        taken = {name: value for name in types if (value := source.get(name)) is not None}
        for name, value in taken.items():
            if (reason := _why_unread(types[name], value)) is not None:
                return f"column {columns[name].name!r}, {columns[name].type}: {reason}"
        op, values = inner.get("op"), dict[str, Any]()
        own, other = ("before", "after") if op == DELETE else ("after", "before")
        marks = {
            "op": op,
            "source": {name: _convert(types[name], value) for name, value in taken.items()},
            own: None if inner.get(own) is None else values,
            other: None if inner.get(other) is None else {},
        }
        if op not in (*WRITES, DELETE):
            return Parts(marks, values, _EMPTY, _EMPTY)
        return Parts(marks, values, inner.get(own) or _EMPTY, inner.get(other) or _EMPTY)

    return split_parts


def split_flattened(names: frozenset[str], no_field: Callable[[Mapping[str, Any]], str]) -> PartsOf:
    """Return what finds the parts of a flattened event; `no_field` says that it has none of the columns' fields."""

    def split_parts(event: ObjectMembers) -> Parts | str | None:
        if not event.keys() & names:
            return no_field(event)
        deleted = event.get(DELETED)
        kind = "string" if type(deleted) is not bool else "boolean"
        if (reason := _why_no_parts(event, {OP: "string", DELETED: kind})) is not None:
            return reason
        if type(event.get("source")) is ObjectMembers:
            return None  # it may be an envelope
        marks = {DELETED: deleted, OP: event.get(OP)}
        return Parts(marks, marks, event, _EMPTY)

    return split_parts


def _why_no_parts(event: ObjectMembers, kinds: Mapping[str, str]) -> str | None:
    """Return why an object is no event: a member is not of its kind, or occurs twice."""
    for name, kind in kinds.items():
        if name in event.twice:
            return f"Column(/{name}) was specified twice"
        value = event.get(name)
        if value is not None and (reason := check_kind(kind, value)) is not None:
            return f"{name}: {reason}"
    return None
