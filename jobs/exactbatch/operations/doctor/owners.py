"""Who can let code run as the job's login: the owners of targets, and of what targets call."""

from collections.abc import Iterator
from typing import Final

from exactbatch.operations.doctor.finding import Finding
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks.tables.code_of_others import REACHED, WRITTEN_PARTS
from exactbatch.sinks.writers import find_writer

# The owner of the ledger, of the database, and superusers have more rights than the job anyway.
_OWNERS: Final = f"""
with recursive {REACHED}, powers as (
    select relowner as role, 'owns ' || oid::regclass as why from pg_class where oid in (select oid from family)
    union
    select n.nspowner, 'owns schema ' || n.oid::regnamespace
    from family f join pg_class c on c.oid = f.oid join pg_namespace n on n.oid = c.relnamespace
    union
    select a.grantee, 'may create triggers on ' || f.oid::regclass
    from family f join pg_class c on c.oid = f.oid cross join aclexplode(c.relacl) a where a.privilege_type = 'TRIGGER'
    union
    select t.typowner, 'owns domain ' || t.oid::regtype
    from reached r join pg_type t on r.class = 'pg_type'::regclass and t.oid = r.oid and t.typtype = 'd'
    union
    select p.proowner, 'owns function ' || p.oid::regprocedure
    from reached r join pg_proc p on r.class = 'pg_proc'::regclass and p.oid = r.oid
)
select r.rolname as login, min(p.why) as why
from powers p join pg_roles r on r.rolcanlogin and (p.role = 0 or pg_has_role(r.oid, p.role, 'member'))
where not pg_has_role(r.oid, current_user, 'member')
  and not pg_has_role(r.oid, (select nspowner from pg_namespace where nspname = 'exactbatch'), 'member')
  and r.oid <> (select datdba from pg_database where datname = current_database())
  and not exists (select from exactbatch.login_pipeline where login = session_user)
group by r.rolname order by r.rolname
"""  # noqa: S608 - constants


def check_owners(connection: Connection, pipeline: Pipeline) -> Iterator[Finding]:
    """Look for logins whose code runs as this login when a batch writes, unless this login is for some pipelines."""
    with transaction(connection) as cursor:
        for table in find_writer(pipeline.traits).tables:
            name = table.identifier.as_string(cursor)
            cursor.execute(_OWNERS, {"tables": [name], "parts": list(WRITTEN_PARTS)})
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
