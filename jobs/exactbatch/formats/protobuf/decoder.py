"""Protobuf messages: Python decodes one after the other. Their types come from a file of descriptors, or from the files
of a registry.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
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
from google.protobuf.message_factory import GetMessageClass

from exactbatch.columns import Column, Field
from exactbatch.errors import ConfigurationError
from exactbatch.formats.bounds import TooLarge, check_names, check_size, check_together
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, decode_several, refused_by
from exactbatch.formats.json.blocks import stored_schema
from exactbatch.formats.json.fields import Members, Positions, filled, in_rows
from exactbatch.formats.json.member_columns import read_defaults
from exactbatch.formats.json.raw_fields import json_texts
from exactbatch.formats.postgres_limits import check_rows, find_unstorable
from exactbatch.formats.protobuf.spec import Protobuf
from exactbatch.formats.protobuf.ways import Way, find_way, followed
from exactbatch.formats.protobuf.wire import Memory, varint, widen
from exactbatch.formats.registry.schemas import (
    Inquiry,
    cut_prefixes,
    most_frequent_first,
    read_protobuf_files,
)
from exactbatch.formats.registry.wire_format import SchemaId, prefix_size, read_schema_id, unknown

_MOST_INDEXES: Final = 32  # types inside of types
_VARINT_BITS: Final = 35
_Files = list[tuple[str, bytes]]  # of a schema, as read_protobuf_files() returns them


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


class ProtobufDecoder(Decoder[Protobuf]):
    """Decodes messages."""

    def __init__(self, spec: Protobuf) -> None:
        super().__init__(spec)
        self._defaults = read_defaults(spec.fields, {})

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values."""
        inquiry = Inquiry()

        @cache
        def find_files(schema_id: SchemaId) -> _Files | None:
            return read_protobuf_files(str(self.spec.registry), schema_id, self.spec.properties, inquiry)

        if self.spec.registry is not None:
            for header in most_frequent_first(cut_prefixes(values.drop_null())):
                with suppress(ValueError):  # its values are rejects
                    find_files(read_schema_id(header))
        return decode_several(
            values, partial(self._decode_block, find_files), partial(self._find_refused, find_files)
        )

    def _decode_block(
        self, find_files: Callable[[SchemaId], _Files | None], values: pa.BinaryArray
    ) -> tuple[pa.RecordBatch, Positions | None]:
        """Return rows, and the value that each is of, or raise ValueError."""
        if not len(values):
            return pa.RecordBatch.from_pylist([], stored_schema(self.spec.columns)), None
        check_together(values)
        rows, origins = self._rows([self._parse_message(value, find_files) for value in values.to_pylist()])
        check_rows(rows, self.spec.columns)
        return rows, origins

    def _rows(self, messages: "Sequence[tuple[Any, _Type]]") -> tuple[pa.RecordBatch, Positions | None]:
        """Return the rows of messages, which Postgres may be unable to store, and the message that each is of."""
        members, size = [], 0
        for number, each in enumerate(self.spec.fields):
            found, is_missing = self._members(number, messages)
            if each.default is not None:
                found.values = filled(
                    found.values,
                    partial(pa.array, is_missing, pa.bool_()),
                    self._defaults[each.column.name],
                )
                check_size(0, size := size + found.values.nbytes)
            members.append(found)
        columns, origins = in_rows(members, len(messages))
        if self.spec.schema_name is not None:
            names = [type_.name for _, type_ in messages]
            check_names(set(names))
            columns.append(pa.array(names if origins is None else [names[at] for at in origins], pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=stored_schema(self.spec.columns)), origins

    def _find_refused(
        self, find_files: Callable[[SchemaId], _Files | None], values: pa.BinaryArray
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each value that is refused, and why, as _decode_block() says it of this value alone."""
        messages: dict[int, tuple[Any, _Type]] = {}
        for index, value in enumerate(values.to_pylist()):
            try:
                messages[index] = self._parse_message(value, find_files)
            except ValueError as error:
                yield index, str(error)
            except TooLarge:
                continue  # in halves
        numbers = range(len(self.spec.fields))
        yield from refused_by([partial(self._members, number) for number in numbers], messages)
        try:
            rows, origins = self._rows(list(messages.values()))
        except (ValueError, TooLarge):
            return  # in halves
        indexes = list(messages)
        for column, each in zip(self.spec.columns, rows.columns, strict=True):
            for place, reason in find_unstorable(column, each):
                yield indexes[place if origins is None else origins[place]], reason

    def _members(self, number: int, messages: "Sequence[tuple[Any, _Type]]") -> tuple[Members, list[bool]]:
        """Return what a column, by its number, takes from messages, and what is not set; raise ValueError that names
        the column."""
        each = self.spec.fields[number]
        found, is_missing = _members([(message, type_.ways[number]) for message, type_ in messages], each)
        found.values = _column(each.column, found.values)
        return found, is_missing

    def _parse_message(
        self, value: bytes, find_files: Callable[[SchemaId], _Files | None]
    ) -> "tuple[Any, _Type]":
        if self.spec.registry is None:
            type_ = _type_of_set(self.spec.descriptors, str(self.spec.message), self.spec.fields)
            return type_.parsed(value), type_
        schema_id, indexes, start = message_prefix(value)
        files = find_files(schema_id)
        if files is None:
            raise ValueError(unknown(schema_id, "Protobuf"))
        type_ = _type_at(tuple(files), indexes, self.spec.fields)
        return type_.parsed(value[start:]), type_


class _Type:
    """A message type, and how each column takes its values from messages of it."""

    def __init__(
        self,
        files: Sequence[FileDescriptorProto],
        descriptor: Any,
        fields: Sequence[Field],
        *,
        may_lack: bool,
    ) -> None:
        self.name = descriptor.full_name
        self._class = GetMessageClass(message_named(build_pool(files, widen), self.name))
        self._memory = Memory(descriptor)
        self.ways = [find_way(descriptor, each, may_lack=may_lack) for each in fields]

    @classmethod
    def of_set(cls, descriptors: bytes, message: str, fields: Sequence[Field], *, may_lack: bool) -> "_Type":
        files = files_of_set(descriptors)
        return cls(files, message_named(build_pool(files), message), fields, may_lack=may_lack)

    def parsed(self, value: bytes) -> Any:
        self._memory.check(value)
        try:
            return self._class.FromString(value)
        except DecodeError:
            raise ValueError(f"the value is not a message of the type {self.name}") from None


def check_message(descriptors: bytes, message: str, fields: tuple[Field, ...]) -> None:
    """Raise ConfigurationError for descriptors that are none, or lack a message or what columns take from it."""
    try:
        _type_of_set(descriptors, message, fields)
    except ValueError as error:
        raise ConfigurationError(f"Protobuf, message {message!r}: {error}") from None


@cache
def _type_of_set(descriptors: bytes, message: str, fields: tuple[Field, ...]) -> _Type:
    return _Type.of_set(descriptors, message, fields, may_lack=False)


@cache
def _type_at(
    files: tuple[tuple[str, bytes], ...], indexes: tuple[int, ...], fields: tuple[Field, ...]
) -> _Type:
    parsed = named_files(files)
    return _Type(parsed, message_at(build_pool(parsed), parsed[-1], indexes), fields, may_lack=True)


def message_prefix(value: bytes) -> tuple[SchemaId, tuple[int, ...], int]:
    """Return the ID or GUID of a value's schema, the place of its message type, and where the message starts.

    The place is a number of indexes and the indexes, as zigzag varints; 0 alone stands for the first type. Raises
    ValueError for a value that does not begin so.
    """
    schema_id = read_schema_id(value)
    count, at = _varint(value, prefix_size(value))
    if not 0 <= count <= _MOST_INDEXES:
        raise ValueError(f"expected up to {_MOST_INDEXES} indexes of a message type, found {count}")
    indexes = []
    for _ in range(count):
        index, at = _varint(value, at)
        if index < 0:
            raise ValueError(f"expected indexes of a message type from 0, found {index}")
        indexes.append(index)
    return schema_id, tuple(indexes) or (0,), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and where it ends."""
    try:
        number, at = varint(value, at, _VARINT_BITS)
    except IndexError:
        raise ValueError(
            "the value ends within the indexes of its message type, or one of them is too large"
        ) from None
    return (number >> 1) ^ -(number & 1), at


def _members(messages: Sequence[tuple[Any, Way]], each: Field) -> tuple[Members, list[bool]]:
    """Return what a column takes from messages, converted, with None for what is not set; and what is not set."""
    members = Members(None)
    nodes = list(messages)
    for number in range(len(each.path.parts)):
        if number:
            parents = [parent for parent, (elements, _) in enumerate(nodes) for _ in elements or ()]
            members.parents.append(np.array(parents, np.int64))
            nodes = [(element, way) for elements, way in nodes for element in elements or ()]
        nodes = [
            (None if node is None else followed([node], way.parts[number])[0], way) for node, way in nodes
        ]
    members.values = [None if node is None else way.convert(node) for node, way in nodes]
    return members, [node is None for node, _ in nodes]


def _column(column: Column, values: list[Any]) -> pa.Array:
    """Return converted values as a column, or raise ValueError that names it."""
    try:
        if column.type in ("json", "jsonb"):
            texts = [b"null" if value is None else value.encode() for value in values]
            return json_texts(pa.array(texts, pa.binary()), column.type)
        if pa.types.is_timestamp(column.arrow_type):
            return pa.array(values, pa.int64()).cast(column.arrow_type)
        return pa.array(values, column.arrow_type)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None
