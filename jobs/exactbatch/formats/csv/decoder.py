"""Lines of CSV, decoded by Arrow in blocks.

Arrow reports one bad line of many with an exception, and reading one line takes it as long as reading a thousand. So
if a block fails, Arrow's rules are applied here, one field after the other, to find the reason of each refused line;
Arrow reads the others.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from exactbatch.columns import Column
from exactbatch.formats.csv.spec import QUOTE, Csv
from exactbatch.formats.decimals import (
    has_decimals,
    may_be_tiny,
    parse_decimals,
    refuse_tiny,
    without_wrapping,
)
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, decode_present, find_reasons
from exactbatch.formats.json.blocks import stored_schema
from exactbatch.formats.postgres_limits import NUL, OUT_OF_RANGE, check_rows, is_too_fine, too_fine
from exactbatch.formats.refused_text import (
    NUMBER,
    decode_text,
    has_zone,
    is_infinite,
    is_no_day,
    is_no_integer,
    is_no_moment,
    not_utf8,
    why_no_decimal,
    without_marks,
)

_QUOTE: Final = '"'
_LONGEST: Final = 500  # characters of a reason
_BOOLEANS: Final = frozenset({"true", "True", "TRUE", "false", "False", "FALSE", "1", "0"})
# Fields without quotes end at a delimiter or line; what follows a closing quote, up to there, belongs to the field.
_QUOTED: Final = re.compile(r'"((?:[^"]++|"")*+)"')
# As Arrow reads floating-point numbers: without regard to case, and any note in brackets.
_NOT_FINITE: Final = re.compile(r"[-+]?(?:nan(?:\([a-z0-9_]*\))?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
# Of a field that is not null: why its column refuses it; None if it does not.
_Check = Callable[[str], str | None]
_TOKEN: Final = ""  # the token's column: no column of Postgres has this name
# Arrow reads a hexadecimal integer as two's complement: 0xffff as a smallint would be -1.
_HEXADECIMAL: Final = "(?i)0x"
_NUMBER: Final = r"^[ \t]*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[ \t]*$"
# Arrow's reader splits a block that is larger than its block size; this many bytes make the block size larger.
_BLOCK_MARGIN: Final = 1024
# Arrow skips a byte order mark at the start of a block; without this line, it would be the mark of the first value.
_FIRST_LINE: Final = "-\n"


class RefusedCsv:
    """Says which lines some columns refuse, and why."""

    def __init__(self, columns: Sequence[Column], delimiter: str, null: str) -> None:
        self._columns = [(f"column {column.name!r}, {column.type}", _check(column)) for column in columns]
        self._null = null
        self._unquoted = re.compile(f"[^{re.escape(delimiter)}\r\n]*")
        self._delimiter = delimiter

    def reason(self, value: bytes) -> str | None:
        """Return why a value is refused; None if it is not."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return not_utf8(value)
        lines, is_closed = self._lines(text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r"))
        if not is_closed:
            return "a quote is not closed"
        if len(lines) > 1:
            return f"expected one line, found {len(lines)}"
        (fields,) = lines
        if len(fields) != len(self._columns):
            found = "none" if fields == [("", False)] else len(fields)
            return f"expected a line of {len(self._columns)} fields, found {found}"
        for (label, check), (field, is_quoted) in zip(self._columns, fields, strict=True):
            if (is_quoted or field != self._null) and (reason := check(field)) is not None:
                return f"{label}: {reason[:_LONGEST]}"
        return None

    def _lines(self, text: str) -> tuple[list[list[tuple[str, bool]]], bool]:
        """Return the fields of each line, with whether each is in quotes, and whether the last quote is closed."""
        if _QUOTE not in text and "\n" not in text and "\r" not in text:
            return [[(field, False) for field in text.split(self._delimiter)]], True
        lines: list[list[tuple[str, bool]]] = [[]]
        at = 0
        while True:
            quoted = _QUOTED.match(text, at)
            if quoted is None and text.startswith(_QUOTE, at):
                return lines, False
            field = ""
            if quoted is not None:
                field, at = quoted[1].replace('""', _QUOTE), quoted.end()
            rest = self._unquoted.match(text, at)
            assert rest is not None
            at = rest.end()
            lines[-1].append((field + rest[0], quoted is not None))
            if at == len(text):
                return lines, True
            if text[at] != self._delimiter:
                at += text.startswith("\r\n", at)
                lines.append([])
            at += 1


def _check(column: Column) -> _Check:
    type_ = column.arrow_type
    if pa.types.is_integer(type_):
        return partial(_check_integer, type_)
    if pa.types.is_floating(type_):
        return partial(_check_float, type_.bit_width)
    if pa.types.is_boolean(type_):
        return lambda text: None if text in _BOOLEANS else _invalid(text)
    if pa.types.is_date(type_):
        return lambda text: _invalid(text) if is_no_day(_trimmed(text)) else None
    if pa.types.is_timestamp(type_):
        return partial(_check_timestamp, type_.tz is not None)
    if pa.types.is_decimal(type_):
        wide = without_wrapping(type_) != type_
        return lambda text: why_no_decimal(_trimmed(text), type_, is_wide=wide)
    return _check_numeric if column.type.startswith("numeric") else _check_text


def _trimmed(text: str) -> str:
    return text.strip(" \t")


def _invalid(text: str) -> str:
    return f"invalid value '{text}'"


def _check_integer(type_: pa.DataType, text: str) -> str | None:
    # Arrow reads a hexadecimal integer as two's complement: 0xffff as a smallint would be -1.
    if "0x" in text.lower():
        return "expected an integer in decimal digits, found a hexadecimal number"
    return _invalid(text) if is_no_integer(_trimmed(text), type_) else None


def _check_float(bits: int, text: str) -> str | None:
    number = _trimmed(text)
    if NUMBER.fullmatch(number):
        return OUT_OF_RANGE if is_infinite(number, bits) else None
    return OUT_OF_RANGE if _NOT_FINITE.fullmatch(number) else _invalid(text)


def _check_timestamp(needs_zone: bool, text: str) -> str | None:
    if is_no_moment(text):
        return too_fine(text) if is_too_fine(text) else _invalid(text)
    if has_zone(text) != needs_zone:
        return f"expected {'a' if needs_zone else 'no'} zone offset in '{text}'"
    return None


def _check_numeric(text: str) -> str | None:
    return None if NUMBER.fullmatch(_trimmed(text)) else "expected a number, found something else"


def _check_text(text: str) -> str | None:
    return NUL if "\0" in text else None


class CsvDecoder(Decoder[Csv]):
    """Decodes lines of CSV, in one block if all values are lines."""

    def __init__(self, spec: Csv) -> None:
        super().__init__(spec)
        # The types in which fields are read: text for decimals that Arrow would multiply inexactly.
        self._types = {
            column.name: pa.string() if _is_wide(column.arrow_type) else column.arrow_type
            for column in spec.columns
        }
        self._refused = RefusedCsv(spec.columns, spec.delimiter, spec.null)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, in one block if all of them are lines."""
        return decode_present(values, self.decode_block, partial(find_reasons, self.why_refused))

    def why_refused(self, value: bytes) -> str | None:
        """Return why a value is refused; None if it is not."""
        return self._refused.reason(value)

    def decode_block(self, values: pa.BinaryArray) -> pa.RecordBatch:
        """Return one row for each value, or raise ValueError.

        A value may contain line breaks, or open a quote that a later value closes. Therefore each value is followed
        by another field, a random token: if every row ends with the token, and there are as many rows as values,
        every row begins and ends where a value does.
        """
        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], stored_schema(self.spec.columns))
        text = without_marks(decode_text(values))
        if pc.any(pc.match_substring_regex(text, r"[\r\n]\z")).as_py():
            text = pc.replace_substring_regex(text, r"(?:\r\n|\r|\n)\z", "")
        token = secrets.token_hex(16)
        try:
            return self._rows(text, token)
        except ValueError as error:
            reason = self.why_refused(values[0].as_py()) if len(values) == 1 else None
            raise ValueError(reason or str(error).replace(self.spec.delimiter + token, "")) from None

    def _rows(self, text: pa.StringArray, token: str) -> pa.RecordBatch:
        """Return one row for each line, or raise ValueError."""
        self._refuse_misread(text, token)
        table = self._read(text, token, self._types)
        # The row of an empty line has a null instead of the token.
        ends = pc.equal(table.column(_TOKEN), token)
        if len(table) != len(text) or not pc.all(ends, skip_nulls=False).as_py():
            raise ValueError("rows do not match values")
        table = self._with_wide_decimals(table.drop_columns(_TOKEN))
        rows = table.combine_chunks().to_batches()[0]
        check_rows(rows, self.spec.columns, finite=True)
        for column in self.spec.columns:
            if column.type.startswith("numeric") and column.staged_type == "text":
                numbers = _numbers(rows.column(column.name))
                rows = rows.set_column(rows.schema.get_field_index(column.name), column.name, numbers)
        return rows

    def _refuse_misread(self, text: pa.StringArray, token: str) -> None:
        """Raise ValueError for numbers that Arrow would misread. Values that are not lines are refused later."""
        decimals = [column.name for column in self.spec.columns if has_decimals(column.arrow_type)]
        integers = [column.name for column in self.spec.columns if pa.types.is_integer(column.arrow_type)]
        decimals = decimals if decimals and may_be_tiny(text) else []
        integers = integers if pc.any(pc.match_substring_regex(text, _HEXADECIMAL)).as_py() else []
        if not decimals and not integers:
            return
        try:
            table = self._read(text, token, dict.fromkeys(self._types, pa.string()))
        except ValueError:
            return
        for name in decimals:
            refuse_tiny(table.column(name).drop_null().to_pylist())
        for name in integers:
            if pc.any(pc.match_substring_regex(table.column(name), _HEXADECIMAL)).as_py():
                raise ValueError("expected an integer in decimal digits")

    def _with_wide_decimals(self, table: pa.Table) -> pa.Table:
        for index, column in enumerate(self.spec.columns):
            if _is_wide(column.arrow_type):
                decimals = parse_decimals(table.column(index), column.arrow_type)
                table = table.set_column(index, column.name, decimals)
        return table

    def _read(self, text: pa.StringArray, token: str, types: Mapping[str, pa.DataType]) -> pa.Table:
        types = {**types, _TOKEN: pa.string()}
        after = self.spec.delimiter + token
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), f"{after}\n")
        block = pc.binary_join_element_wise(_FIRST_LINE, lines, f"{after}\n", "")[0].as_buffer()
        return pyarrow.csv.read_csv(
            pa.BufferReader(block),
            pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=block.size + _BLOCK_MARGIN,
                skip_rows=1,
                column_names=list(types),
            ),
            pyarrow.csv.ParseOptions(
                delimiter=self.spec.delimiter,
                quote_char=QUOTE,
                newlines_in_values=True,
                ignore_empty_lines=False,
            ),
            pyarrow.csv.ConvertOptions(
                column_types=types,
                null_values=[self.spec.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


def _is_wide(type_: pa.DataType) -> bool:
    return bool(without_wrapping(type_) != type_)


def _numbers(text: pa.StringArray) -> pa.StringArray:
    """Return numbers without the blanks around them, as Arrow reads those of other types.

    Raises ValueError for text that Postgres would read as a number and Arrow would not, such as NaN and 0x10.
    """
    if not pc.all(pc.match_substring_regex(text, _NUMBER), min_count=0).as_py():
        raise ValueError("expected a number, found something else")
    return pc.utf8_trim(text, " \t")
