"""Refuse numbers without a name in closed enums, those of proto2.

The parser moves such a number to the unknown fields of its message: the field looks unset, and an element of a repeated
field, or an entry of a map, is gone (https://protobuf.dev/programming-guides/enum).
"""

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor


def has_closed_enum(field: "FieldDescriptor") -> bool:
    """True for a field of a closed enum, and for a map with such values."""
    if (entry := field.message_type) is not None and entry.GetOptions().map_entry:
        field = entry.fields_by_name["value"]
    return field.enum_type is not None and field.enum_type.is_closed


def check_named(message: Any, field: "FieldDescriptor") -> None:
    """Raise ValueError if a message has a number without a name for this field of a closed enum."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):
        if unknown.field_number == field.number:
            found = "a value" if field.message_type is not None else unknown.data
            raise ValueError(f"field {field.name!r}: the enum has no name for {found}")


def check_named_below(message: Any) -> None:
    """Raise ValueError if a message, or one below it, has a number without a name in a closed enum."""
    if not _has_closed_below(message.DESCRIPTOR):
        return
    for field in message.DESCRIPTOR.fields:
        if has_closed_enum(field):
            check_named(message, field)
    for field, value in message.ListFields():
        if (type_ := field.message_type) is None:
            continue
        if not field.is_repeated:
            check_named_below(value)
        elif not type_.GetOptions().map_entry:
            for element in value:
                check_named_below(element)
        elif type_.fields_by_name["value"].message_type is not None:
            for element in value.values():
                check_named_below(element)


@cache
def _has_closed_below(descriptor: "Descriptor") -> bool:
    """True if messages of a type, or messages below them, may have a field of a closed enum."""
    met, left = {descriptor.full_name}, [descriptor]
    while left:
        for field in left.pop().fields:
            if has_closed_enum(field):
                return True
            if (type_ := field.message_type) is not None and type_.full_name not in met:
                met.add(type_.full_name)
                left.append(type_)
    return False
