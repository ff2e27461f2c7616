"""The format Protobuf: messages of a descriptor file, or of the schemas of a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from exactbatch.columns import Column, Field, parse_fields
from exactbatch.errors import ConfigurationError
from exactbatch.formats.declared_fields import (
    check_arrays,
    check_whole,
    gives_rows_of_elements,
)
from exactbatch.formats.format import Format
from exactbatch.formats.registry.location import check_has_files, list_name_columns
from exactbatch.options import check_types


@dataclass(frozen=True)
class Protobuf(Format):
    """Values are Protobuf messages.

    schema       the columns, with paths and defaults as for Json: "user_id bigint from 'user.id'"
    registry     the address of a Confluent schema registry: values then begin with byte 0, the ID of their schema in 4
                 bytes, and the place of their message type in it; or a header of the record has these
    descriptor   instead, a file that `protoc --include_imports --descriptor_set_out=FILE` has written, read when the
                 pipeline is created; values are then bare messages of the type `message`, such as "shop.Order"
    schema_name  the name of a text column for the full name of a value's message type, by which a Route finds its
                 target; this needs a registry

    Integers are exact, also unsigned ones in a numeric; enums are their names; a Timestamp is truncated to
    microseconds; a wrapper is its value or null; json and jsonb take any field in Protobuf's JSON mapping, and a map or
    message only they. A field that is not set is null if its presence is known, and otherwise its type's default, as
    in any program. A field that the writer's schema lacks is null. Bytes that are not such a message, and a value that
    does not fit its column, are rejects. A null value is a tombstone.

    Raises ConfigurationError for columns that do not fit the descriptor; decode() raises RegistryUnavailable if the
    registry cannot be reached.
    """

    schema: str
    registry: str | None = field(default=None, kw_only=True)
    descriptor: str | PathLike[str] | bytes | None = field(default=None, kw_only=True, repr=False)
    message: str | None = field(default=None, kw_only=True)
    schema_name: str | None = field(default=None, kw_only=True)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        if (self.registry is None) == (self.descriptor is None) or (self.descriptor is None) != (
            self.message is None
        ):
            raise ConfigurationError(
                "Protobuf: expected either a registry, or a descriptor and a message. Write registry='http://…', or "
                "descriptor='file.desc', message='package.Type'."
            )
        check_has_files(self.registry)
        _ = self.columns
        check_arrays(self.fields)
        check_whole(self.fields)
        if any(each.default is not None for each in self.fields):
            # Arrow reads the defaults, as those of Json.
            from exactbatch.formats.json.member_columns import read_defaults

            read_defaults(self.fields, {})
        if self.descriptor is not None:
            # Only a descriptor is parsed, by Google's library, and its fields compared with the columns.
            from exactbatch.formats.protobuf.decoder import check_message

            check_message(self.descriptors, str(self.message), self.fields)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The columns, and what each takes."""
        return parse_fields(self.schema)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the schema, then that of the message type's name."""
        taken = tuple(each.column for each in self.fields)
        return (*taken, *list_name_columns(self.schema_name, taken, self.registry))

    @cached_property
    def descriptors(self) -> bytes:
        """The content of the descriptor file, read when the pipeline is created; empty with a registry."""
        match self.descriptor:
            case None:
                return b""
            case bytes() as content:
                return content
            case path:
                try:
                    return Path(path).read_bytes()
                except OSError as error:
                    raise ConfigurationError(f"descriptor: the file cannot be read: {error}") from None

    @property
    def reads_schema_ids(self) -> bool:
        """True if a registry has the schemas of the values."""
        return self.registry is not None

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return gives_rows_of_elements(self.fields)
