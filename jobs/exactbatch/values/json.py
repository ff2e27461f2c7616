"""JSON objects, one for each record, decoded by Arrow in blocks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from exactbatch.columns import Column, parse_columns
from exactbatch.values.format import Decoded, decode_present

if TYPE_CHECKING:
    import pyarrow as pa

# Arrow's reader cuts a block that is larger than this (bytes) and refuses to cut inside an object.
_BLOCK_MARGIN = 1024
# Characters: a value that does not fit stands in the reason, and may be a megabyte.
_REASON_LENGTH = 500


@dataclass(frozen=True)
class Json:
    """Values are JSON objects; `schema` names the fields to take, as `"year int, carrier text"`.

    Strict: a number for a text column, a fraction for an integer, a number that is out of range or a field
    given twice make the record a reject. A missing field is null; fields that are not named are ignored.
    A number may stand in a string for numeric only. Timestamps and dates are ISO 8601 in a string; a
    timestamptz without an offset is UTC, and a timestamp with one is taken to UTC.
    A null value is a tombstone: it is counted and gives no row.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True

    schema: str
    columns: tuple[Column, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", parse_columns(self.schema))

    @cached_property
    def _row_schema(self) -> "pa.Schema":
        import pyarrow as pa

        return pa.schema([(column.name, column.arrow_type) for column in self.columns])

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block when all of them are objects."""
        return decode_present(values, self._decode_block)

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        """One row for each value, or ValueError; for a single value it says which column is to blame."""
        import pyarrow as pa

        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._row_schema)
        text = objects(values)
        try:
            rows = self._read(text, self.columns)
        except ValueError:
            if len(text) > 1:
                raise
            raise ValueError(self._reason(text)) from None
        return rows.combine_chunks().to_batches()[0]

    def _read(self, text: "pa.StringArray", columns: Sequence[Column]) -> "pa.Table":
        """The columns of one row for each object, or ValueError."""
        import pyarrow as pa

        names = [column.name for column in columns]
        table = read_objects(text, pa.schema([readable(self._row_schema.field(name)) for name in names]))
        return as_stored(table, pa.schema([self._row_schema.field(name) for name in names]))

    def _reason(self, text: "pa.StringArray") -> str:
        """Why one object is refused: for its syntax, or for the first column that is refused by itself."""
        if refusal := self._refusal(text, ()):
            return f"expected one JSON object: {refusal}"
        suspects = self.columns
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            suspects = half if self._refusal(text, half) else suspects[len(half) :]
        return f"column {suspects[0].name!r}, {suspects[0].type}: {self._refusal(text, suspects)}"

    def _refusal(self, text: "pa.StringArray", columns: Sequence[Column]) -> str | None:
        try:
            self._read(text, columns)
        except ValueError as error:
            return _arrows_words(str(error))
        return None


def _arrows_words(said: str) -> str:
    """What Arrow says of a block of one value, without what is known."""
    said = re.sub(r" in row \d+$", "", said[:_REASON_LENGTH]).removeprefix("JSON parse error: ")
    return re.sub(r"^Column\(.*\) changed from (\w+) to (\w+)$", r"expected \1, found \2", said)


def readable(field: "pa.Field") -> "pa.Field":
    """A field as Arrow's JSON reader can read it: it has no conversion from ISO dates, so they are read as
    text and cast."""
    import pyarrow as pa

    return field.with_type(pa.string()) if pa.types.is_date(field.type) else field


def read_objects(text: "pa.StringArray", schema: "pa.Schema") -> "pa.Table":
    """One row for each object, or ValueError.

    The objects are joined by newlines and parsed at once. That is exact because each starts with `{` and
    ends with `}`, so no two of them can merge into one object (`}` newline `{` is no JSON inside one),
    and as many rows as values means that none held two. (A block of top-level nulls, which would crash
    Arrow's reader, cannot pass either.)
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    block = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
    table = pj.read_json(
        pa.BufferReader(block),
        pj.ReadOptions(use_threads=False, block_size=block.size + _BLOCK_MARGIN),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if len(table) != len(text):
        raise ValueError(f"found {len(table)} objects in {len(text)} values")
    return table


def as_stored(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """The table in the types that are stored, or ValueError for what Postgres could not store."""
    _refuse_what_does_not_fit(table)
    # Looking for an escaped U+0000 in the objects instead takes six times as long: they are larger.
    _refuse_nul(table)
    return table.cast(schema)


def objects(values: "pa.BinaryArray") -> "pa.StringArray":
    """The values as text from `{` to `}`, without white space around them, or ValueError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = values.cast(pa.string())  # raises on invalid UTF-8, which Arrow's JSON reader would let through
    if not _are_objects(text):
        text = pc.ascii_trim(text, characters=" \t\r\n")
        if not _are_objects(text):
            raise ValueError("expected a JSON object: { … }")
    return text


def _are_objects(text: "pa.StringArray") -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py())


def _refuse_what_does_not_fit(table: "pa.Table") -> None:
    """Arrow's reader checks the range of integers only: it lets a decimal have too many digits, and makes
    infinity of a number that is too large for a float."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in table.columns:
        if pa.types.is_decimal(column.type):
            column.validate(full=True)
        elif pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
            raise ValueError("expected a number in the range of the type, found NaN or infinity")


def _refuse_nul(table: "pa.Table") -> None:
    """Postgres cannot store U+0000 in text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in table.columns:
        if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
            raise ValueError("Postgres cannot store U+0000 in text")
