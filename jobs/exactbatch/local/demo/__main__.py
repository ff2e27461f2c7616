"""`python -m exactbatch.local.demo` runs the demo."""

import typer

from exactbatch.local.demo.scenario import demo

typer.run(demo)
