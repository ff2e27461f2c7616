"""Message types of Protobuf, from a file of descriptors or from the files of a registry."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from exactbatch.formats.bounds import check_names


def build_pool(
    files: Iterable[FileDescriptorProto], change: Callable[[FileDescriptorProto], None] | None = None
) -> Any:
    """Return a descriptor pool of files, and of Google's and Confluent's own files that they import.

    `change` alters a copy of each of them first. Raises ValueError if they do not form message types.
    """
    named = {file.name: file for file in files}
    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = named.get(name) or _well_known(name)
        _check_names(file)
        for dependency in file.dependency:
            add(dependency)
        if change is not None:
            original, file = file, FileDescriptorProto()
            file.CopyFrom(original)
            change(file)
        pool.Add(file)

    try:
        for name in named:
            add(name)
    except (TypeError, KeyError) as error:
        raise ValueError(f"the descriptors do not form message types: {error}") from None
    return pool


def _check_names(described: Any) -> None:
    """Raise ValueError for long names of fields and enums, which a small value could repeat in JSON and text."""
    is_file = hasattr(described, "message_type")
    for message in described.message_type if is_file else described.nested_type:
        _check_names(message)
    fields = [] if is_file else described.field
    values = [value for enum in described.enum_type for value in enum.value]
    check_names(each.name for each in [*fields, *values])


def files_of_set(descriptors: bytes) -> list[FileDescriptorProto]:
    """Return the files of a serialized FileDescriptorSet, which `protoc --descriptor_set_out` writes.

    Raises ValueError for other bytes.
    """
    try:
        return list(FileDescriptorSet.FromString(descriptors).file)
    except DecodeError as error:
        raise ValueError(f"it is not a FileDescriptorSet: {error}") from None


def named_files(files: Sequence[tuple[str, bytes]]) -> list[FileDescriptorProto]:
    """Return files that are given by name, with that name. Raises ValueError for bytes that are not a file."""
    parsed = []
    for name, serialized in files:
        try:
            file = FileDescriptorProto.FromString(serialized)
        except DecodeError as error:
            raise ValueError(f"{name} is not a FileDescriptorProto: {error}") from None
        file.name = name
        parsed.append(file)
    return parsed


def message_named(pool: Any, name: str) -> Descriptor:
    """Return a message type by its full name. Raises ValueError for an unknown one."""
    try:
        return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no message type {name!r} in the descriptors: {error}") from None


def message_at(pool: Any, file: FileDescriptorProto, indexes: Sequence[int]) -> Descriptor:
    """Return a message type of a file by its position in it, and the positions of types inside of types.

    Raises ValueError if there is none.
    """
    types, name = file.message_type, file.package
    for index in indexes:
        if index >= len(types):
            raise ValueError(f"the schema has no message type at {list(indexes)}")
        name = f"{name}.{types[index].name}" if name else types[index].name
        types = types[index].nested_type
    return message_named(pool, name)


def _well_known(name: str) -> FileDescriptorProto:
    # Only a schema that imports one of these types needs the client of schema registries, which has them.
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.types import decimal_pb2

    modules = (
        *(any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2),
        *(struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2, meta_pb2, decimal_pb2),
    )
    for module in modules:
        if module.DESCRIPTOR.name == name:
            return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise KeyError(f"the file {name!r} is imported and missing")
