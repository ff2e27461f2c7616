"""`exactbatch boundaries`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.errors import ConfigurationError
from exactbatch.ledger import Registry, TimeBoundaries
from exactbatch.planning.request import parse_time
from exactbatch.postgres.connection import transaction


def boundaries(
    reference: Reference,
    limit: Annotated[int, typer.Option(min=1, help="How many times to list, the latest first.")] = 100,
    forget: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FROM TO", help="Forget the times from FROM to TO, both included."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets that the times of windows and backfills were resolved to, or forget some of them."""
    times = None if forget is None else (parse_time(forget[0], "FROM"), parse_time(forget[1], "TO"))
    if times is not None and times[0] > times[1]:
        raise ConfigurationError(f"--forget: FROM is {times[0]}, and TO is earlier, {times[1]}. Swap them.")
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection, transaction(connection):
        registry, boundaries, forgotten = Registry(connection), TimeBoundaries(connection), 0
        if times is None:
            registry.check(pipeline)
        else:
            registry.lock(pipeline)
            forgotten = boundaries.forget(pipeline, *times)
        resolved = boundaries.read(pipeline, limit=limit)
    if as_json:
        print_json(
            {"pipeline": pipeline.name, "forgotten": forgotten, "boundaries": list(map(asdict, resolved))}
        )
        return
    if forget is not None:
        out.print(f"Forgot {forgotten} times. The next windows that use them ask Kafka again.")
    out.print(render.boundaries_table(pipeline, resolved))
