"""Choose how to read the columns of a row from Debezium's events, by the schema of their envelope."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from exactbatch.columns import Column, Field
from exactbatch.formats.connect.readings import Reading, find_reading, plain
from exactbatch.formats.connect.types_of_schema import ConnectType, from_json
from exactbatch.formats.debezium.avro_events import AvroEvents
from exactbatch.formats.declared_fields import BinaryText

_MOST_READINGS: Final = 1024  # of schemas that a process keeps
# What finds the types of rows in the type of an event.
RowTypes = Callable[[ConnectType], Sequence[ConnectType]]


def is_bytea(column: Column) -> bool:
    return (column.element or column.type) == "bytea"


@lru_cache(maxsize=_MOST_READINGS)
def readings_by_type(
    events: AvroEvents, rows: RowTypes, fields: tuple[Field, ...], binary: BinaryText | None
) -> Mapping[str, Reading]:
    return _written_readings(fields, rows(events.payload), binary)


@lru_cache(maxsize=_MOST_READINGS)
def readings_by(
    schema: bytes, rows: RowTypes, fields: tuple[Field, ...], binary: BinaryText | None
) -> Mapping[str, Reading]:
    """Return how columns are read from events with a schema; raise ValueError if a field does not suit its column."""
    return _written_readings(fields, rows(from_json(schema)), binary)


def find_images(payload: ConnectType) -> Sequence[ConnectType]:
    """Return the types of the rows in an envelope."""
    return [image for name in ("after", "before") if (image := payload.field(name)) is not None]


def _written_readings(
    fields: Sequence[Field], rows: Sequence[ConnectType], binary: BinaryText | None
) -> Mapping[str, Reading]:
    names = {each.column: str(each.own_member) for each in fields}
    return find_readings(fields, lambda column: _written_reading(column, names[column], rows, binary))


def find_readings(fields: Sequence[Field], reading: Callable[[Column], Reading]) -> Mapping[str, Reading]:
    """Return how columns are read, by their names; errors name the column."""
    readings = {}
    for column in (each.column for each in fields):
        try:
            readings[column.name] = reading(column)
        except ValueError as error:
            raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None
    return readings


def _written_reading(
    column: Column, name: str, rows: Sequence[ConnectType], binary: BinaryText | None
) -> Reading:
    """Return how a column is read from a field of rows of some types; a field that they lack is null.

    Raises ValueError for a field that does not suit the column, and for bytes in text whose encoding is not declared.
    """
    written = next((row.field(name) for row in rows), None)
    if written is None:
        return plain(column)
    if (
        is_bytea(column)
        and binary is None
        and "string" in (written.type, written.element and written.element.type)
    ):
        raise ValueError(
            "the connector writes bytes as text, in an encoding that the event does not say: declare binary='base64', "
            "'base64-url-safe' or 'hex', the connector's binary.handling.mode"
        )
    return find_reading(column, written)
