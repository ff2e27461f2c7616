"""Check that a table can hold what a sink writes, before anything is written.

A third of the module is queries of Postgres's catalog, one for each check.
"""

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.catalog import check_copied_unaltered
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import HOLDS_NULLS_EQUAL, PUBLISHED_SCHEMAS, Since
from exactbatch.sinks.table_name import quoted
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import Cast

# Two values of one of these types are equal in both or in neither.
_COMPARED_AS: Final = {
    **dict.fromkeys(("smallint", "integer", "bigint"), "numeric"),
    "character varying": "text",
}
# Foreign keys that carry a delete from the table or its partitions on, table by table.
_CASCADES: Final = """
with recursive family as (
    select %(table)s::regclass::oid as oid union select relid::oid from pg_partition_tree(%(table)s::regclass)
), carried as (
    select k.conrelid, k.confrelid, k.conname, k.confdeltype from pg_constraint k
    join family f on f.oid = k.confrelid
    where k.contype = 'f' and k.confdeltype in ('c', 'n', 'd') and k.conparentid = 0
    union
    select k.conrelid, k.confrelid, k.conname, k.confdeltype from pg_constraint k
    join carried c on k.confrelid = c.conrelid and c.confdeltype = 'c'
    where k.contype = 'f' and k.confdeltype in ('c', 'n', 'd') and k.conparentid = 0
)
select n.nspname::text, r.relname::text, c.conname::text,
       case c.confdeltype when 'c' then 'cascade' when 'n' then 'set null' else 'set default' end,
       c.confrelid::regclass::text, c.conrelid in (select oid from family)
from carried c join pg_class r on r.oid = c.conrelid join pg_namespace n on n.oid = r.relnamespace
order by 1, 2, 3
"""
# Columns whose type, or that of their domain, is an extension's in a schema off the search_path.
_HIDDEN_OPERATORS: Final = """
with recursive types as (
    select a.attname, a.atttypid as oid from pg_attribute a
    where a.attrelid = %s::regclass and a.attname = any(%s) and a.attnum > 0
    union
    select t.attname, y.typbasetype from types t join pg_type y on y.oid = t.oid where y.typtype = 'd'
)
select t.attname::text, n.nspname::text, y.typname::text
from types t join pg_type y on y.oid = t.oid join pg_namespace n on n.oid = y.typnamespace
where y.typtype = 'b' and y.typcategory <> 'A' and n.nspname <> 'pg_catalog'
  and n.nspname <> all(current_schemas(true))
order by 1 limit 1
"""
# Unique indexes of exactly the key, as `on conflict (key)` takes them, that could treat different keys as equal: by a
# collation other than the column's, or by an operator class other than the default one of the column's type. Postgres's
# own classes may order otherwise, as text_pattern_ops does, if their `=` is the same.
_LOOSE_INDEXES: Final = """
with recursive types as (
    select a.attnum as number, a.atttypid as oid from pg_attribute a
    where a.attrelid = %(table)s::regclass and a.attname = any(%(key)s) and a.attnum > 0
    union all
    select t.number, y.typbasetype from types t join pg_type y on y.oid = t.oid where y.typtype = 'd'
), defaults as (
    select t.number, d.*
    from types t join pg_type y on y.oid = t.oid and y.typtype <> 'd'
    cross join lateral (
        select o.oid, o.opcfamily, o.opcintype
        from pg_opclass o join pg_type i on i.oid = o.opcintype
        left join pg_cast c on c.castsource = y.oid and c.casttarget = i.oid
            and c.castmethod = 'b' and c.castcontext = 'i'
        where o.opcdefault and o.opcmethod = (select oid from pg_am where amname = 'btree')
        and (i.oid = y.oid or c.oid is not null or i.oid = case
            when y.typcategory = 'A' then 'anyarray'::regtype when y.typtype = 'e' then 'anyenum'::regtype
            when y.typtype = 'r' then 'anyrange'::regtype when y.typtype = 'm' then 'anymultirange'::regtype
            when y.typtype = 'c' then 'record'::regtype end)
        order by i.oid = y.oid desc, c.oid is not null and i.typispreferred desc limit 1
    ) d
)
select i.indexrelid::regclass::text, a.attname::text,
       case when not n.collisdeterministic then 'collation ' || quote_ident(n.collname)
            else 'operator class ' || quote_ident(o.opcname) end
from pg_index i
cross join lateral unnest(
    -- These vectors count from 0; after the key columns come the included ones.
    (i.indkey::int2[])[0:i.indnkeyatts - 1], (i.indcollation::oid[])[0:i.indnkeyatts - 1],
    (i.indclass::oid[])[0:i.indnkeyatts - 1]) k (number, compared_by, class)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
join pg_opclass o on o.oid = k.class
left join defaults d on d.number = k.number
left join pg_collation n on n.oid = k.compared_by and k.compared_by <> a.attcollation
where i.indrelid = %(table)s::regclass and i.indisunique and not i.indisexclusion and i.indexprs is null
-- A condition without a column, such as `where true`, excludes no row.
and (i.indpred is null or i.indpred::text not like '%%{VAR %%')
and (select array_agg(distinct c.attname::text order by c.attname::text) from pg_attribute c
     where c.attrelid = i.indrelid and c.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    = (select array_agg(name order by name) from unnest(%(key)s) name)
and (not coalesce(n.collisdeterministic, true) or o.oid is distinct from d.oid and not (
    o.opcnamespace = 'pg_catalog'::regnamespace and exists (
        select from pg_amop own join pg_amop usual on usual.amopopr = own.amopopr
        where own.amopfamily = o.opcfamily and own.amopstrategy = 3
        and own.amoplefttype = o.opcintype and own.amoprighttype = o.opcintype
        and usual.amopfamily = d.opcfamily and usual.amopstrategy = 3
        and usual.amoplefttype = d.opcintype and usual.amoprighttype = d.opcintype)))
order by 1, 2 limit 1
"""
# What publications have from Postgres 15 on: schemas, and lists of columns.
_OF_SCHEMAS: Final = sql.SQL("""
    or exists (select from pg_publication_namespace s where s.pnpubid = p.oid and (s.pnnspid = c.relnamespace
               or s.pnnspid in (select a.relnamespace from pg_partition_ancestors(c.oid) t
                                join pg_class a on a.oid = t.relid)))""")
_OF_COLUMNS: Final = sql.SQL("""
left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid and r.prattrs is not null
where i.columns is null or not i.columns <@ r.prattrs::int2[]""")
# Tables, with their partitions, whose deletes or updates a publication cannot replicate.
_NOT_REPLICATED: Final = sql.SQL("""
with family as (
    select %s::regclass::oid as oid union select relid::oid from pg_partition_tree(%s::regclass)
)
select format('%%I.%%I', n.nspname, c.relname), p.pubname::text, i.columns is not null
from family f join pg_class c on c.oid = f.oid and c.relkind = 'r' join pg_namespace n on n.oid = c.relnamespace
join pg_publication p on (p.pubdelete or p.pubupdate) and (
    p.puballtables
    or exists (select from pg_publication_rel r where r.prpubid = p.oid
               and (r.prrelid = c.oid or r.prrelid in (select relid from pg_partition_ancestors(c.oid)))){of_schemas})
left join lateral (
    -- Not pg_get_replica_identity_index(): Postgres might call it for a table that is being dropped.
    -- A key `without overlaps` is no identity: it does not compare the columns for equality.
    select array_agg(k.column_number) as columns
    from pg_index i cross join unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k (column_number)
    where i.indrelid = c.oid and not i.indisexclusion
    and (c.relreplident = 'd' and i.indisprimary or c.relreplident = 'i' and i.indisreplident)
    having count(*) > 0
    union all
    select array_agg(a.attnum) from pg_attribute a
    where c.relreplident = 'f' and a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    having c.relreplident = 'f'
) i on true{of_columns}
order by 1, 2 limit 1
""").format(
    of_schemas=Since(PUBLISHED_SCHEMAS, _OF_SCHEMAS, sql.SQL("")),
    of_columns=Since(PUBLISHED_SCHEMAS, _OF_COLUMNS, sql.SQL("\nwhere i.columns is null")),
)


def check_companion(cursor: Cursor, table: TargetTable) -> None:
    """Raise TargetMismatch if a table that exactbatch keeps for itself has a trigger or a rule."""
    if triggers := table.triggers(cursor):
        raise TargetMismatch(
            f"table {table.spec}: {triggers} could alter what exactbatch keeps in this table for itself. Nothing "
            f"was written. Drop {triggers}: triggers belong on the target."
        )


def check_same_keys(cursor: Cursor, table: TargetTable, other: TargetTable, key: Sequence[str]) -> None:
    """Raise TargetMismatch if two keys could be equal in one of two tables and different in the other.

    Both tables agree if the types of the key columns compare alike, and their collations are deterministic.
    """
    columns, other_columns = table.columns(cursor), other.columns(cursor)
    for name in key:
        if _equality(columns[name].type) != _equality(other_columns[name].type):
            raise TargetMismatch(
                f"target {table.spec}, column {name}: the key has the type {columns[name].type} here and "
                f"{other_columns[name].type} in {other.spec}: keys that differ in one table could be equal in the "
                f"other. Nothing was written. Give both the same type.",
                column=name,
            )
    for checked in (table, other):
        check_collations(cursor, checked, key)


def check_collations(cursor: Cursor, table: TargetTable, key: Sequence[str]) -> None:
    """Raise TargetMismatch if the collation of a key column makes different texts equal."""
    cursor.execute(
        "select a.attname::text, c.collname::text "
        "from pg_attribute a join pg_collation c on c.oid = a.attcollation "
        "where a.attrelid = %s::regclass and a.attname = any(%s) and not c.collisdeterministic",
        (table.identifier.as_string(cursor), list(key)),
    )
    if (row := cursor.fetchone()) is not None:
        column, collation = row
        raise TargetMismatch(
            f"target {table.spec}, column {column}: its collation {collation} makes different texts equal, so "
            f"that rows of different keys would become one. Nothing was written. Give the column a deterministic "
            f"collation.",
            column=column,
        )


def check_operators(cursor: Cursor, table: TargetTable, key: Sequence[str]) -> None:
    """Raise TargetMismatch if the login's search_path does not find the `=` of a key column's type.

    Postgres would then use the `=` of another type, such as text's for citext, and an index of the key would not.
    """
    cursor.execute(sql.SQL(_HIDDEN_OPERATORS), (table.identifier.as_string(cursor), list(key)))
    if (row := cursor.fetchone()) is not None:
        column, schema, type_ = row
        raise TargetMismatch(
            f"target {table.spec}, column {column}: the operators of its type {schema}.{type_} are in the "
            f"schema {schema}, which is not on the login's search_path, so Postgres would compare the values "
            f"as those of another type. Nothing was written. Put the schema on the search_path of every login "
            f"that runs the pipeline or audits it: alter role … set search_path = public, {quoted(schema)};"
            f"{cursor.connection.left_out_remark}",
            column=column,
        )


def check_own_types(cursor: Cursor, table: TargetTable, names: Sequence[str], where: str) -> None:
    """Raise TargetMismatch if the type of a version is not one of Postgres's own; `where` is for its message.

    The login's search_path decides what `>` means for the values of another type.
    """
    cursor.execute(
        "select a.attname::text, format_type(t.oid, null) from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "where a.attrelid = %s::regclass and a.attname = any(%s) "
        "and (t.typtype <> 'b' or t.typnamespace <> 'pg_catalog'::regnamespace) order by a.attnum",
        (table.identifier.as_string(cursor), list(names)),
    )
    if (row := cursor.fetchone()) is not None:
        column, type_ = row
        raise TargetMismatch(
            f"target {table.spec}, column {column}: {where}, a version must have a type of Postgres itself, "
            f"found {type_}. Nothing was written. Give the column such a type.",
            column=column,
        )


def check_unique(
    cursor: Cursor, table: TargetTable, key: Sequence[str], *, nulls_equal: bool = False
) -> None:
    """Raise TargetMismatch unless a constraint keeps two rows from having the same key, and none does more.

    With `nulls_equal`, the constraint must treat null like any other value.
    """
    _check_indexes(cursor, table, key)
    cursor.execute(
        sql.SQL(
            "select array_agg(a.attname::text order by a.attname) from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid "
            # int2vector counts from 0; after the key columns come the included ones.
            "and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
            "where i.indrelid = %s::regclass and i.indisunique and i.indimmediate and i.indpred is null "
            "and i.indisvalid and i.indisready "
            "and i.indexprs is null and (i.indisprimary or not %s or {}) "
            "group by i.indexrelid"
        ).format(HOLDS_NULLS_EQUAL),
        (table.identifier.as_string(cursor), nulls_equal),
    )
    if sorted(key) in [row[0] for row in cursor.fetchall()]:
        return
    names = ", ".join(key)
    clause = "unique nulls not distinct" if nulls_equal else "unique"
    raise TargetMismatch(
        f"target {table.spec}: expected a primary key or unique constraint on exactly ({names}), the key "
        f"of the pipeline{', that treats nulls as equal' if nulls_equal else ''}, found none. Add it: "
        f"alter table {table.spec} add {clause} ({names});"
    )


def _check_indexes(cursor: Cursor, table: TargetTable, key: Sequence[str]) -> None:
    """Raise TargetMismatch if a unique index of the key could treat different keys as equal.

    `on conflict (key)` takes every unique index of these columns, so that a row would replace that of another key.
    """
    cursor.execute(_LOOSE_INDEXES, {"table": table.identifier.as_string(cursor), "key": list(key)})
    if (row := cursor.fetchone()) is not None:
        index, column, difference = row
        raise TargetMismatch(
            f"target {table.spec}, column {column}: the unique index {index} compares it by the {difference}, which "
            f"can make different values equal, so that a row would replace that of another key. Nothing was "
            f"written. Drop the index, or the constraint that it belongs to: drop index {index};",
            column=column,
            constraint=index,
        )


def check_cascades(cursor: Cursor, table: TargetTable, allowed: Sequence[str] = ()) -> None:
    """Raise TargetMismatch if deleting rows would change tables that are not `allowed`.

    Foreign keys with on delete cascade, set null or set default carry a delete on, table by table.
    """
    cursor.execute(_CASCADES, {"table": table.identifier.as_string(cursor)})
    names = {TargetTable(spec).name for spec in allowed}
    if refused := [row for row in cursor.fetchall() if (row[0], row[1]) not in names or row[5]]:
        schema, other, constraint, action, referenced, is_own = refused[0]
        spec = f"{quoted(schema)}.{quoted(other)}"
        raise TargetMismatch(
            f"target {table.spec}: a replay deletes rows and inserts them again, and the foreign key "
            f"{constraint} of {schema}.{other} to {referenced} (on delete {action}) would permanently change rows "
            f"of {'the target itself' if is_own else f'{schema}.{other}'}. Nothing was written. Make the foreign "
            f"key deferrable initially deferred, without on delete {action}"
            + ("." if is_own else f", or allow it: Append(…, cascade={spec!r})."),
            constraint=constraint,
        )


def check_lineage(cursor: Cursor, table: TargetTable, casts: Sequence[Cast]) -> None:
    """Raise TargetMismatch unless the columns of lineage hold their values exactly: replays find rows by them."""
    for cast in casts:
        # Replays compare offsets with ranges of bigint.
        is_comparable = cast.column.name != "kafka_offset" or cast.target.leaf.name == "int8"
        if not (is_comparable and cast.holds_lineage):
            problem = f"type {cast.type} may change such values, or cannot be compared with ranges of them"
            _refuse_lineage(table, cast.column, problem)
    cursor.execute(
        "select a.attname, c.collname from pg_attribute a join pg_collation c on c.oid = a.attcollation "
        "where a.attrelid = %s::regclass and a.attname = any(%s) and not c.collisdeterministic",
        (table.identifier.as_string(cursor), [cast.column.name for cast in casts]),
    )
    for name, collation in cursor.fetchall():
        column = next(cast.column for cast in casts if cast.column.name == name)
        _refuse_lineage(table, column, f"collation {collation} treats different topics as equal")


def _refuse_lineage(table: TargetTable, column: Column, problem: str) -> NoReturn:
    collation = ' collate "default"' if column.type == "text" else ""
    raise TargetMismatch(
        f"target {table.spec}, column {column.name}: exactbatch writes a {column.type} here and finds rows by it, and "
        f"the column's {problem}. Nothing was written. Run `alter table {table.spec} alter {quoted(column.name)} "
        f"type {column.type}{collation}`. Rows that are there keep what was stored: `exactbatch audit` finds those "
        f"whose lineage is wrong.",
        column=column.name,
    )


def check_replicated(cursor: Cursor, table: TargetTable) -> None:
    """Raise TargetMismatch if a publication includes the table, and Postgres would refuse to delete its rows."""
    cursor.execute(_NOT_REPLICATED, (table.identifier.as_string(cursor),) * 2)
    if (row := cursor.fetchone()) is None:
        return
    published, publication, has_identity = row
    problem, remedy = (
        (
            "the columns that it includes lack some of the replica identity",
            "Let it include them all.",
        )
        if has_identity
        else (
            "the table has no replica identity",
            f"Give it one: alter table {published} replica identity full;",
        )
    )
    raise TargetMismatch(
        f"target {table.spec}: the publication {publication} replicates deletes and updates of {published}, and "
        f"{problem}, so Postgres refuses them. Nothing was written. {remedy}"
    )


def check_copyable(cursor: Cursor, table: TargetTable, columns: Sequence[Column]) -> None:
    """Check that several transactions can copy rows into the table at once, without a cast.

    Raises TargetMismatch, which names the column whose type is not exactly the one that is written, or the
    constraint that could refuse one range's rows because of another's.
    """
    stored = table.columns(cursor)
    for column in columns:
        if (actual := stored[column.name].type) != column.type:
            raise TargetMismatch(
                f"target {table.spec}, column {column.name}: expected exactly the type {column.type}, "
                f"because commit='partition' copies rows without a cast, found {actual}. Change the "
                f"column's type, or use commit='batch'.",
                column=column.name,
            )
    cursor.execute(
        """
        select i.indexrelid::regclass::text
        from pg_index i
        where (i.indisunique or i.indisexclusion) and i.indrelid in (
            select %(table)s::regclass union select relid from pg_partition_tree(%(table)s::regclass)
        )
        order by 1 limit 1
        """,
        {"table": table.identifier.as_string(cursor)},
    )
    if (constraint := cursor.fetchone()) is not None:
        raise TargetMismatch(
            f"target {table.spec}: it has the constraint or unique index {constraint[0]}. With "
            f"commit='partition', ranges are written independently of each other, so the table must have no "
            f"primary key, unique or exclusion constraint or unique index. Drop {constraint[0]}, or use "
            f"commit='batch'.",
            constraint=constraint[0],
        )
    check_copied_unaltered(table.spec, table.facts(cursor))
    cursor.execute("select current_setting('track_counts')")
    if cursor.fetchone()[0] != "on":
        raise TargetMismatch(
            f"target {table.spec}: Postgres does not count the rows that arrive (track_counts is off), and "
            f"commit='partition' needs the count. Switch track_counts on (the default), or use commit='batch'."
        )


def _equality(type_: str) -> str:
    """Return how a type compares: the same text for two types whose values are equal in both or in neither."""
    plain = re.sub(r"\(\d+(?:,\d+)?\)", "", type_)
    return _COMPARED_AS.get(plain, plain)
