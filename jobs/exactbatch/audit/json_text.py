"""Write rows as the JSON text that their producer would have written, to compare it with records byte for byte. Pure.

To write JSON is much simpler than to read it, so that this needs no trust in a parser: the text that a row gives, of
fields with different names and of values that need no escape, is JSON for this row and for no other. A record of
exactly this text is decoded to the values of the row. Any other record may be, too: only decoding it can tell.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]

# Types of Postgres whose values can be written.
WRITTEN: Final = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "boolean",
        "text",
        "date",
        "timestamp with time zone",
        "timestamp without time zone",
    }
)
# A field, without what separates it from the next one: its name and a value that is neither an object nor an array.
_FIELD: Final = re.compile(rb'( *"([^"\\\x00-\x1f]+)" *: *)("[^"\\\x00-\x1f]*"|[-+.0-9A-Za-z]+)( *)')
_MOMENT: Final = re.compile(
    rb'"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ])[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3}|\.[0-9]{6}|)(Z|\+00:00|\+0000|\+00|)"'
)
_UNITS: Final = {0: "s", 4: "ms", 7: "us"}  # by the length of a fraction with its point
# Microseconds and days since 1970, from the first moment of the year 1 to before the year 10000: the years that have
# four digits.
_FIRST_MOMENT, _PAST_MOMENTS = -62_135_596_800_000_000, 253_402_300_800_000_000
_FIRST_DAY, _PAST_DAYS = -719_162, 2_932_897
_QUOTE, _BACKSLASH, _SPACE = b'"\\ '


@dataclass(frozen=True, slots=True)
class _Moment:
    """How a producer writes times: a character before the time of day, the unit of Arrow, and the zone."""

    separator: str = "T"
    unit: str = "s"
    zone: str = "Z"


@dataclass(frozen=True, slots=True)
class JsonText:
    """How a producer writes flat objects.

    types    the types of the pipeline's columns, which are all among WRITTEN
    fields   for each field, in order, the text before its value, and its column
    end      the text after the last value
    moments  how it writes the times of a column
    """

    types: Mapping[str, str]
    fields: Sequence[tuple[str, str]]
    end: str
    moments: Mapping[str, _Moment]

    @classmethod
    def learned(cls, record: bytes, types: Mapping[str, str]) -> "JsonText | None":
        """Return how the producer of a record writes; None unless it is a flat object of some of these
        columns, whose types are given by name."""
        if not record.startswith(b"{"):
            return None
        fields: list[tuple[str, str]] = []
        moments = {}
        before, position, separator = b"{", 1, b","
        while separator == b",":
            field = _FIELD.match(record, position)
            if field is None:
                return None
            position, separator = field.end() + 1, record[field.end() : field.end() + 1]
            try:
                lead, name = (before + field[1]).decode(), field[2].decode()
            except UnicodeDecodeError:
                return None
            fields.append((lead, name))
            if moment := _MOMENT.fullmatch(field[3]):
                moments[name] = _Moment(moment[1].decode(), _UNITS[len(moment[2])], moment[3].decode())
            before = field[4] + separator
        names = [name for _, name in fields]
        if before.strip() != b"}" or position != len(record) or len(set(names)) < len(names):
            return None
        return cls(types, fields, before.decode(), moments) if set(names) <= set(types) else None

    def is_text_of(self, values: pa.BinaryArray, rows: Mapping[str, pa.Array]) -> Flags:
        """Return which values are exactly the text of their rows, whose columns are given by name.

        Integers may be given as text. False for a row that has to be written with an escape, or that this producer
        would write in another way.
        """
        can = np.ones(len(values), bool)
        pieces: list[str | pa.Array] = []
        written = {name for _, name in self.fields}
        for name, column in rows.items():
            if name not in written and column.null_count < len(column):
                can &= column.is_null().to_numpy(zero_copy_only=False)
        for lead, name in self.fields:
            pieces += [lead, self._tokens(name, rows[name], can)]
        text = pc.binary_join_element_wise(*pieces, self.end, "")
        is_same = pc.fill_null(pc.equal(values, text.cast(pa.binary())), False)
        result: Flags = can & is_same.to_numpy(zero_copy_only=False)
        return result

    def _tokens(self, name: str, column: pa.Array, can: Flags) -> pa.StringArray:
        """Return a column's values in JSON; clear the flags of those that cannot be written."""
        match self.types[name]:
            case "timestamp with time zone" | "timestamp without time zone":
                tokens = _moments(column, self.moments.get(name, _Moment()), can)
            case "date":
                _clear(can, column.cast(pa.int32()), _FIRST_DAY, _PAST_DAYS)
                tokens = _quoted(column.cast(pa.string()))
            case "text":
                can &= ~_needs_escape(column)
                tokens = _quoted(column)
            case type_:
                if type_ in ("real", "double precision"):
                    can &= pc.fill_null(pc.is_finite(column), True).to_numpy(zero_copy_only=False)
                tokens = column.cast(pa.string())
        return pc.fill_null(tokens, "null") if tokens.null_count else tokens


def _quoted(text: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', text, '"', "")


def _moments(times: pa.TimestampArray, moment: _Moment, can: Flags) -> pa.StringArray:
    microseconds = times.cast(pa.int64())
    _clear(can, microseconds, _FIRST_MOMENT, _PAST_MOMENTS)
    exact = microseconds.cast(pa.timestamp("us"))
    rounded = exact.cast(pa.timestamp(moment.unit), safe=False)
    can &= pc.fill_null(pc.equal(rounded.cast(pa.timestamp("us")), exact), True).to_numpy(
        zero_copy_only=False
    )
    text = rounded.cast(pa.string())  # with a space before the time of day
    if moment.separator != " ":
        text = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(text, 0, 10), pc.utf8_slice_codeunits(text, 11), moment.separator
        )
    return pc.binary_join_element_wise('"', text, moment.zone, '"', "")


def _clear(can: Flags, numbers: pa.Array, first: int, past: int) -> None:
    """Clear the flags of numbers outside of [first, past)."""
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, past))
    can &= pc.fill_null(inside, True).to_numpy(zero_copy_only=False)


def _needs_escape(text: pa.StringArray) -> Flags:
    """Return which texts have a character that JSON escapes."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    found = np.zeros(len(text), bool)
    if not len(text) or text.buffers()[2] is None:
        return found
    data = np.frombuffer(text.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    places = np.flatnonzero((data < _SPACE) | (data == _QUOTE) | (data == _BACKSLASH))
    found[np.searchsorted(offsets - offsets[0], places, side="right") - 1] = True
    return found
