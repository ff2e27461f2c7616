"""Blocks of JSON objects, as Arrow reads them: several formats share this.

Of Kafka Connect's JSON converter, {"schema":null,"payload":null} stands for no value at all: older converters write a
tombstone so, with schemas.enable=true.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from exactbatch.columns import Column
from exactbatch.formats.decimals import has_decimals, refuse_tiny_fields, without_wrapping
from exactbatch.formats.format import Format
from exactbatch.formats.postgres_limits import check_storable, is_too_fine, refuse_infinity, too_fine
from exactbatch.formats.refused_text import decode_text, half_surrogate, not_an_object, without_marks
from exactbatch.member_paths import Path

# Arrow's reader splits a block that is larger than its block size, but cannot split inside an object: the block size
# has to exceed the block by some bytes.
_BLOCK_MARGIN = 1024
_NO_TIMESTAMP = re.compile(r"Failed to convert JSON to timestamp\[.*\], couldn't parse:(.*)")
# Characters: the reason quotes a value that does not fit, which may be a megabyte.
_REASON_LENGTH = 500
_PAYLOAD: Final = "payload"
_MAY_BE: Final = r'"payload"\s*:\s*null'
ENVELOPED_NULL: Final = (
    "the value is a null in the envelope of Kafka Connect's JSON converter, whose payload has no members"
)


def why_refused(
    value: pa.BinaryArray,
    columns: Sequence[Column],
    read: Callable[[Sequence[Column]], object],
    paths: Mapping[str, Path] | None = None,
) -> str:
    """Return why a format refuses one JSON object: its syntax, a part that is not a column, or the first column
    that is refused on its own.

    `read` reads some of the columns, or none, from the object, and raises ValueError if it refuses them. `paths` has
    those of columns that do not take the member of their name.
    """
    try:
        text = objects(value)
    except ValueError as error:
        return str(error)
    if refusal := _syntax_refusal(text):
        return half_surrogate(text[0].as_py()) or refusal
    if refusal := _refusal(partial(read, ()), named=True):
        return refusal
    suspects = columns
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if _refusal(partial(read, half)) else suspects[len(half) :]
    column = suspects[0]
    if paths and (path := paths.get(column.name)) is not None:
        return f"column {column.name!r}, {column.type}, from '{path}': {_refusal(partial(read, suspects), named=True)}"
    return f"column {column.name!r}, {column.type}: {_refusal(partial(read, suspects))}"


def _syntax_refusal(text: pa.StringArray) -> str | None:
    """Return why Arrow cannot parse the text of one object, whatever its members are; None if it can."""
    refusal = _refusal(lambda: read_objects(text, pa.schema([])))
    return None if refusal is None else f"expected one JSON object: {refusal}"


def _refusal(read: Callable[[], object], *, named: bool = False) -> str | None:
    try:
        read()
    except ValueError as error:
        return reason_from_arrow(str(error), named=named)
    return None


def reason_from_arrow(message: str, *, named: bool) -> str:
    """Rewrite Arrow's message about a block of one value; `named` keeps the path of the field."""
    message = re.sub(r" in row \d+$", "", message[:_REASON_LENGTH]).removeprefix("JSON parse error: ")
    message = re.sub(
        r"^Failed to convert JSON to decimal\d+\((\d+), (\d+)\): (.*) requires (precision|scale) \d+$",
        _digits_in_words,
        message,
    )
    message = re.sub(
        r"^The string (.*) is not a valid decimal\d+ number$", r"expected a number, found \1", message
    )
    if (match := _NO_TIMESTAMP.fullmatch(message)) and is_too_fine(match[1]):
        return too_fine(match[1])
    reason = r"\1: expected \2, found \3" if named else r"expected \2, found \3"
    return re.sub(r"^Column\(/?(.*)\) changed from (\w+) to (\w+)$", reason, message)


def _digits_in_words(match: re.Match[str]) -> str:
    precision, scale, number, lacking = match.groups()
    what = f"{precision} digits" if lacking == "precision" else f"{scale} places"
    return f"expected a number with at most {what}, found {number}"


def stored_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the columns with their staged types."""
    return pa.schema([(column.name, column.arrow_type) for column in columns])


def readable(type_: pa.DataType) -> pa.DataType:
    """Return the type by which Arrow's JSON reader reads a column exactly.

    The reader does not parse ISO dates, so that they are read as text and cast."""
    if pa.types.is_list(type_):
        return pa.list_(readable(type_.value_type))
    return pa.string() if pa.types.is_date(type_) else without_wrapping(type_)


def read_objects(text: pa.StringArray, schema: pa.Schema) -> pa.Table:
    """Return one row for each object, or raise ValueError.

    The objects are joined by newlines and parsed at once. That is exact: each starts with `{` and ends with `}`, so
    that no two can merge into one object (`}` newline `{` is not valid inside one), and as many rows as values means
    that no value held two objects. A block of top-level nulls, which would crash Arrow's reader, cannot occur
    either.
    """
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


def as_stored(table: pa.Table, schema: pa.Schema, *, finite: bool = True) -> pa.Table:
    """Cast a table to its staged types; raise ValueError for a value that Postgres cannot store and, if `finite`, for
    NaN and infinity."""
    for column in table.columns:
        check_storable(column)
        if finite:
            refuse_infinity(column)
    return table.cast(schema)


def objects(values: pa.BinaryArray) -> pa.StringArray:
    """Return the values as text from `{` to `}`, without surrounding white space and a byte order mark before it, which
    RFC 8259 lets a parser ignore, or raise ValueError."""
    text = decode_text(values)  # raises on invalid UTF-8, which Arrow's JSON reader would let through
    if not _are_objects(text):
        text = pc.ascii_trim(without_marks(text), characters=" \t\r\n")
        if not _are_objects(text):
            raise ValueError(not_an_object(text[0].as_py()) if len(text) == 1 else "")
    return text


def _are_objects(text: pa.StringArray) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py())


def is_enveloped_null(value: Any) -> bool:
    """True for the envelope of a null, as parsed JSON."""
    return isinstance(value, dict) and value.keys() == {"schema", _PAYLOAD} and value[_PAYLOAD] is None


def with_nulls(spec: Format, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values with null for the envelope of a null, if it counts as null in their format."""
    return without_envelopes(values) if spec.reads_payloads else values


def without_envelopes(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values with null for the envelope of a null."""
    suspect = pc.fill_null(pc.match_substring_regex(values, _MAY_BE), False)
    if not pc.any(suspect, min_count=0).as_py():
        return values
    pairs = zip(suspect.to_pylist(), values, strict=True)
    is_null = pa.array([may_be and _is_null(value.as_py()) for may_be, value in pairs], pa.bool_())
    return pc.if_else(is_null, pa.scalar(None, values.type), values)


def _is_null(value: bytes) -> bool:
    try:
        return is_enveloped_null(json.loads(value))
    except (ValueError, RecursionError):
        return False
