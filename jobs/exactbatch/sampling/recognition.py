"""Recognize the format of the values of a topic, and draft it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from exactbatch.formats import Raw, Text
from exactbatch.formats.wrapped import Documents, Encoding, unwrapped
from exactbatch.sampling.csv_columns import csv_draft
from exactbatch.sampling.debezium_columns import debezium_draft, is_change, json_events
from exactbatch.sampling.draft import Draft
from exactbatch.sampling.json_columns import json_draft
from exactbatch.sampling.json_shape import parse_json, shape_of
from exactbatch.sampling.registry_columns import Registry, has_schema_ids, registry_draft

# The share of values that must be of a format for it to be proposed: the others are named as broken records.
_MOST: Final = 0.9
# How values begin that are compressed or encoded: RFC 1952, RFC 8878, and the same and `{"` in base64.
_BEGINNINGS: Final[Mapping[bytes, tuple[Encoding, ...]]] = {
    b"\x1f\x8b": ("gzip",),
    b"\x28\xb5\x2f\xfd": ("zstd",),
    b"H4sI": ("base64", "gzip"),
    b"KLUv/": ("base64", "zstd"),
    b"ey": ("base64",),
}


def recognize(values: Sequence[bytes], registry: Registry | None) -> Draft:
    """Return a draft for values, none of which is null.

    Raises ConfigurationError for Confluent's wire format without a registry, and what the registry's client raises.
    """
    if has_schema_ids(values):
        return registry_draft(values, registry)
    encodings = _encodings_of(values)
    if (draft := _json(_unwrapped(values, encodings), encodings)) is not None:
        return draft
    texts = _texts(values)
    if texts is None:
        return Draft("bytes", (), lambda _: Raw("bytes"), ("the values are not UTF-8 text: they stay bytes",))
    return csv_draft(texts) or Draft("lines of text", (), lambda _: Text("line"))


def _json(values: Sequence[bytes], encodings: tuple[Encoding, ...]) -> Draft | None:
    documents, objects, other = _objects(values)
    if not objects or other > (1 - _MOST) * len(values):
        return None
    if not encodings and documents == "one" and 2 * sum(map(is_change, objects)) >= len(objects):
        return debezium_draft(json_events(values))
    label = "JSON objects" if documents == "one" else f"JSON objects, several in a value ({documents})"
    if encodings:
        label += f", in {' of '.join(encodings)}"
    below: tuple[str, ...] = ()
    if all(map(_is_payload_with_schema, objects)):
        below = ("payload",)
        objects = [each["payload"] for each in objects if each["payload"] is not None]
        label += ", each the payload next to its schema (Kafka Connect)"
    return json_draft(shape_of(objects), below=below, encoding=encodings, documents=documents, label=label)


def _is_payload_with_schema(value: dict[str, Any]) -> bool:
    return value.keys() == {"schema", "payload"} and isinstance(value["payload"], dict | None)


def _objects(values: Sequence[bytes]) -> tuple[Documents, list[dict[str, Any]], int]:
    """Return how objects are in the values, the objects, and how many values are not made of objects."""
    found: list[dict[str, Any]] = []
    for documents in _DOCUMENTS:
        found, other = [], 0
        for value in values:
            try:
                found += _objects_in(value, documents)
            except ValueError:
                other += 1
        if other <= (1 - _MOST) * len(values):
            return documents, found, other
    return "one", [], len(values)


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


def _encodings_of(values: Sequence[bytes]) -> tuple[Encoding, ...]:
    """Return the encodings that all values have, the outermost first; () if they have none in common."""
    for beginning, encodings in _BEGINNINGS.items():
        if values and all(value.startswith(beginning) for value in values):
            return encodings if _unwrapped(values[:1], encodings) else ()
    return ()


def _unwrapped(values: Sequence[bytes], encodings: tuple[Encoding, ...]) -> Sequence[bytes]:
    """Return the values without their encodings, but for those that do not have them."""
    if not encodings:
        return values
    found = []
    for value in values:
        try:
            found.append(unwrapped(value, encodings))
        except ValueError:
            continue
    return found


def _texts(values: Sequence[bytes]) -> list[str] | None:
    """Return the values as text; None if one is not UTF-8, or has U+0000, which Postgres cannot store."""
    try:
        texts = [value.decode() for value in values]
    except UnicodeDecodeError:
        return None
    return None if any("\0" in text for text in texts) else texts
