"""The ledger that `exactbatch init` creates or upgrades."""

import sys

import typer

from exactbatch.cli.console import confirm, err
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.ledger import ledger_version, migrate, newest_version
from exactbatch.postgres.connection import Connection


def create_or_upgrade(connection: Connection, *, yes: bool) -> list[int]:
    """Create the ledger, or upgrade it after a question, which `yes` answers; return the versions that were applied.

    Raises typer.Abort if the answer is no, and typer.Exit with status 3 if there is no terminal to ask on.
    """
    found, newest = ledger_version(connection), newest_version()
    if found is not None and found < newest and not yes:
        fact = (
            f"the ledger of database {connection.info.dbname!r} has version {found}, and this exactbatch needs version "
            f"{newest}. The upgrade cannot be undone, and programs of the older version then refuse the ledger"
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
        return migrate(connection, progress=lambda step: status.update(step))
