"""`exactbatch roles`."""

import typer

from exactbatch.errors.explanation import explain


def roles() -> None:
    """Print the SQL for psql that creates the roles of a deployment, and grants each what it needs."""
    typer.echo(explain("roles").markdown, nl=False)
