"""Checks of pipelines: each is registered as it is now, its code exists, its target can hold its rows, and no owner of
the target, or of what it calls, can let code run as the job's login.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from exactbatch.discovery import load_named, split_table
from exactbatch.errors import ExactbatchError, IdentityChanged, NotRegistered
from exactbatch.ledger import Ledger
from exactbatch.operations.doctor.finding import Finding, of_error
from exactbatch.operations.unprocessed import differing_freshness
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import registered_members
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks.capabilities import ChecksShared
from exactbatch.sinks.tables.code_of_others import REACHED, WRITTEN_PARTS, refuse_code_of_others
from exactbatch.sinks.writers import find_writer
from exactbatch.tables import Tables
from exactbatch.topic_pattern import TopicPattern

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
_PACKAGE = "pipelines"
# What a sink does with the rows of its tables, and whether the login may.
_MISSING = """
select p from unnest(array['select', 'insert', 'update', 'delete']) p
where to_regclass(%s) is not null and not has_table_privilege(to_regclass(%s), p)
"""


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


def find_pipelines(references: Sequence[str]) -> tuple[dict[str, Pipeline | Tables], list[Finding]]:
    """Import pipelines and Tables by their references, or all of the package `pipelines`; return them by reference.

    A module that cannot be imported is a finding.
    """
    pipelines: dict[str, Pipeline | Tables] = {}
    findings = []
    for reference in references:
        try:
            pipelines[reference], _ = load_named(reference)
        except ExactbatchError as error:
            findings.append(of_error("pipelines", error))
    if references:
        return pipelines, findings
    try:
        package = importlib.import_module(_PACKAGE)
    except ImportError:
        return {}, [
            Finding(
                "pipelines",
                "warning",
                f"there is no package {_PACKAGE!r} on this machine, so registrations are not compared with code",
                "Name the pipelines: exactbatch doctor MODULE:NAME.",
            )
        ]
    for module in sorted(each.name for each in pkgutil.iter_modules(package.__path__)):
        name = f"{_PACKAGE}.{module}"
        try:
            found = vars(importlib.import_module(name))
        except (Exception, SystemExit) as error:
            findings.append(
                Finding(
                    "pipelines",
                    "problem",
                    f"the module {name} cannot be imported: {type(error).__name__}: {error}",
                    "Correct the module, or install what it imports.",
                )
            )
            continue
        pipelines |= {
            f"{name}:{each}": value for each, value in found.items() if isinstance(value, Pipeline | Tables)
        }
    return pipelines, findings


def with_members(
    connection: Connection, found: Mapping[str, Pipeline | Tables]
) -> tuple[dict[str, Pipeline], list[Finding]]:
    """Return the pipelines and, in the place of Tables, their members by reference: those of named topics, and those
    that are registered; only one if the reference names a table. Members that cannot be made are a finding."""
    pipelines: dict[str, Pipeline] = {}
    findings = []
    for reference, each in found.items():
        if isinstance(each, Pipeline):
            pipelines[reference] = each
            continue
        whole, table = split_table(reference)
        try:
            members = (
                registered_members(connection, each)
                if isinstance(each.topic_names, TopicPattern)
                else each.members(each.topic_names)
            )
        except ExactbatchError as error:
            findings.append(of_error("pipelines", error))
            continue
        if table is not None:
            members = [member for member in members if member.name == f"{each.prefix}{table}"]
        if not members:
            which = "no member" if table is None else f"no member {table!r}"
            findings.append(
                Finding(
                    "pipelines",
                    "warning",
                    f"{which} of the tables {each.name!r} is registered",
                    f"Run `exactbatch register {reference}` once.",
                )
            )
        pipelines |= {f"{whole}.{member.name.removeprefix(each.prefix)}": member for member in members}
    return pipelines, findings


def check_registrations(
    connection: Connection, pipelines: dict[str, Pipeline], *, all_of_them: bool
) -> Iterator[Finding]:
    """Compare pipelines with the ledger; with `all_of_them`, each registered pipeline should be among them."""
    with transaction(connection):
        registered = {definition.name for definition in Ledger(connection).registry.read_all()}
    for reference, pipeline in pipelines.items():
        try:
            with transaction(connection):
                registration = Ledger(connection).registry.check(pipeline)
        except NotRegistered as error:
            yield of_error("pipelines", error, f"Run `exactbatch register {reference}` once.")
        except IdentityChanged as error:
            yield of_error(
                "pipelines",
                error,
                "Undo the change, or register the pipeline under a new name with a new target.",
            )
        except ExactbatchError as error:
            yield of_error("pipelines", error)
        else:
            difference = differing_freshness(pipeline.fresh_for, registration.freshness)
            if difference is not None:
                yield Finding(
                    "pipelines",
                    "warning",
                    f"pipeline {pipeline.name!r}: {difference.removesuffix('.')}",
                    f"Store the new value in the ledger: exactbatch register {reference}",
                )
            else:
                yield Finding("pipelines", "ok", f"{pipeline.name} is registered as it is now")
    if all_of_them:
        for name in sorted(registered - {pipeline.name for pipeline in pipelines.values()}):
            yield Finding(
                "pipelines",
                "warning",
                f"pipeline {name!r} is registered, and no module of the package {_PACKAGE!r} has it",
                f"Add its module, or if it has a new name, run `exactbatch register … --rename {name}`.",
            )


def check_targets(connection: Connection, pipelines: dict[str, Pipeline]) -> Iterator[Finding]:
    """Check the tables of pipelines as a batch does before it stages rows, and roll back."""
    for pipeline in pipelines.values():
        try:
            yield from _check_target(connection, pipeline)
            yield from check_owners(connection, pipeline)
        except ExactbatchError as error:
            yield of_error("targets", error)


def _check_target(connection: Connection, pipeline: Pipeline) -> Iterator[Finding]:
    writer, missing = find_writer(pipeline.traits), []
    with transaction(connection) as cursor:
        for table in writer.tables:
            name = table.identifier.as_string(cursor)
            cursor.execute(_MISSING, (name, name))
            if lacks := [row[0] for row in cursor.fetchall()]:
                missing.append(
                    Finding(
                        "targets",
                        "problem",
                        f"login {connection.info.user!r} lacks {', '.join(lacks)} on {table.spec}",
                        f"Grant it: grant select, insert, update, delete on {table.spec} to exactbatch_job;",
                    )
                )
    if missing:
        yield from missing
        return
    columns = None if pipeline.is_transformed else pipeline.value.columns
    if columns is None:
        yield Finding(
            "targets",
            "ok",
            f"{pipeline.traits.target}: privileges only, because a transform decides on its columns",
        )
        return
    try:
        with transaction(connection) as cursor:
            refuse_code_of_others(cursor, writer.tables)
            ledger = Ledger(connection)
            writer.prepare(cursor, columns, evolve=pipeline.evolve)
            if isinstance(writer, ChecksShared):
                writer.check_shared(cursor, columns, ledger.registry.find_sharing(pipeline))
            writer.check_replay(cursor)
            raise _RollBack
    except _RollBack:
        yield Finding("targets", "ok", f"{pipeline.traits.target} can hold the rows of {pipeline.name}")


class _RollBack(Exception):
    """Ends a transaction that must leave nothing behind."""
