"""Give the formats that read schemas from a registry the properties of its client."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from exactbatch.formats.avro import Avro
from exactbatch.formats.debezium import Debezium
from exactbatch.formats.format import Format
from exactbatch.formats.json_schema import JsonSchema
from exactbatch.formats.message import WithMessage
from exactbatch.formats.protobuf import Protobuf
from exactbatch.formats.schema_registry import registry_properties

AnyFormat = TypeVar("AnyFormat", bound=Format | WithMessage | None)


def with_registry(format_: AnyFormat, properties: Mapping[str, Any]) -> AnyFormat:
    """Return the format with the Kafka client properties that configure the schema registry's client.

    Raises ConfigurationError for an unsupported property of the registry.
    """
    match format_:
        case Avro() | Debezium() | JsonSchema() | Protobuf():
            return replace(format_, properties=registry_properties(properties))
        case WithMessage():
            return replace(
                format_,
                value=with_registry(format_.value, properties),
                key=with_registry(format_.key, properties),
                header={name: with_registry(header, properties) for name, header in format_.header.items()},
            )
        case _:
            return format_


def registries_of(format_: Format | WithMessage | None) -> set[str]:
    """Return the addresses of the schema registries that a format asks."""
    match format_:
        case Avro() | Debezium() | JsonSchema() | Protobuf():
            return set() if format_.registry is None else {format_.registry}
        case WithMessage():
            return set().union(*map(registries_of, (format_.value, format_.key, *format_.header.values())))
        case _:
            return set()
