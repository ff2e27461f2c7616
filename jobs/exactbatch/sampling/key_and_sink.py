"""Propose how rows reach the target: the key, the sink, and the format of message keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Debezium, Flattened, Format, Json, Raw, Text, WithKeyAndHeaders
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.json.blocks import with_nulls
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.message.record_headers import Header
from exactbatch.formats.upsert_changes import as_changes
from exactbatch.member_paths import Path, Step
from exactbatch.sampling.column_names import quoted_if_needed
from exactbatch.sampling.debezium_columns import find_envelope
from exactbatch.sampling.draft import Draft, DraftColumn, EventKey, Fitted, decode, list_epochs, schema_text
from exactbatch.sampling.json_columns import find_columns
from exactbatch.sampling.registry_columns import RegistryAddress, as_produced, avro_names, has_schema_id
from exactbatch.sampling.value_types import find_shape, parse_json
from exactbatch.sinks import Append, FormatFacts, Sink, SinkTraits, Upsert

_AS_TEXT: Final = "the text of its keys"
_PAYLOAD: Final = "payload"  # where Kafka Connect writes a value next to its schema


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What is known of a topic besides its values.

    `keys`, `values` and `partitions` belong to the n sampled records.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray
    partitions: Sequence[int]
    is_compacted: bool
    registry: RegistryAddress | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """The sink, the value's format with what the sink needs of the key, and why."""

    sink: Sink
    value: Format
    key: Format | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def traits(self) -> SinkTraits:
        """What the sink asks of whoever decodes its rows."""
        return self.sink.find_traits(FormatFacts())


def destination(draft: Draft, fitted: Fitted, facts: TopicFacts, target: str) -> Destination:
    """Return an Upsert for change events and for a compacted topic, if they have keys, and otherwise an Append."""
    append = Append(target)
    if draft.changes is not None:
        return _of_changes(draft.changes, fitted, facts, target)
    tombstones = facts.values.null_count
    if not facts.is_compacted:
        notes: tuple[str, ...] = ("Append: every record becomes a row",)
        if tombstones:
            notes += (
                f"{tombstones:,} of the sampled records have no value, and the topic is not compacted: they are "
                f"counted as tombstones and delete nothing",
            )
        return Destination(append, fitted.format, notes=notes)
    if facts.keys.null_count:
        return Destination(
            append,
            fitted.format,
            notes=(
                f"Append, although the topic is compacted: {facts.keys.null_count:,} sampled records have no key",
            ),
        )
    if reason := _key_in_two_partitions(facts):
        return Destination(
            append, fitted.format, notes=(f"Append, although the topic is compacted: {reason}",)
        )
    reason = "no format was found for its keys"
    for proposal in _upserts(fitted, facts, target):
        if proposal is None or (changes := _accepted(proposal, fitted, facts)) is None:
            continue
        if not _repeats_a_key(changes, proposal.traits.key_columns):
            return proposal
        reason = (
            "a sampled record gives several rows of one key, and nothing says which of them is the latest"
        )
    return Destination(append, fitted.format, notes=(f"Append, although the topic is compacted: {reason}",))


def _of_changes(changes: EventKey, fitted: Fitted, facts: TopicFacts, target: str) -> Destination:
    """Return an Upsert of change events by the fields of their message keys."""
    assert isinstance(fitted.format, Debezium)
    keys = _keys_of_changes(fitted.format, facts)
    names = changes.key or _find_names([key for key in keys if key is not None], facts.registry)
    columns = {field: column for column, field in fitted.format.field_names.items()}
    if None in keys and not changes.key:
        why = f"{keys.count(None):,} sampled events have no message key: give the source table a primary key"
    elif (
        names is None
        and isinstance(fitted.format, Flattened)
        and (plain := _of_column(fitted, facts, target))
    ):
        return plain
    elif names is None or not columns.keys() >= set(names):
        why = "the message keys do not name columns of the row"
    else:
        names = [columns[name] for name in names]
        return Destination(
            Upsert(target, key=tuple(names)),
            fitted.format,
            _key_of_rows(fitted, names),
            (
                f"Upsert by ({', '.join(names)}): each row as of its latest change, ordered by their offsets: a key "
                f"stays in one partition, as connectors write it",
            ),
        )
    return Destination(
        Append(target), fitted.format, notes=(f"Append, one row for each change event: {why}",)
    )


def _keys_of_changes(value: Debezium, facts: TopicFacts) -> list[bytes | None]:
    """Return the message keys of events that change a row."""
    keys: list[bytes | None] = facts.keys.take(decode(value, facts.values).kept).to_pylist()
    return keys


def _key_of_rows(fitted: Fitted, names: Sequence[str]) -> Format | None:
    """Return the format of message keys whose null values delete; None if the events carry their deletes."""
    if not isinstance(fitted.format, Flattened):
        return None
    columns = {column.name: column for column in fitted.columns}
    own = [columns[name] for name in names]
    return replace(fitted.format, schema=schema_text(own), epoch=list_epochs(own))


def _find_names(keys: Sequence[bytes], registry: RegistryAddress | None) -> list[str] | None:
    """Return the names of the fields of message keys, JSON or Avro; None if they differ."""
    if registry is not None and keys and all(map(has_schema_id, keys)):
        return avro_names(keys, registry.address, registry.properties)
    return _find_members(keys)


def _upserts(fitted: Fitted, facts: TopicFacts, target: str) -> "list[Destination | None]":
    """Return Upserts to try, the simplest first."""
    keys = facts.keys.to_pylist()
    names = {column.name for column in fitted.format.columns}
    extra = next(name for name in ("key", "message_key", "record_key") if name not in names)
    raw: Format = Text(extra) if _is_text(keys) else Raw(extra)
    proposals = [_of_members(fitted, facts, target), _of_column(fitted, facts, target)]
    if isinstance(fitted.format, Json):
        proposals.append(_with_members(fitted, facts, target))
    why = f"Upsert: the topic is compacted. The values do not have the key, so {extra} has it"
    value = WithKeyAndHeaders(fitted.format, key=raw)
    proposals.append(Destination(Upsert(target, key=(extra,)), value, raw, (why,)))
    return proposals


def _of_members(fitted: Fitted, facts: TopicFacts, target: str) -> Destination | None:
    """Return an Upsert for keys that are JSON objects whose members the values have, too, in each sampled record."""
    if (of_keys := _columns_of_keys(facts.keys.to_pylist())) is None:
        return None
    columns = _by_member(fitted.columns)
    members = _by_member(of_keys)
    if not columns.keys() >= members.keys():
        return None
    own = [_at(columns[member], _steps_to(column)) for member, column in members.items()]
    names = tuple(column.name for column in own)
    key = Json(schema_text(own), epoch=list_epochs(own))
    decoded = decode(fitted.format, facts.values)
    decoded_keys = find_decoder(key).decode(facts.keys.take(decoded.kept))
    # Members may have the same name by chance: such keys would merge rows that are different.
    if decoded_keys.rejects or decoded_keys.rows != decoded.rows.select(names):
        return None
    return Destination(
        Upsert(target, key=names),
        fitted.format,
        key,
        (
            f"Upsert by ({', '.join(names)}): the topic is compacted, and its keys are JSON objects with these members",
        ),
    )


def _with_members(fitted: Fitted, facts: TopicFacts, target: str) -> Destination | None:
    """Return an Upsert for keys that are JSON objects whose members the values lack."""
    if (own := _columns_of_keys(facts.keys.to_pylist())) is None:
        return None
    if {column.name for column in own} & {column.name for column in fitted.columns}:
        return None
    key = Json(schema_text(own), epoch=list_epochs(own))
    names = tuple(column.name for column in own)
    why = f"Upsert by ({', '.join(names)}): the topic is compacted. The values lack the members of its keys"
    return Destination(Upsert(target, key=names), WithKeyAndHeaders(fitted.format, key=key), key, (why,))


def _of_column(fitted: Fitted, facts: TopicFacts, target: str) -> Destination | None:
    """Return an Upsert by the column that the key is in each sampled record, as text or as Kafka's serializers write
    numbers."""
    decoded = decode(fitted.format, facts.values)
    keys = facts.keys.take(decoded.kept)
    if not len(keys):
        return None
    for column in fitted.format.columns:
        values = decoded.rows.column(column.name)
        schema = f"{quoted_if_needed(column.name)} {column.type}"
        for types, make, kind in _KEY_FORMATS:
            if column.type not in types:
                continue
            key = make(column.name if schema == f"{column.name} text" else schema)
            read = find_decoder(key).decode(keys)
            # Text such as 007 is another key than 7, and yet the same number.
            is_same = kind != _AS_TEXT or _are_texts(values, keys)
            if not read.rejects and is_same and read.rows.column(0).equals(values):
                return Destination(
                    Upsert(target, key=(column.name,)),
                    fitted.format,
                    key,
                    (f"Upsert by {column.name}, which is {kind}: null values delete",),
                )
    return None


_KEY_FORMATS: Final[Sequence[tuple[Sequence[str], Callable[[str], Format], str]]] = (
    (("text", "integer", "bigint", "uuid"), Text, _AS_TEXT),
    (("smallint", "integer", "bigint", "uuid"), Raw, "what its keys hold in bytes"),
)


def _are_texts(values: pa.Array, keys: pa.BinaryArray) -> bool:
    pairs = zip(values.to_pylist(), keys.to_pylist(), strict=True)
    return all(str(value).encode() == key for value, key in pairs)


def _accepted(proposal: Destination, fitted: Fitted, facts: TopicFacts) -> Decoded | None:
    """Return what the proposal makes of the sample; None if it rejects records that the values' format accepts."""
    try:
        changes = decode_changes(proposal, facts)
    except ConfigurationError:
        return None
    broken = {index for index, _ in fitted.broken}
    return None if any(index not in broken for index, _ in changes.rejects) else changes


def _repeats_a_key(changes: Decoded, key: Sequence[str]) -> bool:
    """True if a record gives several rows of one key: no batch of an Upsert without a version commits it."""
    keys = changes.rows.select(key).to_pylist()
    rows = [(at, repr(key)) for at, key in zip(changes.kept.to_pylist(), keys, strict=True)]
    return len(set(rows)) < len(rows)


def decode_changes(proposal: Destination, facts: TopicFacts) -> Decoded:
    """Decode the sample as a batch of the proposed pipeline does."""
    value = proposal.value
    keys = _as_framed(facts.keys, facts.registry)
    if isinstance(value, WithKeyAndHeaders):
        values = _as_framed(facts.values, facts.registry)
        decoded = RecordDecoder(value).decode(values, _Messages(keys))
    else:
        decoded = decode(value, facts.values)
    if not proposal.traits.keeps_deletes:
        return decoded
    return as_changes(
        decoded,
        with_nulls(value, facts.values),
        _Messages(keys),
        None if proposal.key is None else find_decoder(proposal.key),
        proposal.traits.key_columns,
        tombstones_delete=value.tombstone_deletes,
        keeps_unavailable=decoded.unavailable is not None,
    )


def _as_framed(values: pa.BinaryArray, registry: RegistryAddress | None) -> pa.BinaryArray:
    """Return values, or keys, as their producers frame them."""
    return pa.array([as_produced(value, registry) for value in values.to_pylist()], pa.binary())


@dataclass(frozen=True, slots=True)
class _Messages:
    _keys: pa.BinaryArray

    def keys(self) -> pa.BinaryArray:
        return self._keys

    def headers(self) -> list[None]:
        return [None] * len(self._keys)

    def last_headers(self, _name: str) -> dict[int, Header]:
        return {}


def _steps_to(column: DraftColumn) -> tuple[Step, ...]:
    return (column.name,) if column.path is None else column.path.parts[0]


def _by_member(columns: Sequence[DraftColumn]) -> dict[tuple[Step, ...], DraftColumn]:
    """Return columns by the steps to their members, which begin in the payload if all columns are in one."""
    steps = [_steps_to(column) for column in columns]
    start = 1 if all(len(each) > 1 and each[0] == _PAYLOAD for each in steps) else 0
    return {each[start:]: column for each, column in zip(steps, columns, strict=True)}


def _at(column: DraftColumn, steps: tuple[Step, ...]) -> DraftColumn:
    """Return a column for the member to which other steps lead."""
    return replace(column, path=None if steps == (column.name,) else Path((steps,)))


def _columns_of_keys(keys: Sequence[bytes]) -> tuple[DraftColumn, ...] | None:
    """Return columns for keys that are JSON objects with the same members, all of them next to a schema or none of
    them; None for others."""
    if _find_members(keys) is None:
        return None
    parsed = [parse_json(key) for key in keys]
    objects = [find_envelope(each) for each in parsed]
    wrapped = {inner is not outer for inner, outer in zip(objects, parsed, strict=True)}
    if len(wrapped) > 1:
        return None
    columns, _ = find_columns(find_shape(objects), below=(_PAYLOAD,) if wrapped == {True} else ())
    return columns


def _find_members(keys: Sequence[bytes]) -> list[str] | None:
    """Return the names that all keys, JSON objects, have; None if they are others."""
    try:
        parsed = [find_envelope(parse_json(key)) for key in keys]
    except ValueError:
        return None
    if not parsed or not all(isinstance(each, dict) and each.keys() == parsed[0].keys() for each in parsed):
        return None
    return list(parsed[0]) or None


def _is_text(keys: Sequence[bytes]) -> bool:
    try:
        return all("\0" not in key.decode() for key in keys)
    except UnicodeDecodeError:
        return False


def _key_in_two_partitions(facts: TopicFacts) -> str | None:
    places: dict[bytes, int] = {}
    for key, partition in zip(facts.keys.to_pylist(), facts.partitions, strict=True):
        if places.setdefault(key, partition) != partition:
            return f"the key {key[:40]!r} is in partitions {places[key]} and {partition}, and nothing orders them"
    return None
