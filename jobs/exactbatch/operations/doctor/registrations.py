"""Checks of pipelines: each is registered as it is now, its code exists, and its target can hold its rows."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence

from exactbatch.discovery import load_named, split_table
from exactbatch.errors import ExactbatchError, IdentityChanged, NotRegistered
from exactbatch.ledger import Ledger
from exactbatch.operations.doctor.finding import Finding, of_error
from exactbatch.operations.doctor.owners import check_owners
from exactbatch.operations.freshness import differing_freshness
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import registered_members
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks.capabilities import ChecksShared
from exactbatch.sinks.tables.code_of_others import refuse_code_of_others
from exactbatch.sinks.writers import find_writer
from exactbatch.tables import Tables
from exactbatch.topic_pattern import TopicPattern

_PACKAGE = "pipelines"
# What a sink does with the rows of its tables, and whether the login may.
_MISSING = """
select p from unnest(array['select', 'insert', 'update', 'delete']) p
where to_regclass(%s) is not null and not has_table_privilege(to_regclass(%s), p)
"""


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
