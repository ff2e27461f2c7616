"""Refuse what the bytes of a Protobuf message hold and its parser does not return.

A producer may change the type of a field before the pipeline's descriptor is replaced. The parser then cuts numbers to
32 bits, takes every number but 0 for true, and moves to the unknown fields what has another wire type, or is a number
without a name in a closed enum, those of proto2: the field looks unset (https://protobuf.dev/programming-guides/encoding,
https://protobuf.dev/programming-guides/enum). So values are parsed as messages of *wide* types, whose integers, enums
and booleans have 64 bits, and each number that a column takes is checked.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from exactbatch.formats.bounds import MOST_BYTES, check_size

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)  # wire types
# Bytes that the parser takes for a message, besides its repeated fields: at most this for itself and each field.
_OF_FIELD: Final = 16
# FieldDescriptorProto.Type, by number.
_INT64, _UINT64, _SINT64 = 3, 4, 18
_INT32, _BOOL, _STRING, _UINT32, _ENUM, _SINT32 = 5, 8, 9, 13, 14, 17
_WIDE: Final = {_INT32: _INT64, _BOOL: _UINT64, _UINT32: _UINT64, _ENUM: _INT64, _SINT32: _SINT64}
_SIGNED: Final = range(-(2**31), 2**31)
_RANGES: Final = {_INT32: _SIGNED, _BOOL: range(2), _UINT32: range(2**32), _ENUM: _SIGNED, _SINT32: _SIGNED}


class Memory:
    """Bounds the memory that messages of a type take: a message of two bytes in a repeated field takes as much as any
    other, which grows with the fields of its type."""

    def __init__(self, type_: Descriptor) -> None:
        self._type = type_
        self._sizes: dict[str, int] = {}
        waiting = [type_]
        while waiting:
            of = waiting.pop()
            if of.full_name not in self._sizes:
                self._sizes[of.full_name] = _OF_FIELD * (1 + len(of.fields))
                waiting += [field.message_type for field in of.fields if field.message_type is not None]
        self._most = max(self._sizes.values())

    def check(self, value: bytes) -> None:
        """Raise TooLarge for a value that would become a larger message than a record's rows may be."""
        if len(value) // 2 * self._most > MOST_BYTES:  # otherwise, it need not be looked at
            size = 0
            with suppress(IndexError):  # the parser ends there, too
                for of in self._messages(value):
                    size += self._sizes[of.full_name]
                    check_size(0, size)

    def _messages(self, value: bytes) -> Iterator[Descriptor]:
        """Yield the types of the messages in a value. Raises IndexError if it ends within one."""
        open_: list[tuple[Descriptor | None, int]] = [(self._type, len(value))]  # and where each ends
        at = 0
        while open_:
            type_, end = open_[-1]
            if at >= end:
                open_.pop()
                continue
            key, at = varint(value, at)
            field = None if type_ is None else type_.fields_by_number.get(key >> 3)
            inner = None if field is None else field.message_type
            wire_type = key & 7
            if wire_type == _VARINT:
                _, at = varint(value, at)
            elif wire_type == _FIXED64:
                at += 8
            elif wire_type == _FIXED32:
                at += 4
            elif wire_type == _END:
                open_.pop()
            elif wire_type in (_LENGTH, _START):
                size, start = varint(value, at) if wire_type == _LENGTH else (end - at, at)
                if inner is not None:
                    yield inner
                if inner is None and wire_type == _LENGTH:
                    at = start + size
                else:
                    open_.append((inner, min(start + size, end)))
                    at = start
            else:
                return


def varint(value: bytes, at: int, bits: int = 70) -> tuple[int, int]:
    """Return a number of at most `bits` bits, and where it ends. Raises IndexError if it does not end before."""
    number = 0
    for shift in range(0, bits, 7):
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError(at)


def widen(file: FileDescriptorProto) -> None:
    """Give the integers, enums and booleans of a file's message types 64 bits."""
    _widen_fields(file.extension)
    for message in file.message_type:
        _widen_message(message)


def _widen_message(message: DescriptorProto) -> None:
    _widen_fields(message.field)
    _widen_fields(message.extension)
    for nested in message.nested_type:
        _widen_message(nested)


def _widen_fields(fields: list[FieldDescriptorProto] | Any) -> None:
    for field in fields:
        if (wide := _WIDE.get(field.type)) is not None:
            field.type = wide
            field.ClearField("type_name")
            field.ClearField("default_value")  # the name of a number; a field with a default has presence


@cache
def narrow(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    """Return how a single value of a wide field, or an element or entry, becomes one of the field that is declared.

    It raises ValueError for a number that the declared type does not have, and for a message with such a number. None
    if the types are the same.
    """
    if field.message_type is not None:
        declared = field.message_type
        return lambda message: narrow_message(message, declared)
    if (numbers := _RANGES.get(field.type)) is None:
        return None
    names = (
        field.enum_type.values_by_number
        if field.enum_type is not None and field.enum_type.is_closed
        else None
    )

    def checked(number: int) -> int:
        if names is not None and number not in names:
            raise ValueError(f"field {field.name!r}: the enum has no name for {number}")
        if number not in numbers:
            raise ValueError(
                f"field {field.name!r}: the descriptor's type has numbers from {numbers[0]} to {numbers[-1]}, and the "
                f"value is {number}"
            )
        return number

    return (lambda number: bool(checked(number))) if field.type == _BOOL else checked


def narrow_message(message: Any, declared: Descriptor) -> Any:
    """Return a message of a wide type as one of the declared type.

    Raises ValueError for a number that its type does not have, and for what build_check() refuses of any field.
    """
    # Partial: a required field may be missing.
    written = message.SerializePartialToString(deterministic=True)
    parsed = GetMessageClass(declared).FromString(written)
    _check_parsed_below(parsed)
    # Numbers in their range have the same bytes in both types.
    if parsed.SerializePartialToString(deterministic=True) != written:
        raise ValueError(f"{declared.full_name} has a number beyond the range of its field's type")
    return parsed


def is_map(field: FieldDescriptor) -> bool:
    """True for a map, which is a repeated field of entries with a key and a value."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def build_check(field: FieldDescriptor) -> Callable[[Any], None]:
    """Return a check that raises ValueError for a message that holds bytes which its parser could not take for a
    field."""

    def check(message: Any) -> None:
        for unknown in UnknownFieldSet(message):
            if unknown.field_number == field.number:
                raise _not_parsed(field, unknown)

    return check


def _check_parsed_below(message: Any) -> None:
    """Raise ValueError if a message, or one below it, holds bytes that its parser could not take for their field."""
    for unknown in UnknownFieldSet(message):
        if (declared := _declared(message.DESCRIPTOR, unknown.field_number)) is not None:
            raise _not_parsed(declared, unknown)
    for field, value in message.ListFields():
        if is_map(field):
            entry = field.message_type.fields_by_name
            _check_values(entry["key"], value)
            _check_values(entry["value"], value.values())
        else:
            _check_values(field, value if field.is_repeated else [value])


def _check_values(field: FieldDescriptor, values: Iterable[Any]) -> None:
    if field.message_type is not None:
        for message in values:
            _check_parsed_below(message)
    elif field.type == _STRING and any(isinstance(value, bytes) for value in values):  # allowed in proto2
        raise ValueError(f"field {field.name!r}: a string is not UTF-8")


def _declared(type_: Descriptor, number: int) -> FieldDescriptor | None:
    if (field := type_.fields_by_number.get(number)) is not None or not type_.is_extendable:
        return field
    try:
        return type_.file.pool.FindExtensionByNumber(type_, number)
    except KeyError:
        return None


def _not_parsed(field: FieldDescriptor, unknown: Any) -> ValueError:
    if _has_closed_enum(field) and unknown.wire_type == (_LENGTH if is_map(field) else _VARINT):
        found = "a value" if is_map(field) else unknown.data
        return ValueError(f"field {field.name!r}: the enum has no name for {found}")
    return ValueError(
        f"field {field.name!r}: the bytes have the wire type {unknown.wire_type}, which is not that of the "
        f"descriptor's type"
    )


def _has_closed_enum(field: FieldDescriptor) -> bool:
    """True for a field of a closed enum, and for a map with such values."""
    if is_map(field):
        field = field.message_type.fields_by_name["value"]
    return field.enum_type is not None and field.enum_type.is_closed
