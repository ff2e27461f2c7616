"""The fields of Protobuf messages as values of columns: which fit, and how each is converted.

Descriptors are those that are declared; the messages are of the wide types of wire.py.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Final

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor import FieldDescriptor as F

from exactbatch.columns import Column, Field
from exactbatch.formats.protobuf.wire import build_check, is_map, narrow, narrow_message

_INTEGERS: Final = {"smallint": 16, "integer": 32, "bigint": 64}
_JSON: Final = ("json", "jsonb")
_TIMESTAMPS: Final = ("timestamp with time zone", "timestamp without time zone")
_TIMESTAMP: Final = "google.protobuf.Timestamp"
# timestamp.proto: from 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999999Z, in seconds since 1970.
_EARLIEST: Final = -62_135_596_800
_LATEST: Final = 253_402_300_799
_DURATION: Final = "google.protobuf.Duration"
_LONGEST: Final = 315_576_000_000  # seconds, by duration.proto
# Postgres reads each number of an ISO 8601 interval as a double: from 2^33 s on, microseconds beside it are rounded.
_READ_EXACTLY: Final = 2**33
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
Convert = Callable[[Any], Any]


class Missing(Exception):
    """A message type has no field that a path names."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a column takes its values from messages: step by step for each part of its path, and the conversion of what
    is there. Each step returns None for a field that is not set, or an element that is not there."""

    parts: tuple[tuple[Convert, ...], ...]
    convert: Convert


def find_way(message: Descriptor, field: Field, *, may_lack: bool) -> Way:
    """Return how a column takes its values from messages of a type.

    Raises ValueError if the field does not fit the column, and if the type has no such field. If it `may_lack` the
    field, its values are missing instead, in each element of the arrays that the type has.
    """
    at: Descriptor | FieldDescriptor = message
    is_element = False  # `at` is a field that is repeated, and its elements are meant
    parts: list[tuple[Convert, ...]] = []
    for number, steps in enumerate(field.path.parts):
        if number:
            is_element = _find_element(at, is_element, field)
        converts: list[Convert] = []
        for step in steps:
            if isinstance(step, int):
                is_element = _find_element(at, is_element, field)
                converts.append(partial(_element, step))
                continue
            try:
                at, is_element = _find_member(at, is_element, step, field), False
            except Missing as error:
                if not may_lack:
                    raise ValueError(str(error)) from None
                rest = len(field.path.parts) - number - 1
                return Way((*parts, (*converts, _nothing), *[()] * rest), _nothing)
            converts.append(_getter(at, field.column))
        parts.append(tuple(converts))
    if at is message:
        convert = _in_column(field.column, lambda whole: _message_json(whole, message))
    else:
        convert = _conversion(at, field.column, is_element=is_element)
    return Way(tuple(parts), convert)


def _nothing(_: Any) -> None:
    return None


def followed(nodes: list[Any], steps: Sequence[Convert]) -> list[Any]:
    """Return what some steps lead to; None stays None."""
    for step in steps:
        nodes = [None if node is None else step(node) for node in nodes]
    return nodes


def _find_member(at: Any, is_element: bool, name: str, field: Field) -> FieldDescriptor:
    message = getattr(at, "message_type", at)
    # An element is never an entry of a map, which is repeated as a whole.
    if message is None or (at is not message and at.is_repeated and not is_element):
        raise ValueError(
            f"column {field.column.name!r}, from '{field.path}': {name!r} is not in a single message"
        )
    if (member := message.fields_by_name.get(name)) is None:
        raise Missing(
            f"column {field.column.name!r}, from '{field.path}': {message.full_name} has no field {name!r}"
        )
    return member


def _find_element(at: Any, is_element: bool, field: Field) -> bool:
    if is_element or not getattr(at, "is_repeated", False) or is_map(at):
        raise ValueError(
            f"column {field.column.name!r}, from '{field.path}': [] and [n] need a repeated field"
        )
    return True


def _element(number: int, elements: Sequence[Any]) -> Any:
    return elements[number] if number < len(elements) else None


def _getter(field: FieldDescriptor, column: Column) -> Convert:
    name, has_no_presence = field.name, field.is_repeated or not field.has_presence
    check = _in_column(column, build_check(field))

    def get(message: Any) -> Any:
        check(message)
        return getattr(message, name) if has_no_presence or message.HasField(name) else None

    return get


def _in_column(column: Column, convert: Convert) -> Convert:
    """Return the conversion with errors that name the column."""

    def converted(value: Any) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None

    return converted


def _conversion(field: Any, column: Column, *, is_element: bool) -> Convert:
    """Return how a value of a field, or an element of it, becomes one of a column; raise ValueError if it cannot."""
    is_repeated = field.is_repeated and not is_element
    if column.element is not None:
        if not is_repeated or is_map(field):
            raise _misfit(field, column)
        element = _single(field, Column(column.name, column.element))
        return lambda values: list(map(element, values))
    if column.type in _JSON:
        return _in_column(column, _find_json_writer(field, is_repeated=is_repeated))
    if is_repeated:
        raise _misfit(field, column)
    return _single(field, column)


def _single(field: Any, column: Column) -> Convert:
    type_ = column.type
    is_text = column.staged_type == "text" and type_ not in _JSON
    if type_ in _JSON:
        return _in_column(column, _find_json_writer(field, is_repeated=False))
    if field.cpp_type in (F.CPPTYPE_INT32, F.CPPTYPE_INT64, F.CPPTYPE_UINT32, F.CPPTYPE_UINT64):
        return _narrowed(field, column, _integer(field, column))
    if field.cpp_type == F.CPPTYPE_ENUM:
        if type_ in _INTEGERS:
            return _narrowed(field, column, _integer(field, column))
        if is_text:
            # Of names with the same number the first counts, as in Protobuf's JSON mapping.
            names = {value.number: value.name for value in reversed(field.enum_type.values)}
            return lambda number: _find_name(names, number, column)
    if field.cpp_type == F.CPPTYPE_MESSAGE:
        return _well_known(field, column)
    fits = {
        F.CPPTYPE_BOOL: type_ == "boolean",
        F.CPPTYPE_FLOAT: type_ in ("real", "double precision"),
        F.CPPTYPE_DOUBLE: type_ == "double precision",
        F.CPPTYPE_STRING: type_ == "bytea" if field.type == F.TYPE_BYTES else is_text,
    }
    if not fits.get(field.cpp_type, False):
        raise _misfit(field, column)
    return _narrowed(field, column, _same)


def _same(value: Any) -> Any:
    return value


def _narrowed(field: Any, column: Column, convert: Convert) -> Convert:
    """Return the conversion of a wide field's value, which is checked to be one of the declared type."""
    if (declared := narrow(field)) is None:
        return convert
    checked = _in_column(column, declared)
    return lambda value: convert(checked(value))


def _integer(field: Any, column: Column) -> Convert:
    if (bits := _INTEGERS.get(column.type)) is not None:
        limit = 2 ** (bits - 1)

        def checked(number: int) -> int:
            if not -limit <= number < limit:
                raise ValueError(
                    f"column {column.name!r}, {column.type}: expected an integer of its range, found {number}"
                )
            return number

        return checked
    if column.type == "numeric":
        return str
    if column.type.startswith("numeric"):
        return str if column.staged_type == "text" else Decimal
    raise _misfit(field, column)


def _find_name(names: dict[int, str], number: int, column: Column) -> str:
    if (name := names.get(number)) is None:
        raise ValueError(f"column {column.name!r}, {column.type}: the enum has no name for {number}")
    return name


def _well_known(field: Any, column: Column) -> Convert:
    name = field.message_type.full_name
    checks = [_in_column(column, build_check(each)) for each in field.message_type.fields]

    def parsed(message: Any) -> Any:
        for check in checks:
            check(message)
        return message

    if name in _WRAPPERS:
        inner = _single(field.message_type.fields_by_name["value"], column)
        return lambda wrapper: inner(parsed(wrapper).value)
    if name == _TIMESTAMP and column.type in _TIMESTAMPS:
        return lambda time: _microseconds(parsed(time), column)
    if name == _DURATION and column.type in ("interval", "numeric"):
        return lambda duration: _seconds(parsed(duration), column)
    raise _misfit(field, column)


def _microseconds(time: Any, column: Column) -> int:
    if not 0 <= time.nanos < 10**9:
        raise ValueError(f"column {column.name!r}, {column.type}: the Timestamp has {time.nanos} nanos")
    if not _EARLIEST <= time.seconds <= _LATEST:
        raise ValueError(
            f"column {column.name!r}, {column.type}: the Timestamp has {time.seconds} seconds, which are not in the "
            f"years 1 to 9999"
        )
    return int(time.seconds * 10**6 + time.nanos // 1000)


def _seconds(duration: Any, column: Column) -> str:
    seconds, nanos = duration.seconds, duration.nanos
    if abs(nanos) >= 10**9 or seconds * nanos < 0 or abs(seconds) > _LONGEST:
        raise ValueError(
            f"column {column.name!r}, {column.type}: the Duration has {seconds} s and {nanos} nanos"
        )
    if column.type == "interval" and nanos % 1000:
        raise ValueError(
            f"column {column.name!r}, interval: expected whole microseconds, found {nanos} nanos"
        )
    if column.type == "interval" and abs(seconds) >= _READ_EXACTLY:
        hours = int(Decimal(seconds) / 3600)  # towards 0
        return f"PT{hours}H{(Decimal(seconds - hours * 3600) + Decimal(nanos).scaleb(-9)):f}S"
    exact = (Decimal(seconds) + Decimal(nanos).scaleb(-9)).normalize()
    return f"PT{exact:f}S" if column.type == "interval" else f"{exact:f}"


def _find_json_writer(field: Any, *, is_repeated: bool) -> Convert:
    """Return how a value becomes the text of its JSON: the mapping of Protobuf, with the names of the .proto file."""
    name = field.name
    if not is_repeated and field.cpp_type == F.CPPTYPE_MESSAGE:
        return lambda message: _message_json(message, field.message_type)
    parent = message_factory.GetMessageClass(field.containing_type)
    put: Callable[[Any, FieldDescriptor, Any], None] = _put_entries if is_map(field) else _put_elements

    def text(value: Any) -> str:
        # JSON's rules are the field's, so that a message of this field alone is written.
        message = parent()
        if not field.is_repeated:
            setattr(message, name, (narrow(field) or _same)(value))
        else:
            put(getattr(message, name), field, value if is_repeated else [value])
        if is_repeated and not len(value):
            return "{}" if is_map(field) else "[]"
        written = _mapped(message, always_print_fields_with_no_presence=not field.is_repeated)[name]
        return json.dumps(
            written[0] if field.is_repeated and not is_repeated else written, ensure_ascii=False
        )

    return text


def _put_elements(container: Any, field: FieldDescriptor, values: Sequence[Any]) -> None:
    container.extend(map(narrow(field) or _same, values))


def _put_entries(container: Any, field: FieldDescriptor, entries: Mapping[Any, Any]) -> None:
    entry = field.message_type.fields_by_name
    key, value = (narrow(entry[each]) or _same for each in ("key", "value"))
    for each in entries:
        if entry["value"].message_type is not None:
            container[key(each)].CopyFrom(value(entries[each]))
        else:
            container[key(each)] = value(entries[each])


def _message_json(message: Any, declared: Descriptor) -> str:
    return json.dumps(_mapped(narrow_message(message, declared)), ensure_ascii=False)


def _mapped(message: Any, **options: Any) -> Any:
    try:
        return json_format.MessageToDict(message, preserving_proto_field_name=True, **options)
    except (json_format.Error, TypeError) as error:  # such as an Any of an unknown type
        raise ValueError(f"{message.DESCRIPTOR.full_name} has no JSON: {error}") from None


def _misfit(field: Any, column: Column) -> ValueError:
    type_ = field.message_type.full_name if field.message_type is not None else str(field.type)
    kind = _NAMES.get(type_, type_)
    repeated = "repeated " if field.is_repeated else ""
    return ValueError(
        f"column {column.name!r}, {column.type}: expected a field whose values fit, found {field.name!r}, "
        f"{repeated}{kind}"
    )


# FieldDescriptorProto.Type, by number.
_NAMES: Final = dict(
    zip(
        map(str, range(1, 19)),
        (
            *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group"),
            *("message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
        ),
        strict=True,
    )
)
