"""JSON objects, one for each record, decoded by Arrow in blocks."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

from exactbatch.columns import Column, parse_columns
from exactbatch.formats.decimals import has_decimals, refuse_tiny_fields, without_wrapping
from exactbatch.formats.epoch import check_epoch, from_epoch
from exactbatch.formats.format import Decoded, decode_present
from exactbatch.formats.postgres_limits import check_storable, refuse_infinity
from exactbatch.formats.raw_json_fields import check_names, fields_as_text, is_kept_as_text
from exactbatch.options import check_types

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
    A number may stand in a string for numeric only. json and jsonb take any field as the text that it is.
    Types that Postgres reads from text, as uuid, take a string; arrays take an array of what their elements take.

    Timestamps and dates are ISO 8601 in a string; a timestamptz without an offset is UTC, and a timestamp with
    one is taken to UTC. Where they are numbers since 1970, `epoch` names the unit: `{"created": "ms"}`, one of s,
    ms, us, ns for a timestamp and d for a date; ns are cut down to microseconds.

    A null value is a tombstone: it is counted and gives no row. Raises ConfigurationError for what is no schema.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True

    schema: str
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    columns: tuple[Column, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "columns", parse_columns(self.schema))
        check_epoch(self.epoch, self.columns)
        check_names(self.columns)

    @cached_property
    def _row_schema(self) -> "pa.Schema":
        return stored_schema(self.columns)

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
            raise ValueError(why_refused(text, self.columns, partial(self._read, text))) from None
        return rows.combine_chunks().to_batches()[0]

    def _read(self, text: "pa.StringArray", columns: Sequence[Column]) -> "pa.Table":
        """The columns of one row for each object, or ValueError."""
        import pyarrow as pa

        as_text = tuple(filter(is_kept_as_text, columns))
        parsed = [column for column in columns if column not in as_text]
        table = read_objects(text, pa.schema([self._read_as(column) for column in parsed]))
        for index, column in enumerate(parsed):
            if unit := self.epoch.get(column.name):
                moments = from_epoch(table.column(index), unit, column.arrow_type)
                table = table.set_column(index, column.name, moments)
        table = as_stored(table, stored_schema(parsed))
        if not as_text:
            return table
        found = dict(zip(as_text, fields_as_text(text, as_text), strict=True))
        found.update(zip(parsed, table.columns, strict=True))
        return pa.table({column.name: found[column] for column in columns})

    def _read_as(self, column: Column) -> "pa.Field":
        import pyarrow as pa

        return pa.field(column.name, pa.int64() if column.name in self.epoch else readable(column.arrow_type))


def why_refused(
    value: "pa.BinaryArray", columns: Sequence[Column], read: "Callable[[Sequence[Column]], object]"
) -> str:
    """Why a format refuses one JSON object: for its syntax, for what it has beside the columns, or for the first
    column that is refused by itself.

    `read` reads some of the columns, or none, from the object, and raises ValueError where it refuses them.
    """
    import pyarrow as pa

    try:
        text = objects(value)
    except ValueError as error:
        return str(error)
    if refusal := _refusal(lambda: read_objects(text, pa.schema([]))):
        return f"expected one JSON object: {refusal}"
    if refusal := _refusal(partial(read, ()), named=True):
        return refusal
    suspects = columns
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if _refusal(partial(read, half)) else suspects[len(half) :]
    return f"column {suspects[0].name!r}, {suspects[0].type}: {_refusal(partial(read, suspects))}"


def _refusal(read: "Callable[[], object]", *, named: bool = False) -> str | None:
    try:
        read()
    except ValueError as error:
        return _arrows_words(str(error), named=named)
    return None


def _arrows_words(said: str, *, named: bool) -> str:
    """What Arrow says of a block of one value, without what is known; `named` keeps the path of a field."""
    said = re.sub(r" in row \d+$", "", said[:_REASON_LENGTH]).removeprefix("JSON parse error: ")
    said = re.sub(
        r"^Failed to convert JSON to decimal\d+\((\d+), (\d+)\): (.*) requires (precision|scale) \d+$",
        _digits_in_words,
        said,
    )
    words = r"\1: expected \2, found \3" if named else r"expected \2, found \3"
    return re.sub(r"^Column\(/?(.*)\) changed from (\w+) to (\w+)$", words, said)


def _digits_in_words(match: re.Match[str]) -> str:
    precision, scale, number, lacking = match.groups()
    what = f"{precision} digits" if lacking == "precision" else f"{scale} places"
    return f"expected a number with at most {what}, found {number}"


def stored_schema(columns: Sequence[Column]) -> "pa.Schema":
    """The columns with the types in which they are stored."""
    import pyarrow as pa

    return pa.schema([(column.name, column.arrow_type) for column in columns])


def readable(type_: "pa.DataType") -> "pa.DataType":
    """A type as Arrow's JSON reader reads it exactly: it has no conversion from ISO dates, so they are read as
    text and cast."""
    import pyarrow as pa

    if pa.types.is_list(type_):
        return pa.list_(readable(type_.value_type))
    return pa.string() if pa.types.is_date(type_) else without_wrapping(type_)


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

    row = pa.struct(list(schema))
    if has_decimals(row):
        refuse_tiny_fields(text, row)
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
    for column in table.columns:
        check_storable(column)
        refuse_infinity(column)
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
