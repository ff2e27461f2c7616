"""The content of Debezium's events in arrays: the operation, the row before and after, and fields of the source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.connect.readings import Reading
from exactbatch.formats.json.blocks import read_objects
from exactbatch.formats.json.raw_fields import TOO_DEEP, fields_as_text
from exactbatch.formats.not_finite import floats_of_json, has_floats, may_have_not_finite
from exactbatch.formats.postgres_limits import refuse_infinity

# Debezium's documentation, "Change event values": create, update, delete, read (of a snapshot), and truncate.
UPDATE: Final = "u"
DELETE: Final = "d"
SNAPSHOT: Final = "r"
TRUNCATE: Final = "t"
WRITES: Final = ("c", UPDATE, SNAPSHOT)


class _ImageTexts(msgspec.Struct, gc=False):
    before: msgspec.Raw = msgspec.Raw(b"null")
    after: msgspec.Raw = msgspec.Raw(b"null")


class _Envelope(_ImageTexts, gc=False):
    payload: _ImageTexts | None = None


_ENVELOPES: Final = msgspec.json.Decoder(_Envelope)  # bare, or in their payload


@dataclass(frozen=True, slots=True)
class Images:
    """What n events say.

    `op` is null for an event without it. `has` says for "before" and "after" whether an event has this image of its
    row, and `column` returns a column, of `before` for events that delete and of `after` for others, in the Arrow type
    of its reading. `source` returns a field of the source.
    """

    op: pa.StringArray
    has: Callable[[str], pa.BooleanArray]
    column: Callable[[str, pa.BooleanArray], pa.Array]
    source: Callable[[str], pa.Array]


def json_images(
    text: pa.StringArray, readings: Mapping[str, Reading], source: Mapping[str, pa.DataType]
) -> Images:
    """Read events that are JSON objects, bare or as the payload of an object.

    `readings` are the readings of the columns, and `source` the types of fields of the source. Raises ValueError for
    text that is not such an object, and for a field of another type.
    """
    raw = raw_fields(text, readings)
    row = pa.struct([(name, reading.read) for name, reading in readings.items() if name not in raw])
    fields = [pa.field("before", row), pa.field("after", row), pa.field("op", pa.string())]
    if source:
        fields.append(pa.field("source", pa.struct([pa.field(*each) for each in source.items()])))
    schema = pa.schema([*fields, pa.field("payload", pa.struct(fields))])
    read = read_objects(text, schema).combine_chunks().to_batches()[0]
    has_payload = pc.is_valid(read.column("payload"))
    texts = _raw_fields(text, raw) if raw else {}

    def of(*path: str) -> pa.Array:
        """A field of the envelope, bare or in the payload."""
        bare = pc.struct_field(read.column(path[0]), path[1:]) if path[1:] else read.column(path[0])
        return pc.if_else(has_payload, pc.struct_field(read.column("payload"), path), bare)

    def has(image: str) -> pa.BooleanArray:
        inside = pc.is_valid(pc.struct_field(read.column("payload"), [image]))
        return pc.if_else(has_payload, inside, pc.is_valid(read.column(image)))

    def column(name: str, deleted: pa.BooleanArray) -> pa.Array:
        if name not in raw:
            values = pc.if_else(deleted, of("before", name), of("after", name))
            refuse_infinity(values)
            return values
        return of_json_text(readings[name], pc.if_else(deleted, texts["before", name], texts["after", name]))

    return Images(of("op"), has, column, lambda name: of("source", name))


def raw_fields(text: pa.StringArray, readings: Mapping[str, Reading]) -> list[str]:
    """Return the fields of JSON objects that are read as JSON text, because Arrow cannot read them exactly."""
    not_finite = may_have_not_finite(text)
    return [
        name
        for name, reading in readings.items()
        if reading.read is None or (not_finite and has_floats(reading.read))
    ]


def of_json_text(reading: Reading, written: pa.StringArray) -> pa.Array:
    """Return JSON texts in the Arrow type of a reading; raise ValueError for texts of another type."""
    if reading.read is not None:
        return floats_of_json(written, reading.read)
    return written if reading.of_json is None else reading.of_json(written)


def _raw_fields(text: pa.StringArray, names: Sequence[str]) -> dict[tuple[str, str], pa.Array]:
    """Return fields of both images as JSON text; null for a missing field and for JSON's null.

    The objects are known to be JSON. Raises ValueError for a field given twice and deep nesting.
    """
    columns = (Column("field", "json"),) * len(names)
    try:
        events = list(map(_ENVELOPES.decode, text.to_pylist()))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    rows = [event if event.payload is None else event.payload for event in events]
    found = {}
    for image in ("before", "after"):
        written = [bytes(getattr(row, image)) for row in rows]
        objects = pa.array([b"{}" if each == b"null" else each for each in written], pa.binary())
        fields = fields_as_text(objects.cast(pa.string()), columns, tuple(names))
        found.update({(image, name): field for name, field in zip(names, fields, strict=True)})
    return found


def deletes(op: pa.StringArray, *, with_truncates: bool) -> pa.BooleanArray:
    """Return true for each delete and truncate; raise ValueError for an event that is not a change.

    Without `with_truncates`, a truncate is no change.
    """
    deleting = pa.array([DELETE, *([TRUNCATE] if with_truncates else [])])
    known = pc.fill_null(pc.is_in(op, pa.concat_arrays([pa.array(WRITES), deleting])), False)
    if not pc.all(known).as_py():
        unknown = op.filter(pc.invert(known))[0].as_py()
        raise ValueError(f"expected op c, u, r or d, found {'none' if unknown is None else repr(unknown)}")
    return pc.is_in(op, deleting)
