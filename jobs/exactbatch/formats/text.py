"""The format Text: UTF-8, as it is or as one value of a type."""

import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.csv import Csv
from exactbatch.formats.format import Decoded, decode_block_or_halves, find_reasons, positions
from exactbatch.formats.one_column import one_column
from exactbatch.formats.postgres_limits import NUL
from exactbatch.formats.unreadable_text import not_utf8, text_of
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

# A field of CSV that needs no quotes and has no blanks around it; between a date and a time, there may be one.
_PLAIN: Final = r'^[^\s",]+(?: [^\s",]+)?\z'
_PLAIN_TEXT: Final = re.compile(_PLAIN.replace(r"\z", r"\Z"), re.ASCII)


@dataclass(frozen=True)
class Text:
    """Values are UTF-8 text for one column: its name, or its name and type, such as `"id bigint"`, which takes the text
    that a field of Csv takes, without quotes and white space around it. So Kafka's StringSerializer writes keys.

    A null value gives a row with null. Text that is not of the type, invalid UTF-8, and U+0000, which Postgres cannot
    store, make the record a reject. Raises ConfigurationError for several columns, arrays and bytea.
    """

    null_is_tombstone: ClassVar[bool] = False
    tombstone_deletes: ClassVar[bool] = False

    column: str = "value"

    def __post_init__(self) -> None:
        check_types(self)
        (column,) = self.columns
        if column.element is not None or column.type == "bytea":
            raise ConfigurationError(
                f"column {column.name!r}, {column.type}: Text takes the text of one value. Declare the column as text, "
                f"or decode the values with Raw, which takes bytes, or Custom."
            )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One column, of type text unless another is declared."""
        return (one_column(self.column, "text"),)

    @cached_property
    def _line(self) -> Csv | None:
        """What decodes the text; None for types that Postgres parses, whose text stays as it is."""
        (column,) = self.columns
        if column.staged_type == "text" and not column.type.startswith("numeric"):
            return None
        return Csv(f'"{column.name}" {column.type}')

    def decode(self, values: "pa.BinaryArray") -> Decoded:
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
        (column,) = self.columns
        return f"column {column.name!r}, {column.type}: expected a value, found the text {text[:80]!r}"

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        import pyarrow as pa
        import pyarrow.compute as pc

        text = text_of(values)
        if pc.any(pc.match_substring(text, "\0")).as_py():
            raise ValueError(NUL)
        (column,) = self.columns
        if self._line is not None:
            text = self._parsed(self._line, text)
        return pa.RecordBatch.from_arrays([text], [column.name])

    def _parsed(self, line: Csv, text: "pa.StringArray") -> "pa.Array":
        import pyarrow as pa
        import pyarrow.compute as pc

        is_plain = pc.match_substring_regex(text, _PLAIN)
        if not pc.all(is_plain, min_count=0).as_py():
            raise ValueError(self._not_plain(text.filter(pc.invert(is_plain))[0].as_py()))
        decoded = line.decode(text.drop_null().cast(pa.binary()))
        if decoded.rejects:
            raise ValueError(decoded.rejects[0][1])
        values = decoded.rows.column(0)
        return pc.replace_with_mask(pa.nulls(len(text), values.type), text.is_valid(), values)
