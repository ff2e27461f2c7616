"""JSON objects, one for each record, decoded by Arrow in blocks."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from exactbatch.columns import Column, parse_columns
from exactbatch.values.format import Decoded, decode_block_or_halves, positions

if TYPE_CHECKING:
    import pyarrow as pa

# Arrow's reader cuts a block that is larger than this (bytes) and refuses to cut inside an object.
_BLOCK_MARGIN = 1024


@dataclass(frozen=True)
class Json:
    """Values are JSON objects; `schema` names the fields to take, as `"year int, carrier text"`.

    Strict: a number for a text column, a fraction for an integer, a number that is out of range or a field
    given twice make the record a reject. A missing field is null; fields that are not named are ignored.
    A timestamptz without an offset is UTC. A null value is a tombstone: it is counted and gives no row.
    """

    null_is_tombstone: ClassVar[bool] = True

    schema: str
    columns: tuple[Column, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", parse_columns(self.schema))

    @cached_property
    def _row_schema(self) -> "pa.Schema":
        import pyarrow as pa

        return pa.schema([(column.name, column.arrow_type) for column in self.columns])

    @cached_property
    def _read_schema(self) -> "pa.Schema":
        """Arrow's JSON reader has no conversion from ISO dates, so a date is read as text and cast."""
        import pyarrow as pa

        return pa.schema(
            [(f.name, pa.string() if pa.types.is_date(f.type) else f.type) for f in self._row_schema]
        )

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block when all of them are objects."""
        import pyarrow.compute as pc

        present = positions(values)
        if tombstones := values.null_count:
            present = pc.filter(present, values.is_valid())
            values = values.drop_null()
        decoded = decode_block_or_halves(values, present, self._decode_block)
        return replace(decoded, tombstones=tombstones)

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        """One row for each value, or ValueError.

        The values are joined by newlines and parsed at once. That is exact because each starts with `{` and
        ends with `}`, so no two of them can merge into one object (`}` newline `{` is no JSON inside one),
        and as many rows as values means that none held two. (A block
        of top-level nulls, which would crash Arrow's reader, cannot pass either.)
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json as pj

        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._row_schema)
        values.cast(pa.string())  # raises on invalid UTF-8, which the reader would let through
        if len(values) == 1:
            values = pa.array([values[0].as_py().strip()], pa.binary())
        objects = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
        if not pc.all(objects).as_py():
            raise ValueError("expected a JSON object: { … }")
        text = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(text),
            pj.ReadOptions(use_threads=False, block_size=text.size + _BLOCK_MARGIN),
            pj.ParseOptions(explicit_schema=self._read_schema, unexpected_field_behavior="ignore"),
        )
        if len(table) != len(values):
            raise ValueError(f"expected one JSON object, found {len(table)}")
        if pc.any(pc.match_substring(values, b"\\u0000")).as_py():
            _refuse_nul(table)
        return table.cast(self._row_schema).combine_chunks().to_batches()[0]


def _refuse_nul(table: "pa.Table") -> None:
    """Postgres cannot store U+0000 in text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
            raise ValueError(f"column {name!r}: Postgres cannot store U+0000 in text")
