"""`exactbatch executor-requirements`."""

from importlib import resources

import typer


def executor_requirements() -> None:
    """Print the packages that Spark's executors need, with hashes, for pip install -r."""
    file = resources.files("exactbatch") / "requirements-executor.txt"
    typer.echo(file.read_text(encoding="utf-8"), nl=False)
