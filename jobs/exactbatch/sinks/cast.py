"""How a staged column becomes a column of the target, and which of its values cannot.

Of each pair of types one thing is true: the stored value reads back as the staged one, or the row is a misfit,
or the pair is not possible at all.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.types import PgType, refusal_of_null, type_written
from exactbatch.sinks.spelling import SPELLINGS

# The staged types as pg_type has them.
_STAGED: Final = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "boolean": "bool",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
# What holds every value of another type as it is.
_WIDER: Final = {
    "int2": {"int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int8", "numeric", "float8"},
    "int8": {"numeric"},
    "float4": {"float8"},
    "numeric": {"numeric"},
    "text": {"varchar"},
}
_INTEGERS: Final = {"int2", "int4", "int8"}
_FLOATS: Final = {"float4", "float8"}
# Into which other types values go one by one. Not from a float to numeric: Postgres keeps 15 digits there.
_CHECKED: Final = {
    "int2": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "int8": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "numeric": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "float4": {"int2", "int4", "int8", "float4", "float8"},
    "float8": {"int2", "int4", "int8", "float4", "float8"},
}
# Any text that these take, they give back as it was, or as another way to write the same.
_TAKEN_AS_IT_IS: Final = {"text", "varchar", "uuid", "json"}
# Of these the length alone says what is valid input.
_LIMITED_BY_LENGTH: Final = {"varchar", "bpchar"}
# Postgres reads these by settings, but gives back the same text only for what no setting changes.
_READ_BY_SETTINGS: Final = {"xml"}
_LENGTH_HEADER: Final = 4  # the modifier of varchar(n) is n + 4
_DECIMAL: Final = re.compile(r"numeric\(\d+,\d+\)")
_SHOWN: Final = 200  # characters of a value that a reason repeats


@dataclass(frozen=True, slots=True)
class Misfit:
    """Staged rows that cannot go into the target: what is true of them, and why, both over the staging table.

    `column` is the staged column whose values are looked at, if it is one.
    """

    condition: sql.Composable
    reason: sql.Composable
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Cast:
    """A staged column on its way into a column of the target.

    `target` is the type of that column with all that it is made of, `null_refused` what Postgres says of a null
    where a domain refuses it, and `collation` the name of the column's collation with its schema, if it has one.
    Two casts are equal where the same values go the same way.
    """

    column: Column
    target: PgType
    null_refused: str | None = None
    collation: str | None = None

    @property
    def type(self) -> str:
        """The target's type, as a statement writes it."""
        return self.target.written

    @property
    def is_possible(self) -> bool:
        """Whether there are values that can go from the one type into the other."""
        staged, leaf = self._staged, self.target.leaf
        if self.column.element is None:
            return _reads_text(leaf) if staged == "text" else _is_checked(staged, leaf)
        if leaf.kind != "array":
            return False
        element = leaf.parts[0].leaf
        return _reads_text(element) if staged == "text" else _is_checked(staged, element)

    @property
    def is_plain(self) -> bool:
        """Whether every staged value is one of the target, without a cast."""
        target = self.target
        if self.column.staged_type == target.written:
            return True
        return (
            self.column.element is None
            and target.kind == "base"
            and target.modifier == -1
            and target.name in _WIDER.get(self._staged, ())
        )

    @property
    def expression(self) -> sql.Composable:
        """The staged value as one of the target."""
        if self.is_plain:
            return self._name
        return sql.SQL("{}::{}").format(self._name, sql.SQL(self.type))

    @property
    def misfit(self) -> Misfit | None:
        """The values that the target's type cannot hold as they are; None where it can hold all."""
        if self.is_plain:
            return None
        name, written = self._name, sql.SQL(self.type)
        text = self._text(name)
        where = f"column {self.column.name!r}, {self.type}: "
        invalid = sql.SQL("not pg_input_is_valid({}, {})").format(text, sql.Literal(self.type))
        if self.null_refused is not None:
            invalid = sql.SQL("({} is null or {})").format(name, invalid)
        # The order matters: what is no valid input cannot be cast to see whether it stays the same.
        changed = self._changed_elements if self.column.element else _changed(self._staged, self.target, name)
        condition: sql.Composable
        if changed is None:
            condition = invalid
        elif self.target.kind == "base" and self.target.name in _LIMITED_BY_LENGTH:
            condition = changed
        else:
            condition = sql.SQL("case when {} then true else {} end").format(invalid, changed)
        reason = sql.SQL(
            "{where} || coalesce((pg_input_error_info({text}, {named})).message, {words})"
        ).format(
            where=sql.Literal(where),
            text=text,
            named=sql.Literal(self.type),
            words=self._words(name, written),
        )
        if self.null_refused is not None:
            reason = sql.SQL("case when {} is null then {} else {} end").format(
                name, sql.Literal(where + self.null_refused), reason
            )
        return Misfit(condition, reason, self.column.name)

    @property
    def _changed_elements(self) -> sql.Composable | None:
        element = sql.Identifier("element", "value")
        changed = _changed(self._staged, self.target.leaf.parts[0], element)
        if changed is None:
            return None
        return sql.SQL("exists (select from unnest({}) element (value) where {})").format(self._name, changed)

    def _words(self, name: sql.Composable, written: sql.Composable) -> sql.Composable:
        """What was expected of a value that Postgres would take, and what was found."""
        leaf = self.target.leaf
        if self.column.element:
            leaf = leaf.parts[0].leaf
        found = sql.SQL("left({}::text, {})").format(name, sql.Literal(_SHOWN))
        expected = "a value that it can hold without loss"
        if self._staged == "text":
            if spelling := SPELLINGS.get(leaf.name):
                expected = spelling.words
            elif leaf.name == "jsonb":
                expected = "JSON that names each field of an object once"
            elif not _is_taken(leaf) and leaf.name != "bpchar" and not self.column.element:
                return sql.SQL("{} || left({}::{}::text, {}) || ', found ' || {}").format(
                    sql.Literal("expected it as Postgres writes it, "),
                    name,
                    written,
                    sql.Literal(_SHOWN),
                    found,
                )
        return sql.SQL("{} || {}").format(sql.Literal(f"expected {expected}, found "), found)

    def _text(self, value: sql.Composable) -> sql.Composable:
        """A staged value as the text that Postgres would read for the target."""
        leaf = self.target.leaf
        if self._staged == "numeric" and leaf.name in _INTEGERS:
            return sql.SQL("trim_scale({})::text").format(value)  # 5.00 is an integer
        return sql.SQL("{}::text").format(value)

    @property
    def _staged(self) -> str:
        """The staged type, or that of its elements, as pg_type has it, without a modifier."""
        staged = self.column.staged_type.removesuffix("[]")
        return "numeric" if _DECIMAL.fullmatch(staged) else _STAGED[staged]

    @property
    def _name(self) -> sql.Composable:
        return sql.Identifier(self.column.name)


def misfits(casts: Iterable[Cast]) -> list[Misfit]:
    """What the casts of a row's columns leave out."""
    return [misfit for cast in casts if (misfit := cast.misfit) is not None]


def own_casts(cursor: Cursor, columns: Iterable[Column]) -> Iterator[Cast]:
    """How staged columns become values of the types that the pipeline itself gives them.

    Raises ConfigurationError for a type that the database does not have or that text cannot become.
    """
    for column in columns:
        if column.staged_type == column.type:
            continue
        type_ = type_written(cursor, column.type)
        cast = Cast(column, type_, refusal_of_null(cursor, type_))
        if not cast.is_possible:
            raise ConfigurationError(
                f"column {column.name!r}: Postgres reads the type {column.type} by settings or without a rule for "
                f"exactness. Nothing was written. Write another type in the pipeline's schema, as text."
            )
        yield cast


def check_on_the_way(target: str, first: Sequence[Cast], then: Sequence[Cast]) -> None:
    """Check that a value which goes into a table beside the target first arrives as one that went there at once.

    As an inet, 10.0.0.1 is 10.0.0.1/32 when it becomes text again. Raises TargetMismatch, which names the column.
    """
    kept = {cast.column.name: cast for cast in first}
    for cast in then:
        on_the_way = kept[cast.column.name]
        if not on_the_way.is_plain and on_the_way.target.leaf.name != cast.target.leaf.name:
            raise TargetMismatch(
                f"target {target}, column {cast.column.name}: changes are kept as {on_the_way.type}, and the "
                f"target has {cast.type}, for which the text of a value could become another. Nothing was "
                f"written. Let the pipeline's schema name the target's type, or text."
            )


def _is_checked(staged: str, leaf: PgType) -> bool:
    return leaf.kind == "base" and (leaf.name == staged or leaf.name in _CHECKED.get(staged, ()))


def _is_taken(leaf: PgType) -> bool:
    return leaf.kind == "enum" or leaf.name in _TAKEN_AS_IT_IS


def _reads_text(leaf: PgType) -> bool:
    """Whether text can become a value of the type without the help of a setting."""
    if leaf.kind in ("array", "composite", "range", "multirange"):
        return all(_reads_text(part.leaf) for part in leaf.parts)
    if leaf.kind == "enum":
        return True
    return leaf.kind == "base" and (
        leaf.is_immutable or leaf.name in SPELLINGS or leaf.name in _READ_BY_SETTINGS
    )


def _changed(staged: str, target: PgType, value: sql.Composable) -> sql.Composable | None:
    """True of valid values that another value would be stored for; None where there are no such."""
    if staged == "text":
        return _misread(target, value)
    leaf = target.leaf
    parts = {
        "value": value,
        "type": sql.SQL(target.written),
        "base": sql.Identifier(leaf.schema, leaf.name),
        "staged": sql.Identifier("pg_catalog", staged),
    }
    if leaf.modifier == -1 and (leaf.name == staged or leaf.name in _WIDER.get(staged, ())):
        return None
    if staged in _INTEGERS and leaf.name in _FLOATS:
        # Beyond 2^53, or 2^24, a float has not every integer; and 2^63 is none of them.
        return sql.SQL(
            "case when {value}::{base}::float8 >= 9223372036854775808 then true "
            "else {value}::{base}::int8 <> {value} end"
        ).format(**parts)
    if leaf.name in _FLOATS and staged == "numeric":
        return sql.SQL("{value}::{base}::text::numeric <> {value}").format(**parts)
    if leaf.name == "numeric":
        return sql.SQL("{value}::{type}::numeric <> {value}::numeric").format(**parts)
    return sql.SQL("{value}::{type}::{base}::{staged} <> {value}").format(**parts)


def _misread(target: PgType, value: sql.Composable) -> sql.Composable | None:
    """True of valid text from which Postgres reads another value than the one that is written."""
    leaf = target.leaf
    parts = {
        "value": value,
        "type": sql.SQL(target.written),
        "base": sql.Identifier(leaf.schema, leaf.name),
        "length": sql.Literal(leaf.modifier - _LENGTH_HEADER),
    }
    if spelling := SPELLINGS.get(leaf.name):
        wrong = sql.SQL("{} !~ {}").format(value, sql.Literal(spelling.pattern))
        if leaf.name in _FLOATS:
            lost = sql.SQL("{value}::{base}::text::numeric <> {value}::numeric").format(**parts)
        elif leaf.modifier == -1:
            return wrong
        elif leaf.name == "interval":  # of which a month and 30 days are equal
            lost = sql.SQL("{value}::{type}::text <> {value}::{base}::text").format(**parts)
        else:
            lost = sql.SQL("{value}::{type} <> {value}::{base}").format(**parts)
        return sql.SQL("case when {} then true else {} end").format(wrong, lost)
    if leaf.name == "jsonb":
        return sql.SQL("{value} is not json with unique keys").format(**parts)
    if leaf.name == "varchar" and leaf.modifier != -1:
        # Postgres would cut off blanks beyond the length.
        return sql.SQL("char_length({value}) > {length}").format(**parts)
    if leaf.name == "bpchar":
        if leaf.modifier == -1:
            return sql.SQL("{value} like '% '").format(**parts)
        # Postgres fills up to the length with blanks; others at the end are no part of the value to it.
        return sql.SQL(
            "char_length({value}) > {length} or (char_length({value}) < {length} and {value} like '% ')"
        ).format(**parts)
    if _is_taken(leaf):
        return None
    return sql.SQL('{value}::{type}::text <> {value} collate "C"').format(**parts)
