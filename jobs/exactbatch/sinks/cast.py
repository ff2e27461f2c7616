"""How a staged column becomes a column of the target, and which of its values cannot."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column

# What may be stored in a wider column of the target without changing a value.
_WIDER: Final = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric", "double precision"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying"},
}
_NUMBER: Final = re.compile(r"smallint|integer|bigint|real|double precision|numeric(\(\d+,\d+\))?")
_LENGTH: Final = re.compile(r"character(?: varying)?\((\d+)\)")
_PRECISION: Final = re.compile(r"\(\d+\)")
_SHOWN: Final = 200  # characters of a value that a reason repeats


@dataclass(frozen=True, slots=True)
class Misfit:
    """Staged rows that cannot go into the target: what is true of them, and why, both over the staging table."""

    condition: sql.Composable
    reason: sql.Composable


@dataclass(frozen=True, slots=True)
class Cast:
    """A staged column on its way into a column of type `type`, as format_type() prints it."""

    column: Column
    type: str

    @property
    def is_possible(self) -> bool:
        """Whether there are values that can go from the one type into the other."""
        staged, target = self._elements
        if self.is_plain or staged == "text":
            return True
        if _NUMBER.fullmatch(staged) and _NUMBER.fullmatch(target):
            return True
        return staged == _PRECISION.sub("", target)  # timestamp(3) and the like

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
        text = sql.SQL("{}::text").format(self._name)
        parts = {
            "value": self._name,
            "text": text,
            "type": sql.SQL(self.type),
            "named": sql.Literal(self.type),
            "staged": sql.SQL(self.column.staged_type),
        }
        reason = sql.SQL(
            "{where} || coalesce((pg_input_error_info({text}, {named})).message, "
            "'expected a value that it can hold without loss, found ' || left({text}, {shown}))"
        ).format(
            **parts,
            where=sql.Literal(f"column {self.column.name!r}, {self.type}: "),
            shown=sql.Literal(_SHOWN),
        )
        if length := _LENGTH.fullmatch(self.type):
            # Postgres would cut off blanks beyond the length.
            longer = sql.SQL("char_length({}) > {}").format(self._name, sql.SQL(length[1]))
            return Misfit(longer, reason)
        # The order matters: what is no valid input cannot be cast to see whether it stays the same.
        invalid = sql.SQL("not pg_input_is_valid({text}, {named})").format(**parts)
        changed = self._changed(parts)
        if changed is None:
            return Misfit(invalid, reason)
        return Misfit(sql.SQL("case when {} then true else {} end").format(invalid, changed), reason)

    def _changed(self, parts: dict[str, sql.Composable]) -> sql.Composable | None:
        """True of valid values that another value would be stored for; None where there are no such."""
        staged, target = self._elements
        if staged != "text":
            return sql.SQL("{value}::{type}::{staged} <> {value}").format(**parts)
        if target.startswith("numeric(") and self.column.element is None:
            return sql.SQL("{value}::{type} <> {value}::numeric").format(**parts)
        return None

    @property
    def is_plain(self) -> bool:
        """Whether every staged value is one of the target, without a cast."""
        staged = self.column.staged_type
        return staged == self.type or self.type in _WIDER.get(staged, set())

    @property
    def _elements(self) -> tuple[str, str]:
        """Both types, of elements where both are arrays."""
        staged, target = self.column.staged_type, self.type
        if staged.endswith("[]") and target.endswith("[]"):
            return staged.removesuffix("[]"), target.removesuffix("[]")
        return staged, target

    @property
    def _name(self) -> sql.Composable:
        return sql.Identifier(self.column.name)


def misfits(casts: Iterable[Cast]) -> list[Misfit]:
    """What the casts of a row's columns leave out."""
    return [misfit for cast in casts if (misfit := cast.misfit) is not None]
