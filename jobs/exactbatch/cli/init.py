"""`exactbatch init`."""

from typing import Annotated

import typer
from rich.markup import escape

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, Yes, out, print_json
from exactbatch.cli.many_tables import init_tables
from exactbatch.cli.pipeline import Reference, ledger_connection, load_any, tables_of
from exactbatch.cli.upgrade import create_or_upgrade
from exactbatch.errors import ConfigurationError
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import missing_index
from exactbatch.planning.members import joined_by
from exactbatch.postgres.connection import transaction
from exactbatch.tables import Tables


def init(
    reference: Reference,
    accept_identity: Annotated[
        bool,
        typer.Option(
            "--accept-identity",
            help="Accept a target, sink, key, version or lineage other than the registered one.",
        ),
    ] = False,
    rename: Annotated[
        str | None,
        typer.Option(
            metavar="OLD", help="The pipeline's previous name. The pipeline keeps its stored offsets."
        ),
    ] = None,
    share_topics: Annotated[
        bool,
        typer.Option("--share-topics", help="Load topics that another pipeline loads into the same target."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create the ledger, or upgrade it after a question, and register a pipeline in it.

    An upgrade cannot be undone. Without a terminal and without --yes, exit status 3, and nothing is changed.
    """
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        if accept_identity or rename or share_topics:
            raise ConfigurationError(
                f"--accept-identity, --rename and --share-topics are for one pipeline. Name it: {reference}.TABLE"
            )
        init_tables(pipeline, settings, yes=yes, as_json=as_json)
        return
    with ledger_connection(settings, pipeline, may_be_new=True) as connection:
        versions = create_or_upgrade(connection, yes=yes)
        with transaction(connection):
            ledger = Ledger(connection)
            known = {each.name for each in ledger.registered()}
            many = tables_of(reference)
            joins = None if many is None else joined_by(many, pipeline.name, known)
            registered = ledger.register(
                pipeline,
                accept_identity=accept_identity,
                share_topics=share_topics,
                rename=rename,
                joined_by=joins,
            )
        with transaction(connection) as cursor:
            index = missing_index(cursor, pipeline)
            has_tables = all(table.exists(cursor) for table in pipeline.sink.tables)
    if as_json:
        print_json({"pipeline": pipeline.name, "migrated_to": versions, "registered": registered})
        return
    if versions:
        out.print(render.ledger_note(versions))
    state = "is registered" if registered else "was registered already"
    if registered and rename:
        state += f" and continues from the stored offsets of {rename}"
    out.print(f"Pipeline [bold]{pipeline.name}[/bold] → {escape(pipeline.sink.target)} {escape(state)}.")
    if not has_tables:
        tables = " and ".join(table.spec for table in pipeline.sink.tables)
        out.print(f"The first batch creates {escape(tables)}, and the schema, if they do not exist.")
    if index is not None:
        out.print(escape(render.index_note(index)))
