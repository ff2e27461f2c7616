"""`python -m exactbatch.local.demo` runs the demo."""

import typer

from exactbatch.cli.console import with_exit_status
from exactbatch.local.demo.scenario import demo

typer.run(with_exit_status(demo))
