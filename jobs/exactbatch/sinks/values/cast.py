"""Cast staged columns to the columns of a target, and find the rows whose values cannot be cast exactly."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column, key_is_null
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.types import PgType, find_named_type, is_refused, refusal, refusal_of_null
from exactbatch.sinks.values.exact_values import (
    INTEGERS,
    TEXT_FORMATS,
    changed,
    holds_all,
    holds_lineage,
    is_convertible,
    keeps_text,
)

# The staged types under their names in pg_type.
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
# Numbers of these types can look like no integer although they are one.
_FRACTIONS: Final = {"numeric", "float4", "float8"}
# For these types the length alone decides what is valid input.
_LIMITED_BY_LENGTH: Final = {"varchar", "bpchar"}
_DECIMAL: Final = re.compile(r"numeric\(\d+,\d+\)")
VALUE_CHARACTERS: Final = 200  # of a value that a reason repeats


@dataclass(frozen=True, slots=True)
class RejectRule:
    """Staged rows that cannot be stored: a condition and the reason, both over the staging table.

    `column` is the staged column that the rule examines; None if it examines several, or none. `failed` precedes the
    message of an error that Postgres raises for the condition; None for the name of the column.
    """

    condition: sql.Composable
    reason: sql.Composable
    column: str | None = None
    failed: str | None = None

    @property
    def start_of_error(self) -> str:
        """What precedes the message of an error."""
        return self.failed or ("" if self.column is None else f"column {self.column!r}: ")


@dataclass(frozen=True, slots=True)
class Cast:
    """The conversion of a staged column into a column of the target.

    `target` is the type of that column with its parts, `null_refused` Postgres's message where a domain refuses
    null, and `collation` the column's collation with its schema, if it has one. Two casts are equal if they
    convert the same values in the same way.
    """

    column: Column
    target: PgType
    null_refused: str | None = None
    collation: str | None = None

    @property
    def type(self) -> str:
        """The target's type, as a statement writes it."""
        return self.target.sql_name

    @property
    def is_possible(self) -> bool:
        """True if some values can be converted exactly."""
        leaf = self.target.leaf
        if self.column.element is None:
            return is_convertible(self._staged, leaf)
        return leaf.kind == "array" and is_convertible(self._staged, leaf.parts[0].leaf)

    @property
    def is_plain(self) -> bool:
        """True if every staged value is a value of the target, without a cast."""
        if self.column.staged_type == self.target.sql_name:
            return True
        return self.column.element is None and holds_all(self._staged, self.target)

    @property
    def holds_lineage(self) -> bool:
        """True if the target holds each value of a column of lineage exactly, or refuses it with an error."""
        return self.column.element is None and holds_lineage(self._staged, self.target)

    @property
    def expression(self) -> sql.Composable:
        """The staged value as a value of the target."""
        if self.is_plain:
            return self._name
        return sql.SQL("{}::{}").format(self._name, sql.SQL(self.type))

    @property
    def reject_rule(self) -> RejectRule | None:
        """The values that the target's type cannot hold as they are; None if it can hold all."""
        if self.is_plain:
            return None
        name, type_ = self._name, sql.SQL(self.type)
        text = self._text(name)
        where = f"column {self.column.name!r}, {self.type}: "
        invalid = is_refused(text, self.type, self.target.modifier)
        if self.null_refused is not None:
            invalid = sql.SQL("({} is null or {})").format(name, invalid)
        # The order matters: invalid input cannot be cast to see whether it stays the same.
        altered = self._altered_elements if self.column.element else changed(self._staged, self.target, name)
        condition: sql.Composable
        if altered is None:
            condition = invalid
        elif self.target.kind == "base" and self.target.name in _LIMITED_BY_LENGTH:
            condition = altered
        else:
            condition = sql.SQL("case when {} then true else {} end").format(invalid, altered)
        reason = sql.SQL("{} || coalesce({}, {})").format(
            sql.Literal(where),
            refusal(text, self.type, self.target.modifier),
            self._description(name, type_),
        )
        if self.null_refused is not None:
            reason = sql.SQL("case when {} is null then {} else {} end").format(
                name, sql.Literal(where + self.null_refused), reason
            )
        return RejectRule(condition, reason, self.column.name)

    @property
    def _altered_elements(self) -> sql.Composable | None:
        element = sql.Identifier("element", "value")
        altered = changed(self._staged, self.target.leaf.parts[0], element)
        if altered is None:
            return None
        return sql.SQL("exists (select from unnest({}) element (value) where {})").format(self._name, altered)

    def _description(self, name: sql.Composable, type_: sql.Composable) -> sql.Composable:
        """Describe a value that Postgres would take and change: what was expected, and what was found."""
        leaf = self.target.leaf
        if self.column.element:
            leaf = leaf.parts[0].leaf
        value = sql.SQL("left({}::text, {})").format(name, sql.Literal(VALUE_CHARACTERS))
        expected = "a value that it can hold without loss"
        if self._staged == "text":
            if text_format := TEXT_FORMATS.get(leaf.name):
                expected = text_format.description
            elif leaf.name == "jsonb":
                expected = "JSON that names each field of an object once"
            elif not keeps_text(leaf) and leaf.name != "bpchar" and not self.column.element:
                return sql.SQL("{} || left({}::{}::text, {}) || ', found ' || {}").format(
                    sql.Literal("expected it as Postgres writes it, "),
                    name,
                    type_,
                    sql.Literal(VALUE_CHARACTERS),
                    value,
                )
        return sql.SQL("{} || {}").format(sql.Literal(f"expected {expected}, found "), value)

    def _text(self, value: sql.Composable) -> sql.Composable:
        """Return a staged value as the text that Postgres would read for the target."""
        leaf = self.target.leaf
        if self.column.element is not None and leaf.kind == "array":
            leaf = leaf.parts[0].leaf
        if leaf.name not in INTEGERS or self._staged not in _FRACTIONS:
            return sql.SQL("{}::text").format(value)
        if self.column.element is None:
            return sql.SQL("{}::text").format(self._without_fraction(value))
        return sql.SQL(
            "(select coalesce(array_agg({} order by number), '{{}}') from unnest({}) with ordinality e "
            "(value, number))::text"
        ).format(self._without_fraction(sql.Identifier("e", "value")), value)

    def _without_fraction(self, number: sql.Composable) -> sql.Composable:
        """Return a number as a numeric that looks like an integer if it is one: 5.00 and 1e+06 do not."""
        # A real becomes a numeric of six digits: as a double precision, it keeps all of them.
        exact = (
            number if self._staged == "numeric" else sql.SQL("{}::double precision::numeric").format(number)
        )
        return sql.SQL("trim_scale({})").format(exact)

    @property
    def _staged(self) -> str:
        """The staged type, or the type of its elements, under its name in pg_type, without a modifier."""
        staged = self.column.staged_type.removesuffix("[]")
        return "numeric" if _DECIMAL.fullmatch(staged) else _STAGED[staged]

    @property
    def _name(self) -> sql.Composable:
        return sql.Identifier(self.column.name)


def reject_rules(casts: Iterable[Cast]) -> list[RejectRule]:
    """Return a rule for each cast that cannot convert all values."""
    return [rule for cast in casts if (rule := cast.reject_rule) is not None]


def reject_null_keys(columns: Iterable[str]) -> list[RejectRule]:
    """Return a rule for each column of a key: a row that lacks its value."""
    return [
        RejectRule(sql.SQL("{} is null").format(sql.Identifier(name)), sql.Literal(key_is_null(name)))
        for name in columns
    ]


def own_casts(cursor: Cursor, columns: Iterable[Column]) -> Iterator[Cast]:
    """Return how columns that are staged as text become values of the types in the pipeline's schema.

    Raises ConfigurationError for a type that the database does not have, or to which no text can be converted
    exactly.
    """
    for column in columns:
        if column.staged_type == column.type:
            continue
        type_ = find_named_type(cursor, column.type)
        cast = Cast(column, type_, refusal_of_null(cursor, type_))
        if not cast.is_possible:
            raise ConfigurationError(
                f"column {column.name!r}: Postgres reads the type {column.type} by settings, or there is no rule "
                f"for exact values of it. Nothing was written. Write another type in the pipeline's schema, such "
                f"as text.",
                column=column.name,
            )
        yield cast


def check_two_steps(target: str, first: Sequence[Cast], second: Sequence[Cast]) -> None:
    """Check that a value that goes through the lineage table arrives in the target as if it were cast directly.

    As an inet, 10.0.0.1 is 10.0.0.1/32 when it becomes text again. Raises TargetMismatch, which names the column.
    """
    first_casts = {cast.column.name: cast for cast in first}
    for cast in second:
        kept = first_casts[cast.column.name]
        if not kept.is_plain and kept.target.leaf.name != cast.target.leaf.name:
            raise TargetMismatch(
                f"target {target}, column {cast.column.name}: changes are kept as {kept.type}, and the "
                f"target has {cast.type}, in which the text of a value could become another. Nothing was "
                f"written. Let the pipeline's schema name the target's type, or text.",
                column=cast.column.name,
            )
