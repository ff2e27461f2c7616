"""Named, typed columns, written as Postgres writes them: "year int, time_hour timestamptz"."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exactbatch.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

# Postgres's own aliases (its documentation, table "Data Types") → the name that format_type() prints.
_CANONICAL = {
    "int2": "smallint",
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "float": "double precision",
    "bool": "boolean",
    "varchar": "text",
    "character varying": "text",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "decimal": "numeric",
}
_TYPES = {
    "smallint",
    "integer",
    "bigint",
    "real",
    "double precision",
    "boolean",
    "text",
    "bytea",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
    "numeric",
}
_COLUMN = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|(?P<plain>[a-z_][a-z0-9_]*))\s+(?P<type>.+?)\s*')
_TYPE = re.compile(r"(?P<name>[a-z0-9 ]+?)\s*(?:\(\s*(?P<precision>\d+)\s*(?:,\s*(?P<scale>\d+)\s*)?\))?")
_MAX_PRECISION = 38  # decimal128's
_MAX_NAME = 63  # bytes of a Postgres identifier
# A comma that is neither between parentheses nor between double quotes.
_BETWEEN = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)(?![^("]*\))')


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name as Postgres stores it, and its type as Postgres's format_type() prints it."""

    name: str
    type: str

    def __post_init__(self) -> None:
        # Postgres cuts a longer identifier with no more than a notice; two could become the same.
        if not 1 <= len(self.name.encode()) <= _MAX_NAME or "\0" in self.name:
            raise ConfigurationError(
                f"expected a column name of 1 to {_MAX_NAME} bytes, as Postgres stores them, found "
                f"{self.name!r}, {len(self.name.encode())} bytes. Choose a shorter one."
            )

    @property
    def arrow_type(self) -> "pa.DataType":
        """The Arrow type whose values ADBC's binary COPY writes into a column of this type."""
        import pyarrow as pa

        if decimal := re.fullmatch(r"numeric\((\d+),(\d+)\)", self.type):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return {
            "smallint": pa.int16(),
            "integer": pa.int32(),
            "bigint": pa.int64(),
            "real": pa.float32(),
            "double precision": pa.float64(),
            "boolean": pa.bool_(),
            "text": pa.string(),
            "bytea": pa.binary(),
            "date": pa.date32(),
            "timestamp without time zone": pa.timestamp("us"),
            "timestamp with time zone": pa.timestamp("us", "UTC"),
        }[self.type]


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse `name type, name type, …`; a name that is not lower-case goes into double quotes.

    Raises ConfigurationError for what is not a column, an unknown type, or a name given twice.
    """
    columns = tuple(_parse_column(part) for part in _BETWEEN.split(text))
    names = [column.name for column in columns]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(
            f"expected each column once, found {', '.join(map(repr, sorted(repeated)))} again in {text!r}. "
            f"Remove or rename the repeated ones."
        )
    return columns


def _parse_column(text: str) -> Column:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"expected a column as 'name type', found {text.strip()!r}. Names are lower-case, or in double "
            f"quotes: '\"tailNum\" text'."
        )
    return Column(match["quoted"] or match["plain"], _parse_type(match["type"], column=text.strip()))


def _parse_type(text: str, *, column: str) -> str:
    match = _TYPE.fullmatch(" ".join(text.lower().split()))
    name = _CANONICAL.get(match["name"], match["name"]) if match else None
    if match is None or name not in _TYPES or (match["precision"] is not None and name != "numeric"):
        raise ConfigurationError(
            f"expected one of the types {', '.join(sorted(_TYPES))} (numeric with precision and scale), "
            f"found {text!r} in the column {column!r}. Use the nearest of them."
        )
    if name != "numeric":
        return name
    precision, scale = int(match["precision"] or 0), int(match["scale"] or 0)
    if not 1 <= precision <= _MAX_PRECISION or scale > precision:
        raise ConfigurationError(
            f"expected numeric(precision, scale) with a precision of 1 to {_MAX_PRECISION} and a scale not "
            f"above it, found {text!r} in the column {column!r}. Write it as numeric(10,2)."
        )
    return f"numeric({precision},{scale})"
