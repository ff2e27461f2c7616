"""`exactbatch migrate`."""

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, err, out, print_json
from exactbatch.cli.load_pipeline import ledger_connection, load_settings
from exactbatch.ledger import ledger_version, newest_version, write_migrations
from exactbatch.ledger import migrate as migrate_ledger
from exactbatch.postgres.connection import Connection


def migrate(dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Create the ledger, or upgrade it, which cannot be undone. --dry-run prints the SQL."""
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
            render.describe_migration(versions)
            if versions
            else f"The ledger has version {found}: nothing to do."
        )


def _create_or_upgrade(connection: Connection, found: int | None, *, yes: bool) -> list[int]:
    """Create the ledger, or upgrade it after a question, which `yes` answers; return the versions that were applied.

    Raises what confirm() raises.
    """
    if found is not None and found < newest_version():
        confirm(
            f"The ledger of database {connection.info.dbname!r} has version {found}, and this exactbatch needs version "
            f"{newest_version()}. The upgrade cannot be undone, and programs of the older version then refuse the "
            f"ledger. Are its DAGs paused and the database backed up? Upgrade it?",
            yes=yes,
        )
    with err.status("Creating or upgrading the ledger …") as status:
        return migrate_ledger(connection, progress=lambda step: status.update(step))
