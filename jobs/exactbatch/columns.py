"""Parse columns in the notation of Postgres: "year int, time_hour timestamptz from 'time.hour'"."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from exactbatch.errors import ConfigurationError
from exactbatch.member_paths import Path, parse_path

if TYPE_CHECKING:
    import pyarrow as pa

# The columns that say which record a row comes from.
LINEAGE_NAMES: Final = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")
# The column of an Upsert's changes that lists the columns of unavailable values: those that the event lacks, because
# the source did not send them. Its name is in users' tables, and stays.
UNAVAILABLE_COLUMNS: Final = "unchanged_columns"
# The column of an Upsert for the epoch of a change's position.
POSITION_EPOCH: Final = "position_epoch"
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
    "varchar": "character varying",
    "char": "character",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "decimal": "numeric",
}
# Types that have an Arrow type, in addition to numeric(p,s).
_CARRIED = {
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
}
# Types whose values are staged as text: Postgres parses them, and reports those that it refuses.
_AS_TEXT = {
    "character varying",
    "character",
    "numeric",
    "uuid",
    "json",
    "jsonb",
    "time without time zone",
    "time with time zone",
    "interval",
    "inet",
    "cidr",
    "macaddr",
}
_WITH_LENGTH = {"character varying", "character"}
_QUOTED = r"'(?:[^']|'')*'"
_COLUMN = re.compile(
    r'\s*(?:"(?P<quoted>[^"]+)"|(?P<plain>[a-z_][a-z0-9_]*))\s+(?P<type>.+?)'
    rf"(?:\s+(?i:from)\s+(?P<path>{_QUOTED}))?(?:\s+(?i:default)\s+(?P<default>{_QUOTED}|[-+.\w]+))?\s*"
)
_TYPE = re.compile(r"(?P<name>[a-z0-9 ]+?)\s*(?:\(\s*(?P<first>\d+)\s*(?:,\s*(?P<second>\d+)\s*)?\))?")
# Your own type, such as an enum: always with its schema, so that a typo in the name of a built-in type is an error.
_OWN_TYPE = re.compile(r'(?:"[^"]+"|[a-z_][a-z0-9_]*)\.(?:"[^"]+"|[a-z_][a-z0-9_]*)')
_NEEDLESS_QUOTES = re.compile(r'"([a-z_][a-z0-9_]*)"')
_MAX_PRECISION = 38  # decimal128's
_MAX_NUMERIC = 1000  # digits that a numeric may declare
MAX_NAME_BYTES = 63  # of a Postgres identifier
# Every Postgres table already has these.
_SYSTEM_COLUMNS = {"tableoid", "ctid", "xmin", "cmin", "xmax", "cmax"}
# A column: all up to a comma that is neither between parentheses nor between quotes.
_PART = re.compile(r'(?>"[^"]*"|' + _QUOTED + r"|\([^()]*\)|[^,])*+")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name as Postgres stores it, and its type as Postgres's format_type() prints it.

    Your own types are written with their schema, such as "public.mood".
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        # Postgres truncates a longer identifier with just a notice; two could become the same.
        if not 1 <= len(self.name.encode()) <= MAX_NAME_BYTES or "\0" in self.name:
            raise ConfigurationError(
                f"expected a column name of 1 to {MAX_NAME_BYTES} bytes, the limit of Postgres, found {self.name!r}, "
                f"{len(self.name.encode())} bytes. Choose a shorter name."
            )

        if self.name in _SYSTEM_COLUMNS:
            raise ConfigurationError(
                f"column {self.name!r}: every Postgres table has a system column of this name. Choose another name."
            )

    @property
    def element(self) -> str | None:
        """The type of an array's elements; None for other types."""
        return self.type.removesuffix("[]") if self.type.endswith("[]") else None

    @property
    def staged_type(self) -> str:
        """The column's Postgres type in a staging table: its own, or text if Postgres parses the values."""
        element = self.element or self.type
        carried = element in _CARRIED or _carried_decimal(element) is not None
        return (element if carried else "text") + ("[]" if self.element else "")

    @property
    def arrow_type(self) -> "pa.DataType":
        """The Arrow type whose values a binary COPY writes into a column of the staged type."""
        import pyarrow as pa  # each DAG file imports this module, and needs no Arrow

        if self.element is not None:
            return pa.list_(Column(self.name, self.element).arrow_type)
        if decimal := _carried_decimal(self.type):
            return pa.decimal128(*decimal)
        return {
            "smallint": pa.int16(),
            "integer": pa.int32(),
            "bigint": pa.int64(),
            "real": pa.float32(),
            "double precision": pa.float64(),
            "boolean": pa.bool_(),
            "bytea": pa.binary(),
            "date": pa.date32(),
            "timestamp without time zone": pa.timestamp("us"),
            "timestamp with time zone": pa.timestamp("us", "UTC"),
        }.get(self.type, pa.string())


# The columns of a row that names its record and its batch.
LINEAGE: Final = (
    Column("kafka_topic", "text"),
    Column("kafka_partition", "integer"),
    Column("kafka_offset", "bigint"),
    Column("kafka_timestamp", "timestamp with time zone"),
    Column("batch_id", "bigint"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A column, and the member of a value that it takes.

    `path` is that of `from`; without it, the member has the column's name. `default` is what a missing member counts
    as: text in quotes as it is written there, any other literal as JSON; None without a default.
    """

    column: Column
    path: Path
    default: "Default | None" = None

    @property
    def is_plain(self) -> bool:
        """True if the column takes the member of its own name, and null for a missing one."""
        return self.default is None and self.path.parts == ((self.column.name,),)

    @property
    def own_member(self) -> str | None:
        """The name of the member, if it is one of the value itself and null if it is missing."""
        match self.path.parts:
            case ((str(name),),) if self.default is None:
                return name
        return None


@dataclass(frozen=True, slots=True)
class Default:
    """A literal: its text, without the quotes if it has some."""

    text: str
    is_quoted: bool


def own_name(type_: str) -> str | None:
    """Return the name of a type of your own or of an extension, without its schema: "vector" for "public.vector"."""
    return type_.rpartition(".")[2].strip('"') if "." in type_ else None


def is_vector(type_: str) -> bool:
    """True for pgvector's types of all numbers, in whatever schema the extension is."""
    return own_name(type_) in ("vector", "halfvec")


def renamed(name: str) -> str:
    """Return the remedy for a column whose name a table has for something else."""
    return (
        f"Rename the pipeline's column. Json, JsonSchema, Protobuf and Debezium take a field of another name with "
        f"from: \"source_{name} … from '{name}'\"."
    )


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse `name type, name type, …`. Names that are not lower-case need double quotes.

    Raises ConfigurationError for a malformed column, an unknown type, a name given twice, and for `from` and
    `default`, which only the formats have that call parse_fields().
    """
    fields = parse_fields(text)
    for field in fields:
        if not field.is_plain:
            raise ConfigurationError(
                f"column {field.column.name!r}: this format takes neither from nor default, found "
                f"{'default' if field.default is not None else 'from'} in {text!r}. Remove it."
            )
    return tuple(field.column for field in fields)


def parse_fields(text: str) -> tuple[Field, ...]:
    """Parse `name type from 'path' default literal, …`; `from` and `default` may be left out.

    Raises ConfigurationError for a malformed column or path, an unknown type, and a name given twice.
    """
    fields = tuple(map(_parse_field, _parts(text)))
    names = [field.column.name for field in fields]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(
            f"columns {', '.join(map(repr, sorted(repeated)))} occur more than once in {text!r}. Remove or rename them."
        )
    return fields


def _parts(text: str) -> Iterator[str]:
    at = 0
    while True:
        part = _PART.match(text, at)
        assert part is not None  # it may be empty
        yield part[0]
        at = part.end() + 1
        if at > len(text):
            return


def _parse_field(text: str) -> Field:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"expected a column as 'name type', found {text.strip()!r}. Names are lower-case, or in double "
            f"quotes: '\"tailNum\" text'."
        )
    column = Column(match["quoted"] or match["plain"], _parse_type(match["type"], column=text.strip()))
    path = Path(((column.name,),))
    if match["path"] is not None:
        path = parse_path(_unquoted(match["path"]), column=column.name)
    default = None
    if (literal := match["default"]) is not None:
        is_quoted = literal.startswith("'")
        default = Default(_unquoted(literal) if is_quoted else literal, is_quoted)
    return Field(column, path, default)


def _unquoted(literal: str) -> str:
    return literal[1:-1].replace("''", "'")


def _parse_type(text: str, *, column: str) -> str:
    text = " ".join(text.split())
    if text.endswith("[]"):
        return _parse_type(text[:-2].strip(), column=column) + "[]"
    if _OWN_TYPE.fullmatch(text):
        return _NEEDLESS_QUOTES.sub(r"\1", text)  # as quote_ident() spells it
    match = _TYPE.fullmatch(text.lower())
    name = _CANONICAL.get(match["name"], match["name"]) if match else ""
    numbers = (
        [int(number) for number in (match["first"], match["second"]) if number is not None] if match else []
    )
    if name == "numeric":
        return _numeric(numbers, text, column) if numbers else name
    if name in _WITH_LENGTH and len(numbers) <= 1:
        # Without a length, varchar is the same as text, and char is one character.
        length = numbers[0] if numbers else 1
        return "text" if name == "character varying" and not numbers else f"{name}({length})"
    if name not in _CARRIED | _AS_TEXT or numbers:
        raise ConfigurationError(
            f"expected one of the types {', '.join(sorted(_CARRIED | _AS_TEXT))}, an array of one, or a type of "
            f"your own with its schema, found {text!r} in the column {column!r}. Use the nearest of them."
        )
    return name


def _numeric(numbers: Sequence[int], text: str, column: str) -> str:
    precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if not 1 <= precision <= _MAX_NUMERIC or scale > precision:
        raise ConfigurationError(
            f"expected numeric(precision, scale) with a precision of 1 to {_MAX_NUMERIC} and a scale not "
            f"above it, found {text!r} in the column {column!r}. Write it as numeric(10,2)."
        )
    return f"numeric({precision},{scale})"


def _carried_decimal(type_: str) -> tuple[int, int] | None:
    """Precision and scale of a numeric type that an Arrow decimal can hold."""
    if (match := re.fullmatch(r"numeric\((\d+),(\d+)\)", type_)) and int(match[1]) <= _MAX_PRECISION:
        return int(match[1]), int(match[2])
    return None


def key_is_null(column: str) -> str:
    """Return the reason of a reject whose row lacks a part of its key."""
    return f"column {column!r}: the key is null"
