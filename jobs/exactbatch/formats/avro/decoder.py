"""Avro bodies, decoded in one block for each schema that they were written with."""

import io
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache, cached_property, partial
from operator import itemgetter
from typing import Any, Final

import fastavro
import pyarrow as pa

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.avro.bodies import ENDS_ELSEWHERE, Bodies, by_header, schema_after
from exactbatch.formats.avro.parsed_schema import VALUE, AvroField, InvalidAvro, checked, parse, write_json
from exactbatch.formats.avro.spec import Avro
from exactbatch.formats.bounds import TooLarge, check_names
from exactbatch.formats.connect.readings import Reading, convert_values, find_reading
from exactbatch.formats.connect.times import from_epoch
from exactbatch.formats.decimals import parse_decimals
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import (
    Decoder,
    decode_block_or_halves,
    decode_present,
    in_order,
    positions,
    refused_by,
)
from exactbatch.formats.json.blocks import stored_schema
from exactbatch.formats.postgres_limits import check_rows, find_unstorable
from exactbatch.formats.registry.schemas import Inquiry

_REASON_LENGTH: Final = 500  # characters
_SHOWN: Final = 200  # characters of a schema


class AvroDecoder(Decoder[Avro]):
    """Decodes Avro bodies."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, in one block for each schema that they were written with."""
        if self.spec.registry is None:
            body = _build_body(self.spec.text, self.spec.columns)
            return decode_present(values, body.decode, body.find_refused)
        return self._decode_with_ids(values)

    def _decode_with_ids(self, values: pa.BinaryArray) -> Decoded:
        present = positions(values).filter(values.is_valid())
        empty = pa.RecordBatch.from_pylist([], stored_schema(self.spec.columns))
        parts, inquiry = [Decoded(empty, present[:0])], Inquiry()
        for header, bodies, at in by_header(values.drop_null(), present):
            try:
                body = self._body_after(header, inquiry)
            except ValueError as error:
                refused = tuple((index, str(error)) for index in at.to_pylist())
                parts.append(Decoded(empty, at[:0], refused))
            else:
                parts.append(decode_block_or_halves(bodies, at, body.decode, body.find_refused))
        return in_order(parts, values.null_count)

    def _body_after(self, header: bytes, inquiry: Inquiry) -> "_Body":
        """Return the decoder of the bodies after a header, or raise ValueError with the reason to reject them."""
        schema_id, schema = schema_after(header, str(self.spec.registry), self.spec.properties, inquiry)
        try:
            return _build_body(
                schema, self.spec.columns, header=len(header), name_column=self.spec.schema_name
            )
        except ValueError as error:
            raise ValueError(f"schema {schema_id}: {error}") from None


def find_columns(schema: str, columns: tuple[Column, ...] | None) -> tuple[Column, ...]:
    """Return the columns to take from values of a schema: those given, or all of its fields.

    Raises ConfigurationError for an invalid schema, and for columns that it does not have or that do not fit.
    """
    try:
        _, fields = parse(schema, columns[0].name if columns else VALUE)
    except ValueError as error:
        raise ConfigurationError(f"Avro: {error}") from None
    if columns is None:
        columns = tuple(Column(field.name, field.type) for field in fields)
    names = {field.name for field in fields}
    if missing := [column.name for column in columns if column.name not in names]:
        raise ConfigurationError(
            f"columns {', '.join(map(repr, missing))} are not fields of the schema, which has "
            f"{', '.join(sorted(names))}"
        )
    try:
        _build_body(schema, columns)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return columns


class _Body:
    """Decodes bodies of one schema, each after a header of `header` bytes, into columns. One of them, the last, may
    have the name of the schema."""

    def __init__(
        self, schema: str, columns: tuple[Column, ...], header: int, name_column: str | None
    ) -> None:
        self._columns, self._name_column = columns, name_column
        parsed, own_fields = parse(schema, columns[0].name)
        self._is_record = _is_record(parsed)
        count = len(columns) - (name_column is not None)
        if not self._is_record and count > 1:
            raise ValueError(f"expected a record for {count} columns, found {own_fields[0].type}")
        self._name = parsed.get("name") if isinstance(parsed, dict) else None
        if name_column is not None:
            check_names([self._name or ""])
        fields = {field.name: field for field in own_fields}
        self._fields = [None if column.name == name_column else fields.get(column.name) for column in columns]
        self._readings: dict[Column, Reading] = {}
        for column, own in zip(columns, self._fields, strict=True):
            if own is None or own.fits(column):
                continue
            if own.connect is None or (column.element or column.type) in ("json", "jsonb"):
                raise ValueError(
                    f"column {column.name!r}, {column.type}: expected a field whose values fit, found {own.type}"
                )
            try:
                self._readings[column] = find_reading(column, own.connect)
            except ValueError as error:
                raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None
        self._header = header
        self._prefixes: dict[int, Any] = {}
        self._value = _find_value_schema(parsed, fields.values())
        self._bodies = Bodies(self._value, header, self._reason)

    def decode(self, bodies: pa.BinaryArray) -> pa.RecordBatch:
        """Return one row for each body, or raise ValueError."""
        if len(bodies) == 0:
            return pa.RecordBatch.from_pylist([], stored_schema(self._columns))
        values = self._bodies.decode(bodies)
        arrays = [self._array(number, values) for number in range(len(self._columns))]
        rows = pa.RecordBatch.from_arrays(arrays, schema=stored_schema(self._columns))
        check_rows(rows, self._columns)
        return rows

    def find_refused(self, bodies: pa.BinaryArray) -> Iterator[tuple[int, str]]:
        """Yield the index of each body that is refused, and why, as decode() says it of this body alone."""
        values: dict[int, Any] = {}
        for index, body in enumerate(bodies.to_pylist()):
            try:
                values[index] = self._bodies.decode_alone(body)
            except ValueError as error:
                yield index, str(error)
            except TooLarge:
                continue  # in halves
        numbers = range(len(self._columns))
        yield from refused_by([partial(self._array, number) for number in numbers], values)
        indexes, left = list(values), list(values.values())
        for number in numbers:
            found = find_unstorable(self._columns[number], self._array(number, left))
            yield from ((indexes[place], reason) for place, reason in found)

    def _array(self, number: int, values: Sequence[Any]) -> pa.Array:
        """Return a column, by its number, from decoded values; raise ValueError that names it."""
        column, own = self._columns[number], self._fields[number]
        if own is None:
            of_schema = self._name if column.name == self._name_column else None
            return pa.array([of_schema] * len(values), column.arrow_type)
        of_field = list(map(itemgetter(own.name), values)) if self._is_record else list(values)
        try:
            if reading := self._readings.get(column):
                return convert_values(reading, pa.array(of_field, reading.read))
            return _array(column, own, of_field)
        except (ValueError, TypeError, OverflowError) as error:
            reason = _decimal_reason(column, of_field[0]) or str(error)[:_REASON_LENGTH]
            raise ValueError(f"column {column.name!r}, {column.type}: {reason}") from None

    def _reason(self, body: bytes) -> str:
        """Return why a body is refused, and the first field that cannot be decoded."""

        @cache
        def error_at(number: int) -> Exception | None:
            try:
                fastavro.schemaless_reader(io.BytesIO(body), self._first_fields(number), None)
            except MemoryError:
                raise
            except Exception as error:
                return error
            return None

        body = body[self._header :]
        types = {column.name: column.type for column in self._columns}
        numbers = range(len(self._names))
        at = bisect_left(numbers, True, key=lambda number: error_at(number) is not None)
        if at == len(numbers):
            return ENDS_ELSEWHERE
        name, error = self._names[at], error_at(at)
        assert error is not None
        place = f"column {name!r}, {types[name]}" if name in types else f"field {name!r}"
        return f"{place}: {_reason_from(error)}"

    @cached_property
    def _names(self) -> list[str]:
        """The names of all fields; of the column, if a body is no record."""
        if not self._is_record:
            return [self._columns[0].name]
        return [field["name"] for field in self._value["fields"]]

    def _first_fields(self, number: int) -> Any:
        """Return the schema of the record up to one of its fields: kept for each field that was asked for, because the
        schemas of all fields together grow with the square of their number."""
        if number not in self._prefixes:
            value = self._value
            if self._is_record:
                value = {**value, "fields": value["fields"][: number + 1]}
            self._prefixes[number] = fastavro.parse_schema(value)
        return self._prefixes[number]


def _reason_from(error: Exception) -> str:
    match error:
        case InvalidAvro():
            return str(error)
        case EOFError():
            return "the body ends before this field does"
        case UnicodeDecodeError():
            return "expected text in UTF-8, found other bytes"
        case IndexError():
            return "the number of an enum's symbol or a union's branch is out of range"
        case _:
            return f"not a value of its schema: {str(error)[:_REASON_LENGTH]}"


def _decimal_reason(column: Column, value: Any) -> str | None:
    """Return why a number does not fit its decimal column; None for other values. Arrow's message lacks the number."""
    type_ = column.arrow_type
    if not (pa.types.is_decimal(type_) and isinstance(value, Decimal | int)):
        return None
    room = type_.precision - type_.scale
    return (
        f"expected at most {room} digits before the point and {type_.scale} after it, found {_as_text(value)}"
    )


@cache
def _build_body(
    schema: str, columns: tuple[Column, ...], *, header: int = 0, name_column: str | None = None
) -> _Body:
    try:
        return _Body(schema, columns, header, name_column)
    except RecursionError:
        raise ValueError(f"the schema nests too deep: {schema[:_SHOWN]!r}") from None


def _is_record(parsed: Any) -> bool:
    return isinstance(parsed, dict) and parsed["type"] == "record"


def _find_value_schema(parsed: Any, fields: Iterable[AvroField]) -> Any:
    """Return the schema by which fastavro decodes a body."""
    schemas = {field.name: field.schema for field in fields}
    if not _is_record(parsed):
        (value,) = schemas.values()
        return checked(value)
    return checked(
        {**parsed, "fields": [{**field, "type": schemas[field["name"]]} for field in parsed["fields"]]}
    )


def _array(column: Column, field: AvroField, values: list[Any]) -> pa.Array:
    """Return a column from the values that fastavro returned for its field."""
    is_text = column.staged_type in ("text", "text[]")
    match field.reading:
        case "value":
            written = map(_as_text, values) if is_text and field.is_exact_number else values
            return pa.array(written, column.arrow_type)
        case "text":
            texts = pa.array(map(_as_text, values), pa.string())
            if not pa.types.is_decimal(column.arrow_type):
                return texts
            return parse_decimals(pa.chunked_array([texts]), column.arrow_type).combine_chunks()
        case "json":
            return write_json(values, column.type)
        case unit if column.element is None:
            return from_epoch(pa.array(values, pa.int64()), unit, column.arrow_type)
        case unit:
            lists = pa.array(values, pa.list_(pa.int64()))
            elements = from_epoch(lists.values, unit, column.arrow_type.value_type)
            return pa.ListArray.from_arrays(lists.offsets, elements, mask=lists.is_null())


def _as_text(value: Any) -> Any:
    """Return a time, a uuid, a number, or each of a list, as text that Postgres reads; None is None."""
    match value:
        case None:
            return None
        case list():
            return [_as_text(element) for element in value]
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)
