"""What flattened events say, in the arrays that Debezium has for envelopes: the operation, and the row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.connect.readings import Reading
from exactbatch.formats.debezium.avro_events import build_array, read_as
from exactbatch.formats.debezium.flattened.spec import DELETED, OP
from exactbatch.formats.debezium.images import DELETE, UPDATE, Images, of_json_text, raw_fields
from exactbatch.formats.json.blocks import read_objects
from exactbatch.formats.json.raw_fields import fields_as_text
from exactbatch.formats.postgres_limits import refuse_infinity

_BOOLEAN: Final = rf'"{DELETED}"\s*:\s*(?:true|false)'
_INSERT: Final = "c"
_SOURCE: Final = r'"source"\s*:\s*\{'


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Events, and the JSON of those that may be no rows at all."""

    images: Images
    suspects: pa.StringArray


def json_rows(text: pa.StringArray, readings: Mapping[str, Reading]) -> JsonRows:
    """Read events that are JSON objects. Raises ValueError for text that is none, and for a field of another type."""
    raw = raw_fields(text, readings)
    types = {name: reading.read for name, reading in readings.items() if name not in raw}
    read, deleted = _read(text, types)
    raw_columns = (Column("field", "jsonb"),) * len(raw)
    texts = dict(zip(raw, fields_as_text(text, raw_columns, tuple(raw)), strict=True)) if raw else {}

    def column(name: str, _deleted: pa.BooleanArray) -> pa.Array:
        if name in texts:
            return of_json_text(readings[name], texts[name])
        values = read.column(name)
        refuse_infinity(values)
        return values

    suspect = pc.match_substring_regex(text, _SOURCE)
    lacking = pa.repeat(pa.scalar(True), len(text))
    for values in (*texts.values(), *(read.column(name) for name in types)):
        lacking = pc.and_(lacking, values.is_null())
        if not lacking.true_count:
            break
    images = _images(operations(deleted, read.column(OP).cast(pa.string())), column)
    return JsonRows(images, text.filter(pc.or_(suspect, lacking)))


def _read(text: pa.StringArray, types: Mapping[str, pa.DataType]) -> tuple[pa.RecordBatch, pa.Array]:
    """Return fields of events, among them `__op`, and `__deleted`, which is text or boolean in all of them."""

    def read(type_of_deleted: pa.DataType) -> tuple[pa.RecordBatch, pa.Array]:
        fields = {OP: pa.string(), **types, DELETED: type_of_deleted}
        batch = read_objects(text, pa.schema(list(fields.items()))).combine_chunks().to_batches()[0]
        return batch, batch.column(DELETED)

    try:
        return read(pa.string())
    except ValueError:
        if not pc.any(pc.match_substring_regex(text, _BOOLEAN)).as_py():
            raise
    return read(pa.bool_())


def avro_rows(events: Sequence[Mapping[str, Any]], readings: Mapping[str, Reading]) -> Images:
    """Return what events say, in the arrays that JSON would give. Raises ValueError for a field of another type."""
    written = [event.get(DELETED) for event in events]
    is_boolean = any(isinstance(each, bool) for each in written)

    def column(name: str, _deleted: pa.BooleanArray) -> pa.Array:
        return read_as(readings[name], [event.get(name) for event in events])

    deleted = build_array(written, pa.bool_() if is_boolean else pa.string())
    op = build_array([event.get(OP) for event in events], pa.string())
    return _images(operations(deleted, op), column)


def operations(deleted: pa.Array, op: pa.StringArray) -> pa.StringArray:
    """Return what happened to each row, as `op` of an envelope says it, from `__deleted` and `__op`, which may be null.

    Without `__op`, an event with `__deleted` counts as an update, whose values may have been left out: deletes arrive,
    so that no value of an earlier row of the key can be taken for its own. Any other event counts as an insert.

    Raises ValueError for text that is neither true nor false, and if the two contradict each other.
    """
    if pa.types.is_string(deleted.type):
        known = pc.or_kleene(pc.is_in(deleted, pa.array(["true", "false"])), deleted.is_null())
        if not pc.all(known, min_count=0).as_py():
            wrong = deleted.filter(pc.invert(known))[0].as_py()
            raise ValueError(f"{DELETED}: expected true or false, found {wrong!r}")
        deleted = pc.equal(deleted, "true")
    contradicts = pc.not_equal(deleted, pc.equal(op, DELETE))  # null if one of them is missing
    if pc.any(contradicts, min_count=0).as_py():
        at = pc.indices_nonzero(contradicts)[0].as_py()
        raise ValueError(f"{DELETED} is {str(deleted[at]).lower()}, and {OP} is {op[at].as_py()!r}")
    unknown = pc.if_else(deleted.is_valid(), UPDATE, _INSERT)
    return pc.if_else(pc.fill_null(deleted, False), DELETE, pc.coalesce(op, unknown))


def _images(op: pa.StringArray, column: Callable[[str, pa.BooleanArray], pa.Array]) -> Images:
    def has(_image: str) -> pa.BooleanArray:
        return pa.repeat(pa.scalar(True), len(op))

    def source(_name: str) -> pa.Array:
        return pa.nulls(len(op))

    return Images(op, has, column, source)
