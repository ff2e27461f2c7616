"""`exactbatch prune`."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import counting, waiting
from exactbatch.cli.typed_values import Keep, parse_cutoff
from exactbatch.operations.prune import preview_pruning, prune_history


def prune(
    reference: Reference,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Batches committed before this time, and superseded ones planned before it.",
        ),
    ] = None,
    keep: Keep = None,
    everything: Annotated[bool, typer.Option("--all", help="All committed and superseded batches.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Fold old batches in the ledger: it still knows that their offsets are processed, but no longer by which batch."""
    until = parse_cutoff(before, keep, everything=everything) or datetime.now(UTC)
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        with waiting("Counting batches"):
            pruning = preview_pruning(connection, pipeline, before=until)
        if not as_json:
            for line in render.pruning_lines(pipeline, pruning):
                out.print(escape(line))
        if not dry_run and (pruning.batches or pruning.empty_runs):
            what = render.describe_batches(pruning) if pruning.batches else render.describe_runs(pruning)
            confirm(f"{'Fold' if pruning.batches else 'Forget'} {what}? This cannot be undone.", yes=yes)
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
