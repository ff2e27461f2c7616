"""`exactbatch migrate`."""

import sys
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, Yes, confirm, err, out, print_json
from exactbatch.cli.load_pipeline import ledger_connection, load_settings
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.ledger import ledger_version, newest_version, write_migrations
from exactbatch.ledger import migrate as migrate_ledger
from exactbatch.postgres.connection import Connection


def migrate(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the SQL that would run, and change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create the ledger, or upgrade it after a question.

    An upgrade cannot be undone. Without a terminal and without --yes, exit status 3, and nothing is changed.
    """
    with ledger_connection(load_settings(), may_be_new=True) as connection:
        found = ledger_version(connection)
        if dry_run:
            statements = write_migrations(connection)
            if as_json:
                print_json({"version": found, "needed": newest_version(), "sql": statements})
            else:
                typer.echo(statements or f"-- The ledger has version {found}: there is nothing to do.")
            return
        versions = _create_or_upgrade(connection, found, yes=yes)
    if as_json:
        print_json({"version": newest_version(), "migrated_to": versions})
    else:
        out.print(
            render.ledger_note(versions) if versions else f"The ledger has version {found}: nothing to do."
        )


def _create_or_upgrade(connection: Connection, found: int | None, *, yes: bool) -> list[int]:
    """Create the ledger, or upgrade it after a question, which `yes` answers; return the versions that were applied.

    Raises typer.Abort if the answer is no, and typer.Exit with status 3 if there is no terminal to ask on.
    """
    if found is not None and found < newest_version() and not yes:
        fact = (
            f"the ledger of database {connection.info.dbname!r} has version {found}, and this exactbatch needs version "
            f"{newest_version()}. The upgrade cannot be undone, and programs of the older version then refuse the "
            f"ledger"
        )
        if not sys.stdin.isatty():
            err.print(
                f"error: {fact}. Nothing was changed. To upgrade it, pause its DAGs, back up the database, and run "
                f"this again with --yes.",
                markup=False,
            )
            raise typer.Exit(CHECK_FAILED)
        confirm(f"{fact[0].upper()}{fact[1:]}. Are its DAGs paused and the database backed up? Upgrade it?")
    with err.status("Creating or upgrading the ledger …") as status:
        return migrate_ledger(connection, progress=lambda step: status.update(step))
