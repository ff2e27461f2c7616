"""Avro bodies, one for each record, with a schema of the pipeline's own or of a schema registry."""

import io
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, cached_property
from math import isfinite
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.formats.avro_logical import InvalidAvro, register
from exactbatch.formats.avro_schema import AvroField, checked, fields_of
from exactbatch.formats.epoch import from_epoch
from exactbatch.formats.format import Decoded, decode_block_or_halves, decode_present, positions
from exactbatch.formats.json import stored_schema
from exactbatch.formats.postgres_limits import check_rows
from exactbatch.formats.raw_json_fields import json_texts
from exactbatch.formats.registry import writer_schema
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

# Confluent's wire format: a byte 0, the schema's id in 4 bytes, big-endian, then the body.
_MAGIC: Final = 0
_HEADER: Final = 5  # bytes
_TOKEN: Final = 16  # bytes
_VALUE: Final = "value"  # the field, and column, of a schema that is no record
_ENDS_ELSEWHERE: Final = (
    "expected an Avro body of the schema that ends with its last field, found that it does not"
)
_REASON_LENGTH: Final = 500  # characters


@dataclass(frozen=True)
class Avro:
    """Values are Avro bodies without a container.

    schema    their schema: JSON text, or the path of an .avsc file, which is read when the pipeline is made
    registry  instead, the address of a Confluent schema registry, as "http://host:8081": values then begin with
              byte 0 and the id of the schema that they were written with
    columns   the fields to take, as for Json; without it, all fields of the schema. A registry needs it

    A field has to fit its column; what a writer's schema lacks is null. Enums are text, arrays of simple types are
    arrays, records, maps and unions are jsonb. A schema that is no record is one column. What does not decode, has
    bytes left over, another first byte or an unknown schema id is a reject, and a null value a tombstone.

    Raises ConfigurationError for what is no schema, and columns that it does not have; decode() raises
    RegistryUnavailable where the registry does not answer.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True

    schema: str | PathLike[str] | None = None
    registry: str | None = field(default=None, kw_only=True)
    # Given as text, kept as columns.
    columns: Any = field(default=None, kw_only=True)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        if (self.schema is None) == (self.registry is None):
            raise ConfigurationError("expected Avro to be given a schema or a registry, found both or none")
        if "@" in urlsplit(self.registry or "").netloc:
            raise ConfigurationError(
                "expected the address of a schema registry without a user and password, which would stand in "
                "errors and pages. Set schema.registry.basic.auth.user.info in the Kafka connection instead."
            )
        if self.schema is None and self.columns is None:
            raise ConfigurationError(
                f"expected the columns to take from values with schemas of the registry {self.registry}, found "
                f'none: write them as columns="id bigint, name text"'
            )
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", parse_columns(self.columns))
        if self.schema is None:
            return
        schema = _schema_text(self.schema)
        object.__setattr__(self, "schema", schema)
        fields = _fields(_parse(schema), self.columns)
        if self.columns is None:
            columns = tuple(Column(each.name, each.type) for each in fields)
            object.__setattr__(self, "columns", columns)
        found = {each.name for each in fields}
        if missing := [column.name for column in self.columns if column.name not in found]:
            raise ConfigurationError(
                f"expected columns that are fields of the schema, {', '.join(sorted(found))}, found "
                f"{', '.join(map(repr, missing))}"
            )
        try:
            _body_of(schema, self.columns)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block for each schema that they are written with."""
        if self.registry is None:
            return decode_present(values, _body_of(str(self.schema), self.columns).decode)
        return self._decode_with_ids(values)

    def _decode_with_ids(self, values: "pa.BinaryArray") -> Decoded:
        import pyarrow as pa
        import pyarrow.compute as pc

        present = positions(values).filter(values.is_valid())
        written = values.drop_null()
        headers = pc.binary_slice(written, 0, _HEADER)
        empty = pa.RecordBatch.from_pylist([], stored_schema(self.columns))
        parts, rejects = [Decoded(empty, present[:0])], []
        for header in headers.unique().to_pylist():
            its = pc.equal(headers, pa.scalar(header, pa.binary()))
            body = self._body_after(header)
            if isinstance(body, str):
                rejects += [(index, body) for index in present.filter(its).to_pylist()]
            else:
                parts.append(decode_block_or_halves(written.filter(its), present.filter(its), body.decode))
        kept = pa.concat_arrays([each.kept for each in parts])
        rows = pa.concat_batches([each.rows for each in parts])
        rejects += [reject for each in parts for reject in each.rejects]
        if len(parts) > 2:  # of several schemas: in the order of their values again
            order = pc.sort_indices(kept)
            kept, rows = kept.take(order), rows.take(order)
        return Decoded(rows, kept, tuple(sorted(rejects)), values.null_count)

    def _body_after(self, header: bytes) -> "_Body | str":
        """What decodes the bodies after a header, or the reason why there is none."""
        if len(header) < _HEADER or header[0] != _MAGIC:
            return f"expected byte 0 and the 4 bytes of a schema id, found {header.hex(' ') or 'nothing'}"
        schema_id = int.from_bytes(header[1:], "big")
        schema = writer_schema(str(self.registry), schema_id, self.properties)
        if schema is None:
            return f"expected the id of a schema that the registry has, found {schema_id}"
        try:
            return _body_of(schema, self.columns, header=_HEADER)
        except ValueError as error:
            return f"schema {schema_id}: {error}"


class _Body:
    """Decodes bodies of one schema, each after a header of so many bytes.

    A body says neither where it ends nor how long it is. So all of them are decoded at once, as an Avro array of
    bodies, each with a token after it that no body can know: where every token is found in its place, every body
    ended with its last field.
    """

    def __init__(self, schema: str, columns: tuple[Column, ...], header: int) -> None:
        self._columns = columns
        parsed = _parse(schema)
        self._is_record = _is_record(parsed)
        fields = {each.name: each for each in _fields(parsed, columns)}
        self._fields = [fields.get(column.name) for column in columns]
        for column, its in zip(columns, self._fields, strict=True):
            if its is not None and not its.fits(column):
                raise ValueError(
                    f"column {column.name!r}, {column.type}: expected a field whose values fit, found {its.type}"
                )
        self._header = header
        self._value = _value_of(parsed, fields.values())
        self._schema = _array_of(self._value, header)

    def decode(self, bodies: "pa.BinaryArray") -> "pa.RecordBatch":
        """One row for each body, or ValueError."""
        import pyarrow as pa

        if len(bodies) == 0:
            return pa.RecordBatch.from_pylist([], stored_schema(self._columns))
        values = self._decode(bodies)
        arrays = []
        for column, its in zip(self._columns, self._fields, strict=True):
            if its is None:
                arrays.append(pa.nulls(len(values), column.arrow_type))
                continue
            found = list(map(itemgetter(its.name), values)) if self._is_record else values
            try:
                arrays.append(_array(column, its, found))
            except (ValueError, TypeError, OverflowError) as error:
                what = _decimal_in_words(column, found[0]) or str(error)[:_REASON_LENGTH]
                raise ValueError(f"column {column.name!r}, {column.type}: {what}") from None
        rows = pa.RecordBatch.from_arrays(arrays, schema=stored_schema(self._columns))
        check_rows(rows, self._columns)
        return rows

    def _decode(self, bodies: "pa.BinaryArray") -> list[Any]:
        import fastavro
        import pyarrow as pa
        import pyarrow.compute as pc

        # A single one stands between the ends of the block; the same token each time gives the same reason.
        token = secrets.token_bytes(_TOKEN) if len(bodies) > 1 else bytes(_TOKEN)
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(bodies)], bodies), token)[0].as_buffer()
        block = b"".join((_long(len(bodies)), memoryview(joined), token, _long(0)))
        stream = io.BytesIO(block)
        try:
            found: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except EOFError:
            raise ValueError(_ENDS_ELSEWHERE) from None
        except MemoryError:
            raise
        except Exception:  # fastavro says of broken bytes whatever it meets first
            raise ValueError(self._reason(bodies[0].as_py()) if len(bodies) == 1 else "") from None
        tokens = list(map(itemgetter("token"), found))
        if tokens != [token] * len(bodies) or stream.tell() != len(block):
            raise ValueError(_ENDS_ELSEWHERE)
        return list(map(itemgetter("value"), found))

    def _reason(self, body: bytes) -> str:
        """Why a body is refused, and for which field: the last one of the fewest that do not decode."""
        import fastavro

        types = {column.name: column.type for column in self._columns}
        for name, schema in self._first_fields:
            try:
                fastavro.schemaless_reader(io.BytesIO(body[self._header :]), schema, None)
            except MemoryError:
                raise
            except Exception as error:
                what = f"column {name!r}, {types[name]}" if name in types else f"field {name!r}"
                return f"{what}: {_in_words(error)}"
        return _ENDS_ELSEWHERE

    @cached_property
    def _first_fields(self) -> list[tuple[str, Any]]:
        """Of each field of a record its name, and the schema of the record that ends with it."""
        import fastavro

        if not self._is_record:
            return [(self._columns[0].name, fastavro.parse_schema(self._value))]
        fields = self._value["fields"]
        return [
            (field["name"], fastavro.parse_schema({**self._value, "fields": fields[: index + 1]}))
            for index, field in enumerate(fields)
        ]


def _in_words(error: Exception) -> str:
    match error:
        case InvalidAvro():
            return str(error)
        case EOFError():
            return "expected a value of the schema, found the end of the body"
        case UnicodeDecodeError():
            return "expected text in UTF-8, found other bytes"
        case IndexError():
            return (
                "expected the number of a symbol of its enum or a branch of its union, found another number"
            )
        case _:
            return f"expected a value of the schema, found none: {str(error)[:_REASON_LENGTH]}"


def _decimal_in_words(column: Column, found: Any) -> str | None:
    """Why a decimal does not fit its column, which Arrow says without the decimal; None for other values."""
    import pyarrow as pa

    type_ = column.arrow_type
    if not (pa.types.is_decimal(type_) and isinstance(found, Decimal)):
        return None
    room = type_.precision - type_.scale
    return f"expected at most {room} digits before the point and {type_.scale} after it, found {found:f}"


@cache
def _body_of(schema: str, columns: tuple[Column, ...], *, header: int = 0) -> _Body:
    return _Body(schema, columns, header)


def _schema_text(schema: str | PathLike[str]) -> str:
    """A schema as JSON text, which may stand in a file."""
    if isinstance(schema, str) and schema.lstrip().startswith(("{", "[", '"')):
        return schema
    try:
        return Path(schema).read_text()
    except OSError as error:
        raise ConfigurationError(
            f"expected an Avro schema as JSON text or the path of an .avsc file, found {str(schema)!r}: "
            f"{error.strerror}"
        ) from None


def _parse(schema: str) -> Any:
    """The schema with full names everywhere."""
    import fastavro

    try:
        parsed = fastavro.parse_schema(json.loads(schema))
    except Exception as error:  # fastavro's errors of a schema have no common base
        raise ConfigurationError(
            f"expected an Avro schema, found {schema[:_REASON_LENGTH]!r}: {type(error).__name__}: {error}"
        ) from None
    # What fastavro keeps for itself would be taken for a part of the schema around it.
    return {k: v for k, v in parsed.items() if not k.startswith("__")} if isinstance(parsed, dict) else parsed


def _is_record(parsed: Any) -> bool:
    return isinstance(parsed, dict) and parsed["type"] == "record"


def _fields(parsed: Any, columns: Sequence[Column] | None) -> tuple[AvroField, ...]:
    """The fields of a record; a schema that is none is one field, named as the first column."""
    return fields_of(parsed, columns[0].name if columns else _VALUE)


def _value_of(parsed: Any, fields: Iterable[AvroField]) -> Any:
    """The schema by which fastavro decodes a body."""
    schemas = {each.name: each.schema for each in fields}
    if not _is_record(parsed):
        (value,) = schemas.values()
        return checked(value)
    return checked(
        {**parsed, "fields": [{**each, "type": schemas[each["name"]]} for each in parsed["fields"]]}
    )


def _array_of(value: Any, header: int) -> Any:
    """The schema of an array of bodies, each after a header of so many bytes and before a token."""
    import fastavro

    framed = [
        *([{"name": "header", "type": _fixed("ExactbatchHeader", header)}] if header else []),
        {"name": "value", "type": value},
        {"name": "token", "type": _fixed("ExactbatchToken", _TOKEN)},
    ]
    register()
    return fastavro.parse_schema(
        {"type": "array", "items": {"type": "record", "name": "ExactbatchBody", "fields": framed}}
    )


def _fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def _long(number: int) -> bytes:
    """A number of 0 or more as Avro writes a long: zigzag, 7 bits a byte, lowest first."""
    rest, written = number << 1, bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def _array(column: Column, field: AvroField, values: list[Any]) -> "pa.Array":
    """A column from what fastavro made of its field."""
    import msgspec
    import pyarrow as pa

    match field.reading:
        case "value":
            return pa.array(values, column.arrow_type)
        case "text":
            return pa.array([None if each is None else _as_text(each) for each in values], pa.string())
        case "json":
            encode = msgspec.json.Encoder(decimal_format="number").encode
            texts = list(map(encode, values))
            for value, text in zip(values, texts, strict=True):
                if b"null" in text:
                    _refuse_not_finite(value)
            return json_texts(pa.array(texts, pa.binary()))
        case unit if column.element is None:
            return from_epoch(pa.array(values, pa.int64()), unit, column.arrow_type)
        case unit:
            lists = pa.array(values, pa.list_(pa.int64()))
            elements = from_epoch(lists.values, unit, column.arrow_type.value_type)
            return pa.ListArray.from_arrays(lists.offsets, elements, mask=lists.is_null())


def _refuse_not_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, which JSON does not have and msgspec writes as null."""
    match value:
        case float() if not isfinite(value):
            raise ValueError(f"expected numbers that JSON has, found {value}")
        case dict():
            for each in value.values():
                _refuse_not_finite(each)
        case list():
            for each in value:
                _refuse_not_finite(each)


def _as_text(value: Any) -> str:
    """A time, a uuid or a decimal as Postgres reads it."""
    return format(value, "f") if isinstance(value, Decimal) else str(value)
