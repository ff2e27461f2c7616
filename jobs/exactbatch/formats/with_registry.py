"""Formats that ask a server, with what it takes to reach it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from exactbatch.formats.avro import Avro
from exactbatch.formats.format import Format
from exactbatch.formats.message import WithMessage
from exactbatch.formats.registry import registry_properties

AnyFormat = TypeVar("AnyFormat", bound=Format | WithMessage | None)


def with_registry(format_: AnyFormat, properties: Mapping[str, Any]) -> AnyFormat:
    """A format that knows those of the Kafka client properties that are about the schema registry.

    Raises ConfigurationError for a property of the registry that is not known.
    """
    match format_:
        case Avro():
            return replace(format_, properties=registry_properties(properties))
        case WithMessage():
            return replace(
                format_,
                value=with_registry(format_.value, properties),
                key=with_registry(format_.key, properties),
                header={name: with_registry(each, properties) for name, each in format_.header.items()},
            )
        case _:
            return format_
