"""The functions that tables call, and whether their owners could use the rights of whoever reads or writes the tables.

An index, a constraint, a domain, a trigger or a rule of a table calls functions with the rights of the current login,
some of them already when Postgres plans a query. A login that may do more than the batches must not call functions of
those whom it may do more than.
"""

from collections.abc import Iterable
from typing import Final

from exactbatch.errors import ConfigurationError
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.target import TargetTable

_SHOWN: Final = 3
# Parts of a WITH RECURSIVE clause: `family` has the tables that the parameter `tables` names, with their partitions;
# `reached` what belongs to them and what this calls, as pg_depend identifies it. Functions that functions call are not
# known to Postgres, unless the body of a function in SQL is stored as a tree.
REACHED: Final = """
family (oid) as (
    select to_regclass(name)::oid from unnest(%(tables)s::text[]) name
    union select p.relid::oid from unnest(%(tables)s::text[]) name cross join pg_partition_tree(to_regclass(name)) p
), reached (class, oid) as (
    select 'pg_class'::regclass::oid, oid from family
    union
    select next.class, next.oid from reached r cross join lateral (
        select d.classid, d.objid from pg_depend d
        where r.class = 'pg_class'::regclass and d.refclassid = r.class and d.refobjid = r.oid
        and d.deptype in ('a', 'i') and d.classid::regclass::text = any(%(parts)s)
        union all
        select d.refclassid, d.refobjid from pg_depend d
        where d.classid = r.class and d.objid = r.oid
        and (d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
             or d.refclassid = 'pg_class'::regclass and r.class = 'pg_rewrite'::regclass)
        union all
        select 'pg_constraint'::regclass::oid, c.oid from pg_constraint c
        where r.class = 'pg_type'::regclass and c.contypid = r.oid
        union all
        select 'pg_class'::regclass::oid, t.typrelid from pg_type t
        where r.class = 'pg_type'::regclass and t.oid = r.oid and t.typtype = 'c' and t.typrelid <> 0
    ) next (class, oid)
)"""
# What belongs to a table, in the catalogs that these names stand for.
READ_PARTS: Final = ("pg_class", "pg_constraint")  # indexes, and constraints, which a plan may evaluate
WRITTEN_PARTS: Final = (*READ_PARTS, "pg_trigger", "pg_rewrite", "pg_attrdef", "pg_policy")
# A ledger whose owner can log in has no logins with fewer rights: its owner runs the batches.
_TRUSTED: Final = """
select case when r.rolsuper then r.oid when not o.rolcanlogin and pg_has_role(r.oid, o.oid, 'member') then o.oid end
from pg_roles r
left join pg_namespace n on n.nspname = 'exactbatch' left join pg_roles o on o.oid = n.nspowner
where r.rolname = current_user
"""
_FOREIGN: Final = f"""
with recursive {REACHED}
select p.oid::regprocedure::text as name, pg_get_userbyid(p.proowner) as owner, current_user as login,
       pg_get_userbyid(%(trusted)s) as trusted
from reached r join pg_proc p on r.class = 'pg_proc'::regclass and p.oid = r.oid
where not pg_has_role(p.proowner, %(trusted)s, 'member') order by 1
"""  # noqa: S608 - constants


def refuse_code_of_others(cursor: Cursor, tables: Iterable[TargetTable], *, writes: bool = False) -> None:
    """Raise ConfigurationError if a superuser, or a login that can act as the owner of the ledger, would call functions
    of somebody who cannot.

    Call this before the first query over the tables. If the transaction also `writes`, what writing calls counts, too,
    and nobody can add any of it to the tables from which this login may delete until the transaction ends.
    """
    cursor.execute(_TRUSTED)
    (trusted,) = cursor.fetchone()
    if trusted is None:
        return
    tables = [table for table in tables if table.exists(cursor)]
    names = [table.identifier.as_string(cursor) for table in tables]
    for table, name in zip(tables, names, strict=True) if writes else ():
        cursor.execute("select has_table_privilege(%s, 'delete')", (name,))
        if cursor.fetchone()[0] and not table.changes_partitions:  # else batches that add one would wait
            table.lock_definition(cursor)
    parts = list(WRITTEN_PARTS if writes else READ_PARTS)
    cursor.execute(_FOREIGN, {"tables": names, "parts": parts, "trusted": trusted})
    if not (found := cursor.fetchall()):
        return
    shown = ", ".join(f"{row.name} of {row.owner!r}" for row in found[:_SHOWN])
    raise ConfigurationError(
        f"login {found[0].login!r} may do more than the owners of functions that the tables {', '.join(names)} call, "
        f"which would run with its rights: {shown}. Nothing was done. Use a login with fewer rights, or give the "
        f"functions to one that has them: alter function {found[0].name} owner to {found[0].trusted};"
    )
