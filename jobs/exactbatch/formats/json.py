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

# Arrow's reader splits a block that is larger than its block size, but cannot split inside an object: the block size
# has to exceed the block by some bytes.
_BLOCK_MARGIN = 1024
# Characters: the reason quotes a value that does not fit, which may be a megabyte.
_REASON_LENGTH = 500


@dataclass(frozen=True)
class Json:
    """Values are JSON objects; `schema` names the fields to take, such as `"year int, carrier text"`.

    Decoding is strict: a number for a text column, a fraction for an integer, a number out of range, or a field
    given twice makes the record a reject. A missing field is null; fields that are not named are ignored. Only a
    numeric column takes a number from a string. json and jsonb keep the text of any field. Types that Postgres reads
    from text, such as uuid, take a string; arrays take an array of what their element type takes.

    Timestamps and dates are ISO 8601 strings; a timestamptz without an offset is in UTC, and a timestamp with an
    offset is converted to UTC. If they are numbers since 1970, `epoch` names the unit, as in `{"created": "ms"}`:
    s, ms, us or ns for a timestamp, d for a date. Nanoseconds are truncated to microseconds.

    A null value is a tombstone: it is counted and gives no row. Raises ConfigurationError for an invalid schema.
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
        """Decode n values, in one block if all of them are objects."""
        return decode_present(values, self._decode_block)

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        """Return one row for each value, or raise ValueError, which for a single value names the column."""
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
        """Return one row for each object, or raise ValueError."""
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
        arrays = dict(zip(as_text, fields_as_text(text, as_text), strict=True))
        arrays.update(zip(parsed, table.columns, strict=True))
        return pa.table({column.name: arrays[column] for column in columns})

    def _read_as(self, column: Column) -> "pa.Field":
        import pyarrow as pa

        return pa.field(column.name, pa.int64() if column.name in self.epoch else readable(column.arrow_type))


def why_refused(
    value: "pa.BinaryArray", columns: Sequence[Column], read: "Callable[[Sequence[Column]], object]"
) -> str:
    """Return why a format refuses one JSON object: its syntax, a part that is not a column, or the first column
    that is refused on its own.

    `read` reads some of the columns, or none, from the object, and raises ValueError if it refuses them.
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
        return _reason_from_arrow(str(error), named=named)
    return None


def _reason_from_arrow(message: str, *, named: bool) -> str:
    """Rewrite Arrow's message about a block of one value; `named` keeps the path of the field."""
    message = re.sub(r" in row \d+$", "", message[:_REASON_LENGTH]).removeprefix("JSON parse error: ")
    message = re.sub(
        r"^Failed to convert JSON to decimal\d+\((\d+), (\d+)\): (.*) requires (precision|scale) \d+$",
        _digits_in_words,
        message,
    )
    reason = r"\1: expected \2, found \3" if named else r"expected \2, found \3"
    return re.sub(r"^Column\(/?(.*)\) changed from (\w+) to (\w+)$", reason, message)


def _digits_in_words(match: re.Match[str]) -> str:
    precision, scale, number, lacking = match.groups()
    what = f"{precision} digits" if lacking == "precision" else f"{scale} places"
    return f"expected a number with at most {what}, found {number}"


def stored_schema(columns: Sequence[Column]) -> "pa.Schema":
    """Return the columns with their staged types."""
    import pyarrow as pa

    return pa.schema([(column.name, column.arrow_type) for column in columns])


def readable(type_: "pa.DataType") -> "pa.DataType":
    """Return the type by which Arrow's JSON reader reads a column exactly.

    The reader does not parse ISO dates, so that they are read as text and cast."""
    import pyarrow as pa

    if pa.types.is_list(type_):
        return pa.list_(readable(type_.value_type))
    return pa.string() if pa.types.is_date(type_) else without_wrapping(type_)


def read_objects(text: "pa.StringArray", schema: "pa.Schema") -> "pa.Table":
    """Return one row for each object, or raise ValueError.

    The objects are joined by newlines and parsed at once. That is exact: each starts with `{` and ends with `}`, so
    that no two can merge into one object (`}` newline `{` is not valid inside one), and as many rows as values means
    that no value held two objects. A block of top-level nulls, which would crash Arrow's reader, cannot occur
    either.
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
    """Cast a table to its staged types; raise ValueError for a value that Postgres cannot store."""
    for column in table.columns:
        check_storable(column)
        refuse_infinity(column)
    return table.cast(schema)


def objects(values: "pa.BinaryArray") -> "pa.StringArray":
    """Return the values as text from `{` to `}`, without surrounding white space, or raise ValueError."""
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
