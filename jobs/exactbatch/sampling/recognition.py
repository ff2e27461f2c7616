"""Recognize the format of the values of a topic, and draft it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from exactbatch.formats import Raw, Text
from exactbatch.formats.json.spec import Documents, Encoding
from exactbatch.formats.json.wrapped import unwrapped
from exactbatch.sampling.csv_columns import csv_draft
from exactbatch.sampling.debezium_columns import debezium_draft, is_change, json_events
from exactbatch.sampling.draft import Draft, are_most
from exactbatch.sampling.flattened_columns import flattened_draft, is_flattened
from exactbatch.sampling.json_columns import json_draft
from exactbatch.sampling.json_shape import find_shape, parse_json
from exactbatch.sampling.registry_columns import RegistryAddress, has_schema_id, registry_draft

# How values begin that are compressed or encoded: RFC 1952, RFC 8878, and the same and `{"` in base64.
_BEGINNINGS: Final[Mapping[bytes, tuple[Encoding, ...]]] = {
    b"\x1f\x8b": ("gzip",),
    b"\x28\xb5\x2f\xfd": ("zstd",),
    b"H4sI": ("base64", "gzip"),
    b"KLUv/": ("base64", "zstd"),
    b"ey": ("base64",),
}


def recognize(values: Sequence[bytes], registry: RegistryAddress | None) -> Draft:
    """Return a draft for values; none is null.

    Raises ConfigurationError for Confluent's wire format without a registry, and what the registry's client raises.
    """
    # JSON's null is a delete in some topics, and says nothing about columns.
    values = [value for value in values if value != b"null"] or values
    with_ids = list(filter(has_schema_id, values))
    if are_most(len(with_ids), len(values)):
        return registry_draft(with_ids, registry)
    encodings, inside = _without_encodings(values)
    if (draft := _json(inside, encodings)) is not None:
        return draft
    texts = _texts(values)
    if not are_most(len(texts), len(values)):
        return Draft("bytes", (), lambda _: Raw("bytes"), ("the values are not UTF-8 text: they stay bytes",))
    return csv_draft(texts) or Draft("lines of text", (), lambda _: Text("line"))


def _json(values: Sequence[bytes], encodings: tuple[Encoding, ...]) -> Draft | None:
    documents, objects = _objects(values)
    if not objects:
        return None
    if not encodings and documents == "one" and 2 * sum(map(is_change, objects)) >= len(objects):
        return debezium_draft(json_events(values))
    if not encodings and documents == "one":
        events = json_events(values)
        if 2 * sum(map(is_flattened, events)) >= len(objects):
            return flattened_draft(events)
    label = "JSON objects" if documents == "one" else f"JSON objects, several in a value ({documents})"
    if encodings:
        label += f", in {' of '.join(encodings)}"
    below: tuple[str, ...] = ()
    if all(map(_is_payload_with_schema, objects)):
        below = ("payload",)
        objects = [each["payload"] for each in objects if each["payload"] is not None]
        label += ", each the payload next to its schema (Kafka Connect)"
    return json_draft(find_shape(objects), below=below, encoding=encodings, documents=documents, label=label)


def _is_payload_with_schema(value: dict[str, Any]) -> bool:
    return value.keys() == {"schema", "payload"} and isinstance(value["payload"], dict | None)


def _objects(values: Sequence[bytes]) -> tuple[Documents, list[dict[str, Any]]]:
    """Return how objects are in most of the values, and the objects; none if most values are not made of objects."""
    for documents in _DOCUMENTS:
        found: list[dict[str, Any]] = []
        count = 0
        for value in values:
            try:
                found += _objects_in(value, documents)
            except ValueError:
                continue
            count += 1
        if are_most(count, len(values)):
            return documents, found
    return "one", []


_DOCUMENTS: Final[tuple[Documents, ...]] = ("one", "array", "lines")


def _objects_in(value: bytes, documents: Documents) -> list[dict[str, Any]]:
    """Return the objects of a value; raise ValueError if it is not made of objects."""
    if documents == "lines":
        found = [parse_json(line) for line in value.split(b"\n") if line.strip()]
    else:
        found = parse_json(value) if documents == "array" else [parse_json(value)]
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("expected objects")
    return found


def _without_encodings(values: Sequence[bytes]) -> tuple[tuple[Encoding, ...], Sequence[bytes]]:
    """Return the encodings that most values have, the outermost first, and these values without them; () and all values
    if most have none in common."""
    for beginning, encodings in _BEGINNINGS.items():
        found = []
        for value in values:
            if value.startswith(beginning):
                with suppress(ValueError):
                    found.append(unwrapped(value, encodings))
        if are_most(len(found), len(values)):
            return encodings, found
    return (), values


def _texts(values: Sequence[bytes]) -> list[str]:
    """Return the values that are text: in UTF-8, and without U+0000, which Postgres cannot store."""
    texts = []
    for value in values:
        with suppress(UnicodeDecodeError):
            texts.append(value.decode())
    return [text for text in texts if "\0" not in text]
