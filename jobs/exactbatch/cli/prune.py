"""`exactbatch prune`."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import counting, waiting
from exactbatch.errors import ConfigurationError
from exactbatch.operations.prune import preview_pruning, prune_history
from exactbatch.planning.request import parse_time
from exactbatch.time_text import parse_duration


def prune(
    reference: Reference,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Batches that committed before this time, and superseded ones that were planned before it.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="AGE", help='As --before, this long ago, such as "90 days" or "12 hours".'),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All committed and superseded batches.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how many batches would be folded, and stop.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Fold the ledger's history of old batches. Their offsets stay accounted for, without naming the batch."""
    given = [name for name, value in (("--before", before), ("--keep", keep), ("--all", everything)) if value]
    if len(given) != 1:
        raise ConfigurationError(
            f"expected one of --before, --keep and --all, found {' and '.join(given) or 'none of them'}"
        )
    until = parse_time(before, "--before") if before else datetime.now(UTC)
    if keep:
        until -= parse_duration(keep, what="--keep")
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        with waiting("Counting batches"):
            pruning = preview_pruning(connection, pipeline, before=until)
        if not as_json:
            for line in render.pruning_lines(pipeline, pruning):
                out.print(escape(line))
        if not dry_run and (pruning.batches or pruning.empty_runs):
            if not yes:
                confirm("Fold these batches?" if pruning.batches else "Forget these runs?")
            total = pruning.batches
            with counting("Folding batches") as update:
                pruning = prune_history(
                    connection,
                    pipeline,
                    before=until,
                    progress=lambda batches: update(batches, total),
                )
            if not as_json and pruning.batches:
                out.print(
                    f"Folded {render.describe_batches(pruning)}. Autovacuum frees the space of "
                    f"{render.describe_ranges(pruning)}."
                )
        if as_json:
            print_json({"pipeline": pipeline.name, **asdict(pruning)})
