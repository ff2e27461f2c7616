"""A proposed pipeline: recognize the format of a sample, fit its columns, choose the sink."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from exactbatch.columns import UNAVAILABLE_COLUMNS
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Raw, Text
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.json.spec import Documents, Encoding
from exactbatch.formats.json.wrapped import unwrap_values
from exactbatch.pipeline import Pipeline
from exactbatch.sampling.csv_columns import draft_csv
from exactbatch.sampling.debezium_columns import (
    draft_debezium,
    draft_flattened,
    is_change,
    is_flattened,
    json_events,
)
from exactbatch.sampling.draft import Draft, DraftColumn, are_most, fit
from exactbatch.sampling.json_columns import draft_json
from exactbatch.sampling.key_and_sink import TopicFacts, decode_changes, destination
from exactbatch.sampling.registry_columns import (
    RegistryAddress,
    check_other_framing,
    draft_registry,
    has_schema_id,
)
from exactbatch.sampling.value_types import find_shape, parse_json

# How values begin that are compressed or encoded: RFC 1952, RFC 8878, and the same and `{"` in base64.
_BEGINNINGS: Final[Mapping[bytes, tuple[Encoding, ...]]] = {
    b"\x1f\x8b": ("gzip",),
    b"\x28\xb5\x2f\xfd": ("zstd",),
    b"H4sI": ("base64", "gzip"),
    b"KLUv/": ("base64", "zstd"),
    b"ey": ("base64",),
}
_LONG: Final = 3000  # bytes of the records of a test


def recognize(values: Sequence[bytes], registry: RegistryAddress | None) -> Draft:
    """Return a draft for values; none is null.

    Raises ConfigurationError for Confluent's wire format without a registry, and what the registry's client raises.
    """
    # JSON's null is a delete in some topics, and says nothing about columns.
    values = [value for value in values if value != b"null"] or values
    with_ids = list(filter(has_schema_id, values))
    if are_most(len(with_ids), len(values)):
        return draft_registry(with_ids, registry)
    check_other_framing(values, registry)
    encodings, inside = _without_encodings(values)
    if (draft := _json(inside, encodings)) is not None:
        return draft
    texts = _texts(values)
    if not are_most(len(texts), len(values)):
        return Draft("bytes", (), lambda _: Raw("bytes"), ("the values are not UTF-8 text: they stay bytes",))
    return draft_csv(texts) or Draft("lines of text", (), lambda _: Text("line"))


def _json(values: Sequence[bytes], encodings: tuple[Encoding, ...]) -> Draft | None:
    documents, objects = _objects(values)
    if not objects:
        return None
    if not encodings and documents == "one" and 2 * sum(map(is_change, objects)) >= len(objects):
        return draft_debezium(json_events(values))
    if not encodings and documents == "one":
        events = json_events(values)
        if 2 * sum(map(is_flattened, events)) >= len(objects):
            return draft_flattened(events)
    label = "JSON objects" if documents == "one" else f"JSON objects, several in a value ({documents})"
    if encodings:
        label += f", in {' of '.join(encodings)}"
    below: tuple[str, ...] = ()
    if all(map(_is_payload_with_schema, objects)):
        below = ("payload",)
        objects = [each["payload"] for each in objects if each["payload"] is not None]
        label += ", each the payload next to its schema (Kafka Connect)"
    return draft_json(find_shape(objects), below=below, encoding=encodings, documents=documents, label=label)


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
                    found.append(unwrap_values(value, encodings))
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


@dataclass(frozen=True, slots=True)
class Proposal:
    """A pipeline for a topic, and what a reader should know of how it came to be.

    `label` names the format, `columns` are those that were drafted, `broken` are the records, by their index in the
    sample, that no schema accepts, and `decoded` is what the pipeline makes of the sample.
    """

    pipeline: Pipeline
    label: str
    columns: tuple[DraftColumn, ...]
    notes: tuple[str, ...]
    broken: tuple[tuple[int, str], ...]
    decoded: Decoded


def propose(name: str, topic: str, target: str, facts: TopicFacts) -> Proposal:
    """Return a pipeline that decodes all records of a sample, except those that no schema accepts.

    Raises ConfigurationError for a sample of null values alone, and for values of a schema registry without its
    address.
    """
    values = facts.values
    present = [value for value in values.to_pylist() if value is not None]
    if not present:
        raise ConfigurationError(
            f"all {len(values):,} sampled records of {topic!r} are tombstones: their values are null, and say nothing "
            f"about columns. Sample the topic again once it has values, or sample more: --records."
        )
    draft = recognize(present, facts.registry)
    fitted = fit(draft, values)
    to = destination(draft, fitted, facts, target)
    pipeline = Pipeline(name=name, topics=(topic,), value=to.value, message_key=to.key, sink=to.sink)
    return Proposal(
        pipeline,
        draft.label,
        fitted.columns,
        (*draft.notes, *to.notes),
        fitted.broken,
        decode_changes(to, facts),
    )


def chosen_records(
    decoded: Decoded, values: pa.BinaryArray, *, count: int, with_tombstone: bool
) -> Sequence[int]:
    """Return the indexes of a few short records for a test, in their order: those with most columns, and a shorter one.

    Of long records, there is only one. Records that no test can expect are left out.
    """
    sizes = [len(value.as_py() or b"") for value in values]
    kept = sorted(set(decoded.kept.to_pylist()))
    filled = dict.fromkeys(kept, 0)
    for column in decoded.rows.columns:
        for index, is_valid in zip(decoded.kept.to_pylist(), column.is_valid().to_pylist(), strict=True):
            filled[index] += is_valid
    unexpected = _unexpected(decoded)
    present = [index for index in kept if values[index].is_valid and index not in unexpected]
    by_columns = sorted(present, key=lambda index: (-filled[index], sizes[index]))
    chosen = by_columns[: max(1, count - 1)]
    shortest = sorted((index for index in present if index not in chosen), key=lambda index: sizes[index])
    chosen += shortest[: count - len(chosen)]
    if sum(sizes[index] for index in chosen) > _LONG:
        chosen = chosen[:1]
    if with_tombstone:
        chosen += [index for index in kept if not values[index].is_valid][:1]
    return sorted(chosen)


def _unexpected(decoded: Decoded) -> set[int]:
    """Return the indexes of records that no test can expect: with values that the source left out, which are not in the
    target of a test, or with NaN, which is not equal to itself."""
    unavailable = decoded.unavailable
    if UNAVAILABLE_COLUMNS in decoded.rows.schema.names:
        unavailable = decoded.rows.column(UNAVAILABLE_COLUMNS)
    marks = [] if unavailable is None else [unavailable.is_valid().to_pylist()]
    for column in decoded.rows.columns:
        is_list = pa.types.is_list(column.type)
        if pa.types.is_floating(column.type.value_type if is_list else column.type):
            lists = column.to_pylist() if is_list else [[value] for value in column.to_pylist()]
            marks.append([any(value != value for value in each or ()) for each in lists])
    kept = decoded.kept.to_pylist()
    return {index for mark in marks for index, is_marked in zip(kept, mark, strict=True) if is_marked}
