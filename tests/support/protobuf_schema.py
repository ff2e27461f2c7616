"""A Protobuf schema for tests, as protoc would compile it, and messages of its types."""

import base64
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SCALARS = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_NUMBERS = {name: descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}") for name in SCALARS}
_MESSAGE, _ENUM = 11, 14
_OPTIONAL, _REPEATED = 1, 3


def shop_file() -> Any:
    """shop.proto: package shop; message Wrong { } and message Order { … }, in the syntax proto3."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    well_known = (timestamp_pb2, wrappers_pb2, duration_pb2, struct_pb2)
    file.dependency.extend(module.DESCRIPTOR.name for module in well_known)
    mood = file.enum_type.add(name="Mood")
    for name, number in (("UNKNOWN", 0), ("GOOD", 1)):
        mood.value.add(name=name, number=number)
    file.message_type.add(name="Other").field.add(
        name="id", number=1, type=_NUMBERS["int64"], label=_OPTIONAL
    )
    order = file.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    _add(item, "sku", 1, "string")
    _add(item, "quantity", 2, "int32", optional=True)
    _add(item, "tags", 3, "string", label=_REPEATED)
    for number, name in enumerate(SCALARS, 1):
        _add(order, f"f_{name}", number, name)
        _add(order, f"o_{name}", number + 20, name, optional=True)
        _add(order, f"r_{name}", number + 40, name, label=_REPEATED)
    _add(order, "mood", 70, _ENUM, type_name=".shop.Mood")
    _add(order, "items", 71, _MESSAGE, type_name=".shop.Order.Item", label=_REPEATED)
    _add(order, "first", 72, _MESSAGE, type_name=".shop.Order.Item")
    _add(order, "at", 73, _MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(order, "took", 74, _MESSAGE, type_name=".google.protobuf.Duration")
    _add(order, "wrapped", 75, _MESSAGE, type_name=".google.protobuf.UInt64Value")
    _add(order, "anything", 76, _MESSAGE, type_name=".google.protobuf.Struct")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, "string")
    _add(entry, "value", 2, "int64")
    _add(order, "counts", 77, _MESSAGE, type_name=".shop.Order.CountsEntry", label=_REPEATED)
    order.oneof_decl.insert(0, descriptor_pb2.OneofDescriptorProto(name="paid"))
    for each in order.field:
        if each.HasField("oneof_index"):
            each.oneof_index += 1
    _add(order, "cash", 78, "int64").oneof_index = 0
    _add(order, "card", 79, "string").oneof_index = 0
    return file


def shop_proto() -> str:
    """shop.proto as a registry sends it, if asked for the format "serialized"."""
    return base64.b64encode(shop_file().SerializeToString()).decode()


def shop_descriptors(*, with_imports: bool = True) -> bytes:
    """What `protoc --include_imports --descriptor_set_out` writes."""
    files = descriptor_pb2.FileDescriptorSet()
    if with_imports:
        for module in (timestamp_pb2, wrappers_pb2, duration_pb2, struct_pb2):
            files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    files.file.append(shop_file())
    return bytes(files.SerializeToString())


def shop_class(name: str) -> Any:
    """The class of messages of a type, such as Order or Order.Item."""
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(shop_descriptors()).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


def _add(
    message: Any, name: str, number: int, type_: str | int, *, optional: bool = False, **more: Any
) -> Any:
    type_number = _NUMBERS[type_] if isinstance(type_, str) else type_
    field = message.field.add(name=name, number=number, type=type_number, **{"label": _OPTIONAL, **more})
    if optional:  # as protoc does: a oneof of its own
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return field
