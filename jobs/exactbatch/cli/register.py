"""`exactbatch register`."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, err, out, print_json
from exactbatch.cli.load_pipeline import Reference, find_tables, ledger_connection, load_any
from exactbatch.errors import ExactbatchError, WrongUsage
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, check_schema, ledger_version, migrate
from exactbatch.planning.freeze_replay import missing_index
from exactbatch.planning.members import find_members, joined_by
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from exactbatch.tables import Tables, build_failure


def register(
    reference: Reference,
    accept_identity: Annotated[
        bool,
        typer.Option(
            "--accept-identity",
            help="Accept a target, sink, key, version or lineage that differs from the registered one.",
        ),
    ] = False,
    rename: Annotated[
        str | None,
        typer.Option(metavar="OLD", help="Previous name of the pipeline, which keeps its stored offsets."),
    ] = None,
    share_topics: Annotated[
        bool,
        typer.Option(
            "--share-topics", help="Load topics that another pipeline also loads into the same target."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Register a pipeline in the ledger. Creates the ledger in a database that has none.

    --accept-identity and --rename ask first, because the ledger forgets the previous identity or name.
    """
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        if accept_identity or rename or share_topics:
            raise WrongUsage(
                f"--accept-identity, --rename and --share-topics are for one pipeline. Name it: {reference}.TABLE"
            )
        _register_tables(pipeline, settings, dry_run=dry_run, as_json=as_json)
        return
    if rename:
        confirm(
            f"Replace the name {rename} by {pipeline.name} in all rows of the ledger?", yes=yes or dry_run
        )
    if accept_identity:
        confirm(
            f"Keep the rows of {pipeline.traits.target} as if {pipeline.name} had written them as it is now? The "
            f"ledger forgets its previous identity.",
            yes=yes or dry_run,
        )
    with ledger_connection(settings, pipeline, may_be_new=True) as connection:
        versions = _create_ledger(connection, dry_run=dry_run)
        if versions is None:
            _show_new_ledger([pipeline.name], as_json=as_json)
            return
        with transaction(connection):
            ledger = Ledger(connection)
            known = {each.name for each in ledger.registry.read_all()}
            many = find_tables(reference)
            joins = None if many is None else joined_by(many, pipeline.name, known)
            registered = ledger.registry.register(
                pipeline,
                accept_identity=accept_identity,
                share_topics=share_topics,
                rename=rename,
                joined_by=joins,
            )
            if dry_run:
                connection.rollback()
        with transaction(connection) as cursor:
            index = missing_index(cursor, pipeline)
            tables = find_writer(pipeline.traits).tables
            has_tables = all(table.exists(cursor) for table in tables)
    if as_json:
        print_json({"pipeline": pipeline.name, "migrated_to": versions, "registered": registered})
        return
    if versions:
        out.print(render.describe_migration(versions))
    state = _state(dry_run) if registered else "was registered already"
    if registered and rename:
        state += f" and continues from the stored offsets of {rename}"
    out.print(f"Pipeline [bold]{pipeline.name}[/bold] → {escape(pipeline.traits.target)} {escape(state)}.")
    if not has_tables:
        created = ", ".join(table.spec for table in tables)
        out.print(f"The first batch creates {escape(created)}, and their schemas, unless they exist.")
    if index is not None:
        out.print(escape(render.recommend_index(index)))


def _create_ledger(connection: Connection, *, dry_run: bool) -> list[int] | None:
    """Create the ledger if the database has none; return its versions, or None if a dry run lacks a ledger.

    Raises NotRegistered for a ledger of another version.
    """
    if ledger_version(connection) is not None:
        check_schema(connection)
        return []
    if dry_run:
        return None
    with err.status("Creating the ledger …"):
        return migrate(connection)


def _state(dry_run: bool) -> str:
    return "would be registered" if dry_run else "is registered"


def _show_new_ledger(names: Sequence[str], *, as_json: bool) -> None:
    """Show what a dry run knows of a database without a ledger."""
    if as_json:
        print_json({"migrated_to": [], "creates_ledger": True, "would_register": list(names)})
    else:
        out.print(f"The ledger would be created, and {', '.join(names)} registered.", markup=False)


def _register_tables(tables: Tables, settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Create the ledger as _create_ledger() does, and register all members that exist now.

    Raises TablesFailed or TablesUnfinished, which name the members that failed, after all others are registered.
    """
    with ledger_connection(settings, may_be_new=True) as connection:
        versions = _create_ledger(connection, dry_run=dry_run)
        if versions is None:
            _show_new_ledger([tables.name], as_json=as_json)
            return
        members, unmade = find_members(connection, KafkaBroker(settings.kafka), tables)
        failed: dict[str, ExactbatchError] = dict(unmade)
        ledger, registered = Ledger(connection), []
        with transaction(connection):
            known = {each.name for each in ledger.registry.read_all()}
        for member in members:
            try:
                with translate_all_errors(), transaction(connection):
                    is_new = ledger.registry.register(member, joined_by=joined_by(tables, member.name, known))
                    if dry_run:
                        connection.rollback()
            except ExactbatchError as error:
                failed[member.name] = error
            else:
                if is_new:
                    registered.append(member.name)
    members = [member for member in members if member.name not in failed]
    if as_json:
        names = [member.name for member in members]
        print_json(
            {"tables": tables.name, "migrated_to": versions, "members": names, "registered": registered}
        )
    else:
        if versions:
            out.print(render.describe_migration(versions))
        for member in members:
            state = (
                ("would be" if dry_run else "is") + " registered"
                if member.name in registered
                else "was registered already"
            )
            out.print(f"Pipeline [bold]{member.name}[/bold] → {escape(member.traits.target)} {state}.")
        out.print(f"{len(members)} tables, of {escape(tables.topics_text)}.")
    if failed:
        raise build_failure(tables, failed, others=len(members))
