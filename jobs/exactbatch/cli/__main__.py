"""`python -m exactbatch.cli` runs the exactbatch command."""

from exactbatch.cli.app import app

app()
