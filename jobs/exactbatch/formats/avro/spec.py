"""The format Avro: one body for each record, with the pipeline's schema or schemas of a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.formats.format import Format
from exactbatch.formats.registry.location import check_address, list_name_columns
from exactbatch.options import check_types, names_options


@names_options
@dataclass(frozen=True)
class Avro(Format):
    """Values are Avro bodies without a container.

    schema       their schema: JSON text, or the path of an .avsc file, which is read when the pipeline is created
    registry     instead, the address of a Confluent schema registry, such as "http://host:8081": values then begin with
                 byte 0 and the ID of the schema that they were written with, or a header of the record has it
    fields       the fields to take, as for Json; by default, all fields of the schema. Required with a registry
    schema_name  the name of a text column for the full name of the schema that a value was written with, such as
                 "com.shop.Order", by which a Route finds its target; null for a schema without a name

    A field has to fit its column. Times that Debezium writes as numbers or text, such as io.debezium.time.Date, which
    their `connect.name` says, fit into what Debezium(registry=…) puts them into. A field that a writer's schema lacks
    is null. Enums are text, arrays of simple types are arrays, and records, maps and unions are jsonb. A schema other
    than a record is one column. A body that cannot be decoded or has bytes left over, another first byte, an unknown
    schema ID, and one of a schema that is not Avro or is invalid are rejects; a null value is a tombstone.

    Raises ConfigurationError for an invalid schema, and for columns that it does not have; decode() raises
    RegistryUnavailable if the registry cannot be reached.
    """

    schema: str | PathLike[str] | None = None
    registry: str | None = field(default=None, kw_only=True)
    fields: str | None = field(default=None, kw_only=True)
    schema_name: str | None = field(default=None, kw_only=True)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        if (self.schema is None) == (self.registry is None):
            raise ConfigurationError("Avro: expected either a schema or a registry, found both or neither")
        check_address(self.registry)
        if self.schema is None and self.fields is None:
            raise ConfigurationError(
                f"Avro with the registry {self.registry} needs the fields to take from its values: write them as "
                f'fields="id bigint, name text"'
            )
        _ = self.columns

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the fields, all fields of the schema if none are named; then that of the schema's name."""
        named = None if self.fields is None else parse_columns(self.fields)
        name_columns = list_name_columns(self.schema_name, named or (), self.registry)
        if self.schema is None:
            assert named is not None
            return (*named, *name_columns)
        # Only a schema is parsed, by fastavro, and its fields compared with the columns by what decodes them.
        from exactbatch.formats.avro.decoder import find_columns

        return find_columns(self.text, named)

    @cached_property
    def text(self) -> str:
        """The schema as JSON text, read when the pipeline is created; empty with a registry."""
        match self.schema:
            case None:
                return ""
            case str() as text if text.lstrip().startswith(("{", "[", '"')):
                return text
            case path:
                try:
                    return Path(path).read_text()
                except OSError as error:
                    raise ConfigurationError(
                        f"The Avro schema {str(path)!r} is neither JSON text nor a readable .avsc file: "
                        f"{error.strerror}"
                    ) from None

    @property
    def reads_schema_ids(self) -> bool:
        """True if a registry has the schemas of the values."""
        return self.registry is not None
