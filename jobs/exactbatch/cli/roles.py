"""`exactbatch roles`."""

import typer

from exactbatch.errors.explanation import explain


def roles() -> None:
    """Print the SQL that creates the roles of a deployment and grants what each needs, for psql."""
    typer.echo(explain("roles").markdown, nl=False)
