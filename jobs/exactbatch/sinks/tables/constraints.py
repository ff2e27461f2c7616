"""The constraints and unique indexes of a table as conditions over rows to be written.

Those that concern one row alone are not null, checks, foreign keys, and the bounds of partitions. A constraint over a
column that the pipeline does not write is left out: a default or a trigger may fill it. Rows share a key of a unique
index, or a place of an exclusion constraint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import HOLDS_NULLS_EQUAL
from exactbatch.sinks.tables.candidates import Candidates
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import RejectRule
from exactbatch.sinks.values.null_safe_groups import column_list

# What an index compares: expressions, their collations, and the operators by which two rows are in each other's way. An
# index of a partition counts once if it belongs to one of the whole table.
_INDEXES: Final = sql.SQL("""
with family as (
    select %(table)s::regclass::oid as oid union select relid::oid from pg_partition_tree(%(table)s::regclass)
)
select array_agg(pg_get_indexdef(i.indexrelid, k.number::int, true) order by k.number) as expressions,
       array_agg(case when c.oid is not null then format('%%I.%%I', cn.nspname, c.collname) end order by k.number)
           as collations,
       array_agg(format('operator(%%I.%%s)', n.nspname, o.oprname) order by k.number) as operators,
       coalesce(pg_get_expr(i.indpred, i.indrelid), 'true') as predicate,
       bool_or({nulls_equal}) as nulls_equal,
       i.indimmediate as is_immediate,
       bool_and(k.excludes is null and p.opcdefault and coalesce(c.collisdeterministic, true)) as is_plain
from family f join pg_index i on i.indrelid = f.oid
left join pg_constraint x on x.conindid = i.indexrelid and x.conexclop is not null
cross join lateral unnest((i.indcollation::oid[])[0:i.indnkeyatts - 1], (i.indclass::oid[])[0:i.indnkeyatts - 1],
    x.conexclop) with ordinality k (compared_by, class, excludes, number)
join pg_opclass p on p.oid = k.class
left join pg_amop a on a.amopfamily = p.opcfamily and a.amopstrategy = 3 and k.excludes is null
    and a.amoplefttype = p.opcintype and a.amoprighttype = p.opcintype
join pg_operator o on o.oid = coalesce(k.excludes, a.amopopr) join pg_namespace n on n.oid = o.oprnamespace
left join pg_collation c on c.oid = k.compared_by left join pg_namespace cn on cn.oid = c.collnamespace
where (i.indisunique or i.indisexclusion) and i.indisvalid
and not exists (select from pg_inherits h where h.inhrelid = i.indexrelid)
group by i.indexrelid order by i.indexrelid
""").format(nulls_equal=HOLDS_NULLS_EQUAL)
_REFERS_TO_ITSELF: Final = """
select exists (select from pg_constraint where conrelid = %s::regclass and contype = 'f' and confrelid = conrelid)
"""
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
# The bounds of the partitions that hold rows, and of the tables above them.
_BOUNDS: Final = """
select pg_get_partition_constraintdef(p.relid) from pg_partition_tree(%s::regclass) p
where p.isleaf and p.level > 0 limit %s
"""


@dataclass(frozen=True, slots=True)
class ExclusiveIndex:
    """A unique index, or the index of an exclusion constraint.

    expressions   what is compared, with its collation, as Postgres writes it
    operators     by which two rows are in each other's way
    predicate     the condition of the rows that the index has
    nulls_equal   true if rows with nulls can be in each other's way
    is_immediate  true if it cannot be deferred
    is_plain      true if rows are in each other's way that `group by` takes for equal
    """

    expressions: Sequence[sql.Composable]
    operators: Sequence[str]
    predicate: sql.Composable
    nulls_equal: bool
    is_immediate: bool
    is_plain: bool

    @property
    def values(self) -> list[sql.Identifier]:
        """Names for what is compared, which no column of a target has."""
        return [sql.Identifier(f"exactbatch value {number}") for number, _ in enumerate(self.expressions)]

    @property
    def named_values(self) -> sql.Composable:
        """What to select of a table to get the values by their names."""
        return sql.SQL(", ").join(
            sql.SQL("{} as {}").format(expression, value)
            for expression, value in zip(self.expressions, self.values, strict=True)
        )


def exclusive_indexes(cursor: Cursor, table: TargetTable) -> list[ExclusiveIndex]:
    """Return the indexes of a table, and of its partitions, by which rows exclude each other."""
    cursor.execute(_INDEXES, {"table": table.identifier.as_string(cursor)})
    return [
        ExclusiveIndex(
            [
                sql.SQL("({}){}").format(
                    sql.SQL(expression), sql.SQL(f" collate {collation}" if collation else "")
                )
                for expression, collation in zip(row.expressions, row.collations, strict=True)
            ],
            row.operators,
            sql.SQL("({})").format(sql.SQL(row.predicate)),
            row.nulls_equal,
            row.is_immediate,
            row.is_plain,
        )
        for row in cursor.fetchall()
    ]


def sharing_a_key(
    cursor: Cursor, table: TargetTable, rows: sql.Composable, identity: Sequence[str]
) -> sql.Composable | None:
    """Return a query for the identity of each row that shares a key of a unique index with another row, or with a row
    of the table. No other row can be in the way of one.

    `rows` is a relation with the columns of the table, in their types. None if the rows may exclude each other in other
    ways: by an exclusion constraint, an unusual comparison or a reference to the table itself; or have other keys, by a
    trigger or a rule.
    """
    indexes = exclusive_indexes(cursor, table)
    cursor.execute(_REFERS_TO_ITSELF, (table.identifier.as_string(cursor),))
    if cursor.fetchone()[0] or not all(each.is_plain and not each.nulls_equal for each in indexes):
        return None
    if table.triggers(cursor):
        return None
    queries = [_sharing(table, rows, identity, index) for index in indexes]
    return sql.SQL(" union all ").join(queries) if queries else None


def _sharing(
    table: TargetTable, rows: sql.Composable, identity: Sequence[str], index: ExclusiveIndex
) -> sql.Composable:
    """Return the query of sharing_a_key() for one index."""
    # Only the columns of the table itself have names that the index's expressions may mean. Null is in no list.
    return sql.SQL(
        "select {identity} from ({keyed}) n where ({values}) in (select {values} from ({keyed}) g group by {values} "
        "having count(*) > 1) union all "
        "select {identity} from ({keyed}) n where exists (select from ("
        "select {named} from {table} where {predicate}) t where {same})"
    ).format(
        identity=column_list(identity, of="n"),
        keyed=sql.SQL("select {named}, {identity} from {rows} where {predicate}").format(
            named=index.named_values, identity=column_list(identity), rows=rows, predicate=index.predicate
        ),
        values=sql.SQL(", ").join(index.values),
        named=index.named_values,
        table=table.identifier,
        predicate=index.predicate,
        same=sql.SQL(" and ").join(
            sql.SQL("t.{value} {operator} n.{value}").format(value=value, operator=sql.SQL(operator))
            for value, operator in zip(index.values, index.operators, strict=True)
        ),
    )


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
