"""Columns for values that name their schema, by the schemas that a registry has for them.

Values and keys are recognized, and drafted, as Confluent's serializers frame them, with prefixes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Avro
from exactbatch.formats.avro.parsed_schema import VALUE, AvroField, parse
from exactbatch.formats.bounds import TooLarge
from exactbatch.formats.connect.types_of_schema import ConnectType
from exactbatch.formats.debezium.avro_events import build_events
from exactbatch.formats.debezium.envelope import is_envelope
from exactbatch.formats.message.record_headers import Messages
from exactbatch.formats.registry.frames import Part, reframe, suggest_registry, unframe
from exactbatch.formats.registry.location import Confluent, find_location
from exactbatch.formats.registry.schema_id_headers import KEY_HEADER, VALUE_HEADER
from exactbatch.formats.registry.schemas import fetch_schema, fetch_schema_type
from exactbatch.formats.registry.wire_format import GUID, GUID_SIZE, SchemaId, prefix_size, read_schema_id
from exactbatch.sampling.column_names import OWN
from exactbatch.sampling.debezium_columns import (
    ChangeEvent,
    draft_debezium,
    draft_flattened,
    is_flattened,
    list_types,
)
from exactbatch.sampling.draft import Draft, DraftColumn, are_most, schema_text
from exactbatch.sampling.json_columns import draft_json
from exactbatch.sampling.value_types import Choice, find_shape, parse_json

_AVRO, _JSON = "AVRO", "JSON"
_MOST_IDS: Final = 100_000_000  # registries count from 1: other bytes are rarely so small a number
_WIDER: Final = {
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "numeric": ("numeric",),
    "real": ("double precision",),
}


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """The address of a schema registry, and the properties of its client."""

    address: str
    properties: Mapping[str, Any]


def has_schema_id(value: bytes) -> bool:
    """True if a value begins with byte 0 and the ID of a schema, as Confluent's serializers write it."""
    try:
        schema_id = read_schema_id(value)
        return not isinstance(schema_id, int) or 0 < schema_id < _MOST_IDS
    except ValueError:
        return False


def draft_registry(values: Sequence[bytes], registry: RegistryAddress | None) -> Draft:
    """Return a draft of Avro, JsonSchema or Debezium for values that begin with the ID of their schema.

    Raises ConfigurationError without a registry, and for schemas of a type that is not recognized, and what the
    registry's client raises.
    """
    by_id: dict[SchemaId, list[bytes]] = {}
    for value in values:
        by_id.setdefault(read_schema_id(value), []).append(value)
    shown = ", ".join(map(str, sorted(by_id, key=int)[:5])) + (" …" if len(by_id) > 5 else "")
    if registry is None:
        raise ConfigurationError(
            f"the values begin with byte 0 and the ID of a schema ({shown}), as Confluent's serializers write them, or "
            f"the header {VALUE_HEADER} has it. "
            f"Nothing was written. Name the schema registry: --registry http://host:8081. Properties of the Kafka "
            f"connection that begin with schema.registry. have its credentials."
        )
    address, properties = registry.address, registry.properties
    types = {schema_id: fetch_schema_type(address, schema_id, properties) for schema_id in by_id}
    found = {type_ for type_ in types.values() if type_ is not None}
    if found == {_JSON}:
        objects = [
            parsed for value in values if isinstance(parsed := _parsed(value[prefix_size(value) :]), dict)
        ]
        return draft_json(
            find_shape(objects), registry=address, properties=properties, label="JSON Schema, with a registry"
        )
    if found == {_AVRO}:
        schemas = {}
        for schema_id in sorted(by_id, key=int):
            with suppress(ValueError):  # the records of a broken schema are none for the draft
                text = fetch_schema(address, schema_id, properties)
                if text is not None:
                    schemas[schema_id] = text, parse(text, VALUE)[1]
        if not schemas:
            raise ConfigurationError(
                f"the registry at {address} has no valid Avro schema for the IDs {shown}. Nothing was written."
            )
        return _avro_draft(schemas, by_id, registry)
    raise ConfigurationError(
        f"the registry at {address} has schemas of the types {', '.join(sorted(found)) or 'none at all'} for the IDs "
        f"{shown}, and AVRO or JSON are recognized. Nothing was written. Write the pipeline by hand: `exactbatch "
        f"explain json` has Protobuf."
    )


def check_other_framing(values: Sequence[bytes], registry: RegistryAddress | None) -> None:
    """Raise ConfigurationError if another registry than the given one framed most of the values."""
    found = [suggestion for value in values if (suggestion := suggest_registry(value)) is not None]
    if found and are_most(len(found), len(values)):
        raise ConfigurationError(
            f"most values begin as another registry's serializers write them, with "
            f"{values[0][:GUID_SIZE].hex(' ')} …, and the registry is {registry.address if registry else 'not given'}. "
            f"Nothing was written. Name it as --registry {found[0]}."
        )


def avro_names(values: Sequence[bytes], registry: str, properties: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the fields of records that begin with the ID of their schema; None if they have several."""
    names: set[tuple[str, ...]] = set()
    for schema_id in {read_schema_id(value) for value in values}:
        if fetch_schema_type(registry, schema_id, properties) != _AVRO:
            return None
        try:
            _, fields = parse(str(fetch_schema(registry, schema_id, properties)), "")
        except ValueError:
            return None
        names.add(tuple(field.name for field in fields))
    return list(names.pop()) if len(names) == 1 else None


def _avro_draft(
    schemas: Mapping[SchemaId, tuple[str, tuple[AvroField, ...]]],
    by_id: Mapping[SchemaId, list[bytes]],
    registry: RegistryAddress,
) -> Draft:
    events: list[ChangeEvent] = []
    payloads: list[ConnectType] = []
    for schema_id, (schema, _) in schemas.items():
        try:
            known = build_events(schema, prefix_size(by_id[schema_id][0]))
        except ValueError:
            break
        if not (
            is_envelope(known.payload) or is_flattened(ChangeEvent(dict(known.payload.fields), known.payload))
        ):
            break
        payloads.append(known.payload)
        for value in by_id[schema_id]:
            with suppress(ValueError, TooLarge):  # a broken record is none for the draft
                decoded = known.decode(pa.array([value], pa.binary()))
                events += [ChangeEvent(event, known.payload) for event in decoded]
    else:
        draft = draft_debezium if any(map(is_envelope, payloads)) else draft_flattened
        return draft(events, registry=registry.address, properties=registry.properties)
    fields: dict[str, list[AvroField]] = {}
    for _, written in schemas.values():
        for field in written:
            fields.setdefault(field.name, []).append(field)
    columns = tuple(
        DraftColumn(name, _choices(written)) for name, written in fields.items() if name not in OWN
    )
    notes = [f"left out, because every table has such a column: {name}" for name in fields if name in OWN]
    if len(schemas) > 1:
        notes.append(f"the values have {len(schemas)} schemas, and the columns are those of all of them")

    def make(columns: Sequence[DraftColumn]) -> Avro:
        return Avro(registry=registry.address, fields=schema_text(columns), properties=registry.properties)

    return Draft("Avro, with a registry", columns, make, tuple(notes))


def _choices(written: Sequence[AvroField]) -> tuple[Choice, ...]:
    """Return types for a field that has these in the schemas of a sample, the newest last."""
    times = [type_ for field in reversed(written) if field.connect for type_ in list_types(field.connect)]
    found = list(dict.fromkeys(field.type for field in reversed(written)))
    wider = [type_ for own in found for type_ in _wider(own)]
    return tuple(Choice(_short(type_)) for type_ in dict.fromkeys([*times, *found, *wider, "jsonb"]))


def _wider(type_: str) -> list[str]:
    element = type_.removesuffix("[]")
    return [each + type_.removeprefix(element) for each in _WIDER.get(element.partition("(")[0], ())]


def _short(type_: str) -> str:
    """Return the usual name of a type."""
    for long, short in (
        ("timestamp with time zone", "timestamptz"),
        ("timestamp without time zone", "timestamp"),
        ("time without time zone", "time"),
    ):
        if type_.startswith(long):
            return short + type_.removeprefix(long)
    return type_


def _parsed(value: bytes) -> Any:
    try:
        return parse_json(value)
    except ValueError:
        return None


_JSON_BEGINS = (b"{", b"[")


def with_schema_ids(
    part: Part, values: pa.BinaryArray, messages: Messages, registry: RegistryAddress | None
) -> pa.BinaryArray:
    """Return values, or keys, of n records as Confluent's serializers frame them, where they, or headers, name a
    schema."""
    if registry is not None and not isinstance(find_location(registry.address), Confluent):
        found = unframe(registry.address, part, values, messages)
        own = values.to_pylist()
        return pa.array(
            [
                own[index] if index in found.refused else value
                for index, value in enumerate(found.values.to_pylist())
            ],
            pa.binary(),
        )
    prefixes = {
        index: found
        for index, found in messages.last_headers(f"__{part}_schema_id").items()
        if isinstance(found, bytes) and has_schema_id(found)
    }
    if not prefixes:
        return values
    return pa.array(
        [
            None if value is None else prefixes.get(index, b"") + value
            for index, value in enumerate(values.to_pylist())
        ],
        pa.binary(),
    )


def are_json(values: pa.BinaryArray) -> bool:
    """True if all values that are not null look like JSON, which needs no registry."""
    return all(value.lstrip().startswith(_JSON_BEGINS) for value in values.drop_null().to_pylist())


def as_produced(value: bytes | None, registry: RegistryAddress | None) -> bytes | None:
    """Return a value, or key, in the frame in which its producer sent it, if it names a schema."""
    if value is None or registry is None or not has_schema_id(value):
        return value
    return reframe(registry.address, value)


def as_sent(
    value: bytes | None, key: bytes | None, registry: RegistryAddress | None
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
    """Return the value, the key and the headers of a record as a producer sends them: a prefix with a GUID is a header,
    unless the registry frames values in another way."""
    headers: list[tuple[str, bytes]] = []
    parts: list[bytes | None] = []
    for name, part in ((VALUE_HEADER, value), (KEY_HEADER, key)):
        part = as_produced(part, registry)
        size = prefix_size(part or b"")
        if part is not None and part.startswith(GUID) and len(part) >= size:
            headers.append((name, part[:size]))
            part = part[size:]
        parts.append(part)
    return parts[0], parts[1], headers
