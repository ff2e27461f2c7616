"""Values of one column: bytes, unchanged or as a number or UUID; UTF-8 text, as it is or as a value of a type."""

import re
import uuid
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.csv.decoder import CsvDecoder
from exactbatch.formats.csv.spec import Csv
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, decode_block_or_halves, find_reasons, positions
from exactbatch.formats.postgres_limits import NUL
from exactbatch.formats.refused_text import decode_text, not_utf8
from exactbatch.formats.single.spec import WIDTHS, Raw, Text

# A field of CSV that needs no quotes and has no blanks around it; between a date and a time, there may be one.
_PLAIN: Final = r'^[^\s",]+(?: [^\s",]+)?\z'
_PLAIN_TEXT: Final = re.compile(_PLAIN.replace(r"\z", r"\Z"), re.ASCII)


class TextDecoder(Decoder[Text]):
    """Decodes text of one column."""

    def __init__(self, spec: Text) -> None:
        super().__init__(spec)
        (self._column,) = spec.columns
        # What decodes the text; None for types that Postgres parses, whose text stays as it is.
        self._line: CsvDecoder | None = None
        column = self._column
        if column.staged_type != "text" or column.type.startswith("numeric"):
            self._line = CsvDecoder(Csv(f'"{column.name}" {column.type}'))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values."""
        find_refused = partial(find_reasons, self._why_refused)
        return decode_block_or_halves(values, positions(values), self._decode_block, find_refused)

    def _why_refused(self, value: bytes) -> str | None:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return not_utf8(value)
        if "\0" in text:
            return NUL
        if self._line is None:
            return None
        return self._line.why_refused(value) if _PLAIN_TEXT.search(text) else self._not_plain(text)

    def _not_plain(self, text: str) -> str:
        column = self._column
        return f"column {column.name!r}, {column.type}: expected a value, found the text {text[:80]!r}"

    def _decode_block(self, values: pa.BinaryArray) -> pa.RecordBatch:
        text = decode_text(values)
        if pc.any(pc.match_substring(text, "\0")).as_py():
            raise ValueError(NUL)
        column = self._column
        if self._line is not None:
            text = self._parsed(self._line, text)
        return pa.RecordBatch.from_arrays([text], [column.name])

    def _parsed(self, line: CsvDecoder, text: pa.StringArray) -> pa.Array:
        is_plain = pc.match_substring_regex(text, _PLAIN)
        if not pc.all(is_plain, min_count=0).as_py():
            raise ValueError(self._not_plain(text.filter(pc.invert(is_plain))[0].as_py()))
        values = line.decode_block(text.drop_null().cast(pa.binary())).column(0)
        return pc.replace_with_mask(pa.nulls(len(text), values.type), text.is_valid(), values)


class RawDecoder(Decoder[Raw]):
    """Decodes bytes of one column."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Return a row for every value that has the width of the type."""
        (column,) = self.spec.columns
        kept = positions(values)
        if column.type == "bytea":
            return Decoded(pa.RecordBatch.from_arrays([values], [column.name]), kept)
        width, _ = WIDTHS[column.type]
        lengths = pc.binary_length(values)
        fits = pc.fill_null(pc.equal(lengths, width), True)
        rejects = []
        if not pc.all(fits, min_count=0).as_py():
            wrong = pc.invert(fits)
            reason = f"column {column.name!r}, {column.type}: expected {width} bytes, found"
            pairs = zip(kept.filter(wrong).to_pylist(), lengths.filter(wrong).to_pylist(), strict=True)
            rejects = [(at, f"{reason} {length}") for at, length in pairs]
            values, kept = values.filter(fits), kept.filter(fits)
        rows = pa.RecordBatch.from_arrays([_of_bytes(values, column)], [column.name])
        return Decoded(rows, kept, tuple(rejects))


def _of_bytes(values: pa.BinaryArray, column: Column) -> pa.Array:
    """Return bytes, all of the column's width or null, as values of the column."""
    present = b"".join(values.drop_null().to_pylist())
    width, kind = WIDTHS[column.type]
    if column.type == "uuid":
        starts = range(0, len(present), width)
        found = pa.array([str(uuid.UUID(bytes=present[at : at + width])) for at in starts], pa.string())
    else:
        numbers = np.frombuffer(present, kind)
        found = pa.array(numbers.astype(numbers.dtype.newbyteorder("=")), column.arrow_type)
    return pc.replace_with_mask(pa.nulls(len(values), found.type), values.is_valid(), found)
