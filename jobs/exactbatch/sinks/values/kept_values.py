"""Find values that were kept earlier and that their target cannot hold any more: its columns may have changed since."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.types import PgType, is_refused, refusal
from exactbatch.sinks.values.cast import VALUE_CHARACTERS, Cast, RejectRule
from exactbatch.sinks.values.exact_values import holds_all

# Stand-ins for the type of kept values, as the rules for staged ones know it.
_AS_STAGED: Final = {
    "text": "text",
    "varchar": "text",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "numeric": "numeric(38,0)",
}


def kept_rules(kept: Mapping[str, PgType], casts: Iterable[Cast]) -> list[RejectRule]:
    """Return a rule for each column whose kept values, of the types `kept`, could become others in the target."""
    return [rule for cast in casts if (rule := _rule(kept[cast.column.name], cast)) is not None]


def _rule(kept: PgType, cast: Cast) -> RejectRule | None:
    target = cast.target
    if kept.sql_name == target.sql_name or holds_all(kept.leaf.name, target):
        return None
    if _element(kept).name != _element(target).name and kept.kind != "domain":
        staged = _AS_STAGED.get(_element(kept).name)
        if staged is not None:
            suffix = "[]" if kept.kind == "array" else ""
            as_staged = replace(cast, column=Column(cast.column.name, staged + suffix))
            if as_staged.is_possible:
                return as_staged.reject_rule
    name, type_ = sql.Identifier(cast.column.name), sql.SQL(target.sql_name)
    text = sql.SQL("{}::text").format(name)
    # Equal numbers may have another number of decimal places; of all other types the text is to be the same.
    lost = (
        sql.SQL("{name}::{type}::{kept} <> {name}")
        if _element(kept).name in ("numeric", "float4", "float8")
        else sql.SQL('{name}::{type}::text collate "C" <> {name}::text')
    ).format(name=name, type=type_, kept=sql.SQL(kept.sql_name))
    return RejectRule(
        sql.SQL("case when {} then true else {} end").format(
            is_refused(text, target.sql_name, target.modifier), lost
        ),
        sql.SQL("{} || coalesce({}, {} || left({}, {}))").format(
            sql.Literal(f"column {cast.column.name!r}, {target.sql_name}: "),
            refusal(text, target.sql_name, target.modifier),
            sql.Literal("expected a value that it can hold without loss, found "),
            text,
            sql.Literal(VALUE_CHARACTERS),
        ),
        cast.column.name,
    )


def _element(type_: PgType) -> PgType:
    """Return the type below domains and arrays."""
    leaf = type_.leaf
    return _element(leaf.parts[0]) if leaf.kind == "array" else leaf
