"""The format Csv: one line for each record."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.formats.format import Format
from exactbatch.options import check_types

QUOTE: Final = '"'


@dataclass(frozen=True)
class Csv(Format):
    """Values are lines of CSV without a header; `schema` names their fields in order, all of them.

    A field in double quotes may contain delimiters, line breaks and doubled quotes. `null` is the unquoted text that
    stands for null; with the default, `1,` ends with a null and `1,""` with an empty text. A line ending after the
    value is ignored, and so is a byte order mark before it.

    Decoding is strict: too many or too few fields, a fraction for an integer, a number out of range, NaN or infinity
    makes the record a reject. Timestamps and dates are ISO 8601; a timestamptz needs an offset, a timestamp must not
    have one. A null value is a tombstone. Raises ConfigurationError for arrays and bytea, and for an invalid delimiter
    or null.
    """

    schema: str
    delimiter: str = field(default=",", kw_only=True)
    null: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_types(self)
        for column in self.columns:
            if column.element is not None:
                raise ConfigurationError(
                    f"column {column.name!r}, {column.type}: Csv has no arrays. Declare the column as text, or decode "
                    f"the values with Custom."
                )
            if column.type == "bytea":
                raise ConfigurationError(
                    f"column {column.name!r}, bytea: a line of CSV does not say whether text is hexadecimal digits, as "
                    f"Postgres's COPY writes bytea, or the bytes themselves. Declare the column as text: the target "
                    f"of an Append may have a column of type bytea for it, which takes hexadecimal digits after \\x. "
                    f"Decode other text with Custom."
                )
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter.isalnum():
            raise ConfigurationError(
                f"delimiter: expected one ASCII character other than a letter or digit, found {self.delimiter!r}"
            )
        for option, text, never in (
            ("delimiter", self.delimiter, f"{QUOTE}\r\n"),
            ("null", self.null, f"{QUOTE}\r\n{self.delimiter}"),
        ):
            if set(text) & set(never):
                raise ConfigurationError(f"{option}: expected text without any of {never!r}, found {text!r}")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the schema."""
        return parse_columns(self.schema)
