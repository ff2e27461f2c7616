"""Columns for Debezium's change events, whole or flattened by ExtractNewRecordState, and their key.

The fields of Kafka Connect's schemas say what the values mean.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from exactbatch.columns import MAX_NAME_BYTES
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Debezium, Flattened
from exactbatch.formats.connect.types_of_schema import DECIMAL, ConnectType, from_json
from exactbatch.formats.debezium.row_readings import find_images
from exactbatch.formats.debezium.spec import DELETED, OP
from exactbatch.member_paths import Path
from exactbatch.sampling.column_names import OWN, column_name, split_words
from exactbatch.sampling.draft import Draft, DraftColumn, EventKey, list_epochs, schema_text
from exactbatch.sampling.value_types import (
    Choice,
    Number,
    Shape,
    choices_for,
    find_shape,
    has_decimals,
    is_bigint,
    parse_json,
)

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
PLACEHOLDER: Final = "__debezium_unavailable_value"
# Debezium cannot look up such a field in every type (formats/json/raw_fields.py), and no path names an empty one.
_UNFINDABLE: Final = re.compile(r'[\\"\x00-\x1f]')
_IMAGES: Final = ("before", "after")
_CHANGES: Final = ("c", "u", "d", "r")
_TRUNCATE: Final = "t"
_NAMES_OF_CONNECTORS: Final = {"postgresql": "postgres"}
_DAYS: Final = frozenset({"birthday", "birthdate", "date", "day", "dob"})
_MOST_DAYS: Final = 60_000  # since 1970: the year 2134
_MOST_DAYS_OF_A_YEAR: Final = 366
# The type of a value in MongoDB's extended JSON, by the only member of its object.
_EXTENDED: Final = {
    "$oid": ("text",),
    "$date": ("timestamptz",),
    "$numberLong": ("bigint", "numeric"),
    "$numberInt": ("bigint", "numeric"),
    "$numberDouble": ("double precision",),
    "$numberDecimal": ("numeric",),
    "$binary": ("bytea",),
}
# The name of a row's schema, after the name of its topic.
_ROW: Final = ".Value"


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


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """One event: its envelope, as parse_json() returns it, and its type if it has a schema."""

    envelope: dict[str, Any]
    type: ConnectType | None = None


def is_change(value: Any) -> bool:
    """True for the envelope of a change, bare or as the payload next to its schema."""
    envelope = find_envelope(value)
    return (
        isinstance(envelope, dict)
        and envelope.get("op") in (*_CHANGES, _TRUNCATE)
        and isinstance(envelope.get("source"), dict)
        and any(image in envelope for image in _IMAGES)
    )


def find_envelope(value: Any) -> Any:
    """Return what is next to a schema, or the value itself."""
    return value["payload"] if isinstance(value, dict) and value.keys() == {"schema", "payload"} else value


def draft_debezium(
    events: Sequence[ChangeEvent], *, registry: str | None = None, properties: Mapping[str, Any] | None = None
) -> Draft:
    """Return a draft of Debezium for events; some may change nothing."""
    changes = [event for event in events if is_change(event.envelope)]
    connector = _connector(changes)
    images = _images(changes)
    is_typed = all(event.type is not None for event in changes)
    documents = any(isinstance(event.envelope.get(name), str) for event in changes for name in _IMAGES)
    if documents:
        usable, notes = usable_columns(list(_of_documents(images)), [])
    else:
        types = [image for event in changes if event.type is not None for image in find_images(event.type)]
        usable, notes = columns_of_rows(images, types if is_typed else None)
    if not usable:
        raise ConfigurationError(
            f"none of the {len(events):,} sampled events of Debezium has a row with columns. Nothing was written. "
            f"Sample the topic again once it has changes, or sample more: --records."
        )
    options: dict[str, Any] = {"registry": registry, "properties": properties or {}}
    if not is_typed and has_decimals_in_text(images, usable):
        options["decimals"] = "string"

    def make(columns: Sequence[DraftColumn]) -> Debezium:
        return Debezium(schema_text(columns), epoch=list_epochs(columns), **options)

    label = f"change events of Debezium{f' from {connector}' if connector else ''}"
    label += ", as Avro" if registry else ", with their schemas" if is_typed else ", without schemas"
    key = ("_id",) if documents else None
    return Draft(label, named(usable), make, tuple(notes), EventKey(key))


def columns_of_rows(rows: Shape, types: Sequence[ConnectType] | None) -> tuple[list[DraftColumn], list[str]]:
    """Return columns for the fields of rows, by their types or, without a schema, by their values, and notes about
    what is left out."""
    if types is not None:
        return usable_columns(list(_of_types(types, rows)), [])
    notes = []
    found = list(_of_values(rows))
    columns = [column for column in found if not _is_object(column, rows)]
    if len(columns) < len(found):
        names = ", ".join(repr(column.name) for column in found if column not in columns)
        notes.append(f"left out, because a column takes objects and mixed values only with a schema: {names}")
    notes.append(
        "the events have no schema, so that the meaning of numbers follows from names and sizes: check the units "
        "of times (epoch) and decimals. With value.converter.schemas.enable=true, the connector says it itself"
    )
    return usable_columns(columns, notes)


def usable_columns(
    columns: Sequence[DraftColumn], notes: Sequence[str]
) -> tuple[list[DraftColumn], list[str]]:
    """Return the columns that a table can have, and the notes with one about the others."""
    usable = [column for column in columns if column.name and not _UNFINDABLE.search(column.name)]
    if left_out := [column.name for column in columns if column not in usable]:
        shown = ", ".join(map(repr, left_out))
        return usable, [*notes, f"left out, because a table cannot have such columns: {shown}"]
    return usable, list(notes)


def has_decimals_in_text(rows: Shape, columns: Sequence[DraftColumn]) -> bool:
    """True if a numeric column has decimals in text, as decimal.handling.mode=string writes them."""
    return any(has_decimals(_texts(rows, column)) and column.type == "numeric" for column in columns)


def json_events(values: Iterable[bytes]) -> list[ChangeEvent]:
    """Return the events of JSON values; others are left out."""
    events = []
    for value in values:
        try:
            parsed = parse_json(value)
        except ValueError:
            continue
        envelope = find_envelope(parsed)
        if isinstance(envelope, dict):
            events.append(ChangeEvent(envelope, _type_next_to(parsed, envelope)))
    return events


def _type_next_to(parsed: Any, envelope: Any) -> ConnectType | None:
    if parsed is envelope or not isinstance(parsed.get("schema"), dict):
        return None
    try:
        return from_json(json.dumps(parsed["schema"]).encode())
    except ValueError:
        return None


def _connector(changes: Sequence[ChangeEvent]) -> str | None:
    """Return the connector under the name that Debezium(version=…) has for it."""
    for event in changes:
        if isinstance(name := event.envelope["source"].get("connector"), str):
            return _NAMES_OF_CONNECTORS.get(name, name)
    return None


def _images(changes: Sequence[ChangeEvent]) -> Shape:
    """Return the shape of the rows before and after the changes, without values that the source left out."""
    rows = []
    for event in changes:
        image = event.envelope.get("before" if event.envelope["op"] == "d" else "after")
        if isinstance(image, str):
            image = _parsed(image)
        if isinstance(image, dict):
            rows.append({name: value for name, value in image.items() if value != PLACEHOLDER})
    return find_shape(rows)


def _parsed(document: str) -> Any:
    try:
        return parse_json(document)
    except ValueError:
        return None


def _of_types(types: Sequence[ConnectType], images: Shape) -> Iterable[DraftColumn]:
    """Yield columns for the fields of all rows."""
    fields: dict[str, list[ConnectType]] = {}
    for type_ in dict.fromkeys(types):
        for name, field in type_.fields.items():
            fields.setdefault(name, []).append(field)
    for name, written_as in fields.items():
        yield DraftColumn(name, list_choices(written_as), nulls=_nulls(images, name))


def _of_values(images: Shape) -> Iterable[DraftColumn]:
    """Yield columns for events without a schema, by the values of their rows."""
    for name, shape in images.members.items():
        choices = [
            replace(choice, type="timestamp") if choice.epoch else choice
            for choice in choices_for(shape, name)
            if choice.epoch != "s"  # no mode of a connector writes seconds
        ]
        if shape.kinds == {"number"}:
            # Connectors write integers of 64 bits and doubles; without a schema, they write other types as text.
            choices = [choice for choice in choices if choice.type not in ("numeric", "jsonb")]
            if not choices:
                choices = [Choice("bigint")] if all(map(_is_integer, shape.numbers)) else []
                choices.append(Choice("double precision"))
            if set(split_words(name)) & _DAYS and _are_days(shape.numbers):
                choices.insert(0, Choice("date", "d", "its name and size say days since 1970"))
        yield DraftColumn(name, tuple(choices), nulls=_nulls(images, name))


def _of_documents(images: Shape) -> Iterable[DraftColumn]:
    """Yield columns for documents of MongoDB, in its extended JSON."""
    for name, shape in images.members.items():
        types: Sequence[str] = ()
        if shape.kinds == {"object"} and len(shape.members) == 1:
            types = _EXTENDED.get(next(iter(shape.members)), ())
        choices = tuple(map(Choice, (*types, "jsonb"))) if types else choices_for(shape, "")
        yield DraftColumn(name, choices, nulls=_nulls(images, name))


def _is_integer(number: Number) -> bool:
    return number.removeprefix("-").isdecimal()


def _are_days(numbers: Sequence[Number]) -> bool:
    if not all(number.isdecimal() and is_bigint(number) for number in numbers):
        return False
    # The day of a month or of a year is a small number, and no date: as days since 1970, all would be in that year.
    return _MOST_DAYS_OF_A_YEAR < max(map(int, numbers)) <= _MOST_DAYS


def _nulls(images: Shape, name: str) -> int:
    shape = images.members.get(name)
    return images.objects if shape is None else images.objects - shape.count + shape.nulls


def _texts(images: Shape, column: DraftColumn) -> Sequence[str]:
    shape = images.members.get(column.name)
    return shape.texts if shape is not None else ()


def _is_object(column: DraftColumn, images: Shape) -> bool:
    """True for values that only jsonb would take, which Debezium writes as text."""
    return column.type == "jsonb" and not images.members[column.name].kinds <= {"text"}


def named(columns: Sequence[DraftColumn]) -> tuple[DraftColumn, ...]:
    """Return columns of other names for fields whose names a table cannot have, or has for something else."""
    taken = {column.name for column in columns}
    named = []
    for column in columns:
        if column.name in OWN or len(column.name.encode()) > MAX_NAME_BYTES:
            name = column_name(column.name, taken)
            taken.add(name)
            why = f"exactbatch or Postgres uses the name {column.name!r}, or it is too long"
            column = replace(column, name=name, path=Path(((column.name,),)), why=why)
        named.append(column)
    return tuple(named)


def is_flattened(event: ChangeEvent) -> bool:
    """True for a row with a field that the transformation adds, or with the schema that Debezium has for rows."""
    is_row = event.type is not None and event.type.type == "struct" and event.type.name.endswith(_ROW)
    return is_row or DELETED in event.envelope or OP in event.envelope


def draft_flattened(
    events: Sequence[ChangeEvent], *, registry: str | None = None, properties: Mapping[str, Any] | None = None
) -> Draft:
    """Return a draft of Flattened for events; most of them are flattened.

    Raises ConfigurationError if none of them has a field that a table can have.
    """
    rows = find_shape([_present(event.envelope) for event in events if is_flattened(event)])
    types = [event.type for event in events if is_flattened(event) and event.type is not None]
    is_typed = len(types) == rows.objects
    columns, notes = columns_of_rows(rows, types if is_typed else None)
    columns = [column for column in columns if column.name != DELETED]
    if not columns:
        raise ConfigurationError(
            f"none of the {len(events):,} sampled events has a field for a column. Nothing was written. Sample the "
            f"topic again once it has changes, or sample more: --records."
        )
    options: dict[str, Any] = {"registry": registry, "properties": properties or {}}
    if not is_typed and has_decimals_in_text(rows, columns):
        options["decimals"] = "string"

    def make(columns: Sequence[DraftColumn]) -> Flattened:
        return Flattened(schema_text(columns), epoch=list_epochs(columns), **options)

    kind = "as Avro" if registry else "with their schemas" if is_typed else "without schemas"
    label = f"change events of Debezium, flattened by ExtractNewRecordState, {kind}"
    return Draft(label, named(columns), make, tuple(notes), EventKey())


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value != PLACEHOLDER}
