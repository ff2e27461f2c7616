"""The unique indexes and exclusion constraints of a table, and the rows to be written that share a key of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import HOLDS_NULLS_EQUAL
from exactbatch.sinks.tables.target import TargetTable
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


@dataclass(frozen=True, slots=True)
class ExclusiveIndex:
    """A unique index, or that of an exclusion constraint.

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
