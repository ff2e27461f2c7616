"""Who can let code run as the job's login: the owners of targets, and of what targets call."""

from collections.abc import Iterator
from typing import Final

from exactbatch.operations.doctor.finding import Finding
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction

# Functions that functions call are not known to Postgres. The owner of the ledger, of the database, and superusers have
# more rights than the job anyway.
_OWNERS: Final = """
with family as (
    select c.* from pg_class c
    where c.oid = to_regclass(%(table)s) or c.oid in (select relid from pg_partition_tree(to_regclass(%(table)s)))
), domains as (
    select distinct t.* from family f join pg_attribute a on a.attrelid = f.oid and a.attnum > 0
    join pg_type t on t.oid = a.atttypid and t.typtype = 'd'
), users as (
    select 'pg_trigger'::regclass as class, oid from pg_trigger where tgrelid in (select oid from family)
    union all select 'pg_attrdef'::regclass, oid from pg_attrdef where adrelid in (select oid from family)
    union all select 'pg_rewrite'::regclass, oid from pg_rewrite where ev_class in (select oid from family)
    union all select 'pg_class'::regclass, indexrelid from pg_index where indrelid in (select oid from family)
    union all
    select 'pg_constraint'::regclass, oid from pg_constraint
    where conrelid in (select oid from family) or contypid in (select oid from domains)
), powers as (
    select relowner as role, 'owns ' || oid::regclass as why from family
    union
    select n.nspowner, 'owns schema ' || n.oid::regnamespace
    from family f join pg_namespace n on n.oid = f.relnamespace
    union
    select a.grantee, 'may create triggers on ' || f.oid::regclass
    from family f cross join aclexplode(f.relacl) a where a.privilege_type = 'TRIGGER'
    union select typowner, 'owns domain ' || oid::regtype from domains
    union
    select p.proowner, 'owns function ' || p.oid::regprocedure
    from users u join pg_depend d on d.classid = u.class and d.objid = u.oid and d.refclassid = 'pg_proc'::regclass
    join pg_proc p on p.oid = d.refobjid
)
select r.rolname as login, min(p.why) as why
from powers p join pg_roles r on r.rolcanlogin and (p.role = 0 or pg_has_role(r.oid, p.role, 'member'))
where not pg_has_role(r.oid, current_user, 'member')
  and not pg_has_role(r.oid, (select nspowner from pg_namespace where nspname = 'exactbatch'), 'member')
  and r.oid <> (select datdba from pg_database where datname = current_database())
  and not exists (select from exactbatch.login_pipeline where login = session_user)
group by r.rolname order by r.rolname
"""


def check_owners(connection: Connection, pipeline: Pipeline) -> Iterator[Finding]:
    """Look for logins whose code runs as this login when a batch writes, unless this login is for some pipelines."""
    with transaction(connection) as cursor:
        for table in pipeline.sink.tables:
            cursor.execute(_OWNERS, {"table": table.identifier.as_string(cursor)})
            if found := cursor.fetchall():
                others = ", ".join(f"{row.login!r} {row.why}" for row in found)
                yield Finding(
                    "targets",
                    "warning",
                    f"{table.spec}: {others}, so code of theirs runs as login {connection.info.user!r}, which may "
                    f"write all pipelines",
                    "Give the pipelines of each owner of targets a login: `exactbatch explain security` has the "
                    "statement.",
                )
