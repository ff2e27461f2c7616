"""Find values that a cast changes, for an audit of a derived target.

This is written independently of kept_values.py and exact_values.py, which it checks.
"""

import re
from typing import Final

from psycopg2 import sql

from exactbatch.postgres.types import is_refused

# What a type declares besides its name: (3), (10,2).
_MODIFIER: Final = re.compile(r"\(\d+(?:,-?\d+)?\)")
_INTEGERS: Final = {"smallint", "integer", "bigint"}
_FLOATS: Final = {"real", "double precision"}
_TEXTS: Final = {"text", "character varying"}
# Types into which Postgres casts each text that it accepts as the value that it means.
_EXACT: Final = {
    *_TEXTS,
    *_INTEGERS,
    *("numeric", "boolean", "bytea", "uuid", "json", "jsonb", "xml", "date", "interval"),
    *("timestamp without time zone", "timestamp with time zone"),
    *("time without time zone", "time with time zone", "inet", "cidr", "macaddr"),
}
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def lost(value: sql.Composable, kept: str, target: str) -> sql.Composable | None:
    """Return the condition that a value of the type `kept` becomes another in the type `target`; None if none can.

    Both types are as format_type() prints them.
    """
    if kept == target:
        return None
    from_, into = _MODIFIER.sub("", kept), _MODIFIER.sub("", target)
    condition = _condition(from_, into, has_modifier=into != target)
    if condition is None:
        return None
    return sql.SQL("coalesce({}, false)").format(
        sql.SQL(condition).format(
            v=sql.SQL("({})").format(value),
            kept=sql.SQL(kept),
            target=sql.SQL(target),
            # Without a length, char is char(1).
            unlimited=sql.SQL(re.sub(r"^character(?! varying)", "bpchar", into)),
            refused=is_refused(sql.SQL("({})::text").format(value), target, modifier=-1),
            number=sql.Literal(_NUMBER),
        )
    )


def _condition(from_: str, into: str, *, has_modifier: bool) -> str | None:
    """Return the condition for types without their modifiers; the target may have one."""
    if from_ in _INTEGERS and into in _FLOATS:
        return "case when {v}::{target}::float8 >= 9223372036854775808 then true else {v}::{target}::int8 <> {v} end"
    if from_ == "numeric" and into in _FLOATS:
        return "{v}::{target}::text::numeric <> {v}"
    if from_ in {*_INTEGERS, *_FLOATS, "numeric"}:
        return "{v}::{target} <> {v}"
    if from_ in _TEXTS or from_.removesuffix("[]") in _TEXTS:
        if has_modifier:
            return "{v}::{target} <> {v}::{unlimited}"
        if into in _FLOATS:
            return "{v}::{target}::text::numeric <> {v}::numeric"
        if into in _EXACT or from_.endswith("[]"):
            return None
        # The type has no modifier here. It may be a domain with a length or a scale, which a cast cuts off.
        return (
            "case when {refused} then true when {v} ~ {number} "
            "and {v}::{target}::text ~ {number} then {v}::{target}::text::numeric <> {v}::numeric else false end"
        )
    if from_.endswith("[]"):
        return "{v}::{target}::{kept} <> {v}"
    return '{v}::{target}::text collate "C" <> {v}::text'
