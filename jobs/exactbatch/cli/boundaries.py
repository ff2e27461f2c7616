"""`exactbatch boundaries`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.typed_values import typed
from exactbatch.errors import WrongUsage
from exactbatch.ledger import Registry, TimeBoundaries
from exactbatch.planning.request import parse_time
from exactbatch.postgres.connection import transaction


def boundaries(
    reference: Reference,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many to list, the latest first.")] = 100,
    forget: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="START END", help="Forget the times from START to END, both included."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show time boundaries: the offsets that times of windows and backfills were resolved to. Or forget some."""
    times = None
    if forget is not None:
        with typed():
            times = parse_time(forget[0], "START"), parse_time(forget[1], "END")
        if times[0] > times[1]:
            raise WrongUsage(f"--forget: END, {times[1]}, is before START, {times[0]}. Swap them.")
    elif dry_run:
        raise WrongUsage("--dry-run has no effect without --forget: the command then only lists.")
    pipeline, settings = load(reference)
    forgotten = 0
    with ledger_connection(settings, pipeline) as connection:
        registry, boundaries = Registry(connection), TimeBoundaries(connection)
        with transaction(connection):
            registry.check(pipeline)
            found = [] if times is None else boundaries.read(pipeline, between=times, limit=None)
        if found and times is not None and not dry_run:
            confirm(
                f"Forget {len(found)} time boundaries of {pipeline.name}? The next windows that use them ask Kafka, "
                f"which may answer with other offsets.",
                yes=yes,
            )
            with transaction(connection):
                registry.lock(pipeline)
                forgotten = boundaries.forget(pipeline, *times)
        if not dry_run:
            with transaction(connection):
                found = boundaries.read(pipeline, limit=limit)
    listed = found[:limit]
    if as_json:
        told = {"would_forget": len(found)} if dry_run else {"forgotten": forgotten}
        print_json({"pipeline": pipeline.name, **told, "boundaries": list(map(asdict, listed))})
        return
    if dry_run:
        out.print(f"{len(found)} time boundaries would be forgotten. Nothing was changed.")
    elif times is not None:
        out.print(f"Forgot {forgotten} time boundaries. The next windows that use them ask Kafka again.")
    out.print(render.build_boundaries_table(pipeline, listed))
