"""The constraints of a table that concern one row alone, as conditions over rows that are to be written.

They are not null, checks, foreign keys, and the bounds of partitions. A constraint over a column that the pipeline does
not write is left out: a default or a trigger may fill it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.candidates import Candidates
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import RejectRule

_SHOWN: Final = 200  # characters of a value that a reason repeats
_MOST_PARTITIONS: Final = 1_000  # beyond, an expression over all bounds costs more than the trial
# Before Postgres 18 pg_constraint has neither conenforced nor conperiod.
_CONSTRAINTS: Final = """
select c.conname::text as name, c.contype::text as kind, pg_get_expr(c.conbin, c.conrelid) as expression,
       pg_get_constraintdef(c.oid) as definition, c.confmatchtype::text as match, c.confrelid = c.conrelid as is_own,
       case when c.confrelid <> 0 then c.confrelid::regclass::text end as referenced,
       array(select a.attname::text from unnest(c.conkey) with ordinality k (number, place)
             left join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number order by k.place) as columns,
       array(select a.attname::text from unnest(c.confkey) with ordinality k (number, place)
             join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.number order by k.place) as keys,
       array(select format('operator(%%I.%%s)', n.nspname, o.oprname)
             from unnest(c.conpfeqop) with ordinality k (operator, place) join pg_operator o on o.oid = k.operator
             join pg_namespace n on n.oid = o.oprnamespace order by k.place) as operators
from pg_constraint c
where c.conrelid = %s::regclass and c.contype in ('c', 'f')
and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
and not coalesce((to_jsonb(c) ->> 'conperiod')::boolean, false)
order by c.contype, c.conname
"""
_NOT_NULL: Final = """
select attname::text from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped and attnotnull order by attnum
"""
# The bounds of the partitions that hold rows, with those of the tables above them.
_BOUNDS: Final = """
select pg_get_partition_constraintdef(p.relid) from pg_partition_tree(%s::regclass) p
where p.isleaf and p.level > 0 limit %s
"""


def row_rules(cursor: Cursor, table: TargetTable, candidates: Candidates) -> Iterator[RejectRule]:
    """Yield a rule for each constraint that concerns one row alone. Rules are over the rows of candidates, as `j`."""
    name, written = table.identifier.as_string(cursor), set(candidates.names)
    cursor.execute(_NOT_NULL, (name,))
    # Keys and lineage are never null.
    never_null = {*candidates.identity, "batch_id"}
    if required := [column for (column,) in cursor.fetchall() if column in written - never_null]:
        yield _required(required)
    cursor.execute(_CONSTRAINTS, (name,))
    for constraint in cursor.fetchall():
        if not constraint.columns or not written.issuperset(constraint.columns):
            continue
        if constraint.kind == "c":
            condition: sql.Composable = sql.SQL("not ({})").format(sql.SQL(constraint.expression))
        else:
            condition = _has_no_parent(constraint, candidates)
        yield RejectRule(condition, _reason(constraint))
    cursor.execute(_BOUNDS, (name, _MOST_PARTITIONS + 1))
    bounds = [bound for (bound,) in cursor.fetchall()]
    if bounds and None not in bounds and len(bounds) <= _MOST_PARTITIONS:
        yield RejectRule(
            sql.SQL("not ({})").format(
                sql.SQL(" or ").join(sql.SQL("({})").format(sql.SQL(each)) for each in bounds)
            ),
            sql.Literal(f"the target {table.spec} has no partition for the row"),
        )


def _required(columns: Sequence[str]) -> RejectRule:
    """Return the rule for columns that must not be null: one rule, because each takes a scan."""
    is_null = [sql.SQL("{} is null").format(sql.Identifier("j", column)) for column in columns]
    reasons = [
        sql.SQL("when {} then {}").format(
            condition, sql.Literal(f"column {column!r}: null, which the target does not allow")
        )
        for column, condition in zip(columns, is_null, strict=True)
    ]
    return RejectRule(
        sql.SQL("({})").format(sql.SQL(" or ").join(is_null)),
        sql.SQL("case {} end").format(sql.SQL(" ").join(reasons)),
    )


def _has_no_parent(constraint: Any, candidates: Candidates) -> sql.Composable:
    """Return the condition that a row refers to a row that neither exists nor is written."""
    mine = [sql.Identifier("j", name) for name in constraint.columns]
    all_set = sql.SQL(" and ").join(sql.SQL("{} is not null").format(name) for name in mine)
    same = sql.SQL(" and ").join(
        sql.SQL("p.{} {} {}").format(sql.Identifier(key), sql.SQL(operator), name)
        for key, operator, name in zip(constraint.keys, constraint.operators, mine, strict=True)
    )
    missing = sql.SQL("not exists (select from {} p where {})").format(sql.SQL(constraint.referenced), same)
    if constraint.is_own:
        missing = sql.SQL("{} and not exists (select from ({}) p where {})").format(
            missing, candidates.rows, same
        )
    orphan = sql.SQL("{} and {}").format(all_set, missing)
    if constraint.match != "f":
        return sql.SQL("({})").format(orphan)
    some_set = sql.SQL(" or ").join(sql.SQL("{} is not null").format(name) for name in mine)
    return sql.SQL("({} or not ({}) and ({}))").format(orphan, all_set, some_set)


def _reason(constraint: Any) -> sql.Composable:
    found = [
        sql.SQL("{} || coalesce(left({}::text, {}), 'null')").format(
            sql.Literal(f"{column} = "), sql.Identifier("j", column), sql.Literal(_SHOWN)
        )
        for column in constraint.columns
    ]
    return sql.SQL("{} || concat_ws(', ', {})").format(
        sql.Literal(f"constraint {constraint.name!r}, {constraint.definition}: found "),
        sql.SQL(", ").join(found),
    )
