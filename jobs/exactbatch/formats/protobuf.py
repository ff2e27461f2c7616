"""The format Protobuf: messages of a descriptor file, or of the schemas of a registry. Python decodes one by one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from os import PathLike
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Final

from exactbatch.columns import Column, Field, parse_fields
from exactbatch.errors import ConfigurationError
from exactbatch.formats.bounds import TooLarge, check_size, check_together
from exactbatch.formats.format import Decoded, decode_several, refused_by
from exactbatch.formats.json_blocks import stored_schema
from exactbatch.formats.json_fields import (
    Members,
    check_arrays,
    check_whole,
    filled,
    gives_rows_of_elements,
    in_rows,
)
from exactbatch.formats.json_members import default_of
from exactbatch.formats.postgres_limits import check_rows, find_unstorable
from exactbatch.formats.protobuf_fields import Way, followed, way_of
from exactbatch.formats.protobuf_types import files_of_set, message_at, message_named, named_files, pool_of
from exactbatch.formats.protobuf_wire import Memory, varint, widen
from exactbatch.formats.raw_json_fields import json_texts
from exactbatch.formats.schema_registry import Inquiry, protobuf_files
from exactbatch.formats.wire_format import (
    SchemaId,
    check_address,
    most_frequent_first,
    prefix_size,
    prefixes_of,
    schema_id_of,
    unknown,
)
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from exactbatch.formats.json_fields import Positions

_MOST_INDEXES: Final = 32  # types inside of types
_VARINT_BITS: Final = 35

_Files = list[tuple[str, bytes]]  # of a schema, as protobuf_files() returns them


@dataclass(frozen=True)
class Protobuf:
    """Values are Protobuf messages.

    schema      the columns, with paths and defaults as for Json: "user_id bigint from 'user.id'"
    registry    the address of a Confluent schema registry: values then begin with byte 0, the ID of their schema in 4
                bytes, and the place of their message type in it; or a header of the record has these
    descriptor  instead, a file that `protoc --include_imports --descriptor_set_out=FILE` has written, read when the
                pipeline is created; values are then bare messages of the type `message`, such as "shop.Order"

    Integers are exact, also unsigned ones in a numeric; enums are their names; a Timestamp is truncated to
    microseconds; a wrapper is its value or null; json and jsonb take any field in Protobuf's JSON mapping, and a map or
    message only they. A field that is not set is null if its presence is known, and otherwise its type's default, as
    in any program. A field that the writer's schema lacks is null. Bytes that are not such a message, and a value that
    does not fit its column, are rejects. A null value is a tombstone.

    Raises ConfigurationError for columns that do not fit the descriptor; decode() raises RegistryUnavailable if the
    registry cannot be reached.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True

    schema: str
    registry: str | None = field(default=None, kw_only=True)
    descriptor: str | PathLike[str] | bytes | None = field(default=None, kw_only=True, repr=False)
    message: str | None = field(default=None, kw_only=True)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)
    columns: tuple[Column, ...] = field(init=False, repr=False)
    fields: tuple[Field, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        if (self.registry is None) == (self.descriptor is None) or (self.descriptor is None) != (
            self.message is None
        ):
            raise ConfigurationError(
                "Protobuf: expected either a registry, or a descriptor and a message. Write registry='http://…', or "
                "descriptor='file.desc', message='package.Type'."
            )
        check_address(self.registry)
        object.__setattr__(self, "fields", parse_fields(self.schema))
        object.__setattr__(self, "columns", tuple(each.column for each in self.fields))
        check_arrays(self.fields)
        check_whole(self.fields)
        _ = self._defaults
        if self.descriptor is None:
            return
        if not isinstance(self.descriptor, bytes):
            try:
                object.__setattr__(self, "descriptor", FilePath(self.descriptor).read_bytes())
            except OSError as error:
                raise ConfigurationError(f"descriptor: the file cannot be read: {error}") from None
        try:
            _Type.of_set(bytes(self.descriptor), str(self.message), self.fields, may_lack=False)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigurationError(f"Protobuf, message {self.message!r}: {error}") from None

    @property
    def reads_schema_ids(self) -> bool:
        """True if a registry has the schemas of the values."""
        return self.registry is not None

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return gives_rows_of_elements(self.fields)

    @cached_property
    def _defaults(self) -> "Mapping[str, pa.Scalar]":
        return {each.column.name: default_of(each, {}) for each in self.fields if each.default is not None}

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values."""
        inquiry = Inquiry()

        @cache
        def files_of(schema_id: SchemaId) -> "_Files | None":
            return protobuf_files(str(self.registry), schema_id, self.properties, inquiry)

        if self.registry is not None:
            for header in most_frequent_first(prefixes_of(values.drop_null())):
                with suppress(ValueError):  # its values are rejects
                    files_of(schema_id_of(header))
        return decode_several(
            values, partial(self._decode_block, files_of), partial(self._find_refused, files_of)
        )

    def _decode_block(
        self, files_of: Callable[[SchemaId], "_Files | None"], values: "pa.BinaryArray"
    ) -> "tuple[pa.RecordBatch, Positions | None]":
        """Return rows, and the value that each is of, or raise ValueError."""
        import pyarrow as pa

        if not len(values):
            return pa.RecordBatch.from_pylist([], stored_schema(self.columns)), None
        check_together(values)
        rows, origins = self._rows([self._message_of(value, files_of) for value in values.to_pylist()])
        check_rows(rows, self.columns)
        return rows, origins

    def _rows(self, messages: "Sequence[tuple[Any, _Type]]") -> "tuple[pa.RecordBatch, Positions | None]":
        """Return the rows of messages, which Postgres may be unable to store, and the message that each is of."""
        import pyarrow as pa

        members, size = [], 0
        for number, each in enumerate(self.fields):
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
        return pa.RecordBatch.from_arrays(columns, schema=stored_schema(self.columns)), origins

    def _find_refused(
        self, files_of: Callable[[SchemaId], "_Files | None"], values: "pa.BinaryArray"
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each value that is refused, and why, as _decode_block() says it of this value alone."""
        messages: dict[int, tuple[Any, _Type]] = {}
        for index, value in enumerate(values.to_pylist()):
            try:
                messages[index] = self._message_of(value, files_of)
            except ValueError as error:
                yield index, str(error)
            except TooLarge:
                continue  # in halves
        numbers = range(len(self.fields))
        yield from refused_by([partial(self._members, number) for number in numbers], messages)
        try:
            rows, origins = self._rows(list(messages.values()))
        except (ValueError, TooLarge):
            return  # in halves
        indexes = list(messages)
        for column, each in zip(self.columns, rows.columns, strict=True):
            for place, reason in find_unstorable(column, each):
                yield indexes[place if origins is None else origins[place]], reason

    def _members(self, number: int, messages: "Sequence[tuple[Any, _Type]]") -> "tuple[Members, list[bool]]":
        """Return what a column, by its number, takes from messages, and what is not set; raise ValueError that names
        the column."""
        each = self.fields[number]
        found, is_missing = _members([(message, type_.ways[number]) for message, type_ in messages], each)
        found.values = _column(each.column, found.values)
        return found, is_missing

    def _message_of(
        self, value: bytes, files_of: Callable[[SchemaId], "_Files | None"]
    ) -> "tuple[Any, _Type]":
        if self.registry is None:
            assert isinstance(self.descriptor, bytes)
            type_ = _type_of_set(self.descriptor, str(self.message), self.fields)
            return type_.parsed(value), type_
        schema_id, indexes, start = message_prefix(value)
        files = files_of(schema_id)
        if files is None:
            raise ValueError(unknown(schema_id, "Protobuf"))
        type_ = _type_at(tuple(files), indexes, self.fields)
        return type_.parsed(value[start:]), type_


class _Type:
    """A message type, and how each column takes its values from messages of it."""

    def __init__(
        self,
        files: "Sequence[FileDescriptorProto]",
        descriptor: Any,
        fields: Sequence[Field],
        *,
        may_lack: bool,
    ) -> None:
        from google.protobuf.message_factory import GetMessageClass

        self._name = descriptor.full_name
        self._class = GetMessageClass(message_named(pool_of(files, widen), self._name))
        self._memory = Memory(descriptor)
        self.ways = [way_of(descriptor, each, may_lack=may_lack) for each in fields]

    @classmethod
    def of_set(cls, descriptors: bytes, message: str, fields: Sequence[Field], *, may_lack: bool) -> "_Type":
        files = files_of_set(descriptors)
        return cls(files, message_named(pool_of(files), message), fields, may_lack=may_lack)

    def parsed(self, value: bytes) -> Any:
        from google.protobuf.message import DecodeError

        self._memory.check(value)
        try:
            return self._class.FromString(value)
        except DecodeError:
            raise ValueError(f"the value is not a message of the type {self._name}") from None


@cache
def _type_of_set(descriptors: bytes, message: str, fields: tuple[Field, ...]) -> _Type:
    return _Type.of_set(descriptors, message, fields, may_lack=False)


@cache
def _type_at(
    files: tuple[tuple[str, bytes], ...], indexes: tuple[int, ...], fields: tuple[Field, ...]
) -> _Type:
    parsed = named_files(files)
    return _Type(parsed, message_at(pool_of(parsed), parsed[-1], indexes), fields, may_lack=True)


def message_prefix(value: bytes) -> tuple[SchemaId, tuple[int, ...], int]:
    """Return the ID or GUID of a value's schema, the place of its message type, and where the message starts.

    The place is a number of indexes and the indexes, as zigzag varints; 0 alone stands for the first type. Raises
    ValueError for a value that does not begin so.
    """
    schema_id = schema_id_of(value)
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
    import numpy as np

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


def _column(column: Column, values: list[Any]) -> "pa.Array":
    """Return converted values as a column, or raise ValueError that names it."""
    import pyarrow as pa

    try:
        if column.type in ("json", "jsonb"):
            texts = [b"null" if value is None else value.encode() for value in values]
            return json_texts(pa.array(texts, pa.binary()), column.type)
        if pa.types.is_timestamp(column.arrow_type):
            return pa.array(values, pa.int64()).cast(column.arrow_type)
        return pa.array(values, column.arrow_type)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None
