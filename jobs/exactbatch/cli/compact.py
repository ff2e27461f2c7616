"""`exactbatch compact`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import waiting
from exactbatch.cli.typed_values import Keep, parse_cutoff
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.compact import compact_changes, preview_compaction


def compact(
    reference: Reference,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Changes before the first one with this or a later Kafka timestamp."
        ),
    ] = None,
    keep: Keep = None,
    everything: Annotated[bool, typer.Option("--all", help="All changes below the stored offsets.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop old changes of an Upsert, except the latest of each key. Dropped changes cannot be replayed."""
    until = parse_cutoff(before, keep, everything=everything)
    pipeline, settings = load(reference)
    broker = KafkaBroker(settings.kafka)
    with ledger_connection(settings, pipeline) as connection:
        with waiting("Counting changes"):
            compaction = preview_compaction(connection, broker, pipeline, before=until)
        if not as_json:
            out.print(render.build_compaction_table(pipeline, compaction))
        if not dry_run and compaction.dropped:
            confirm(
                f"Drop {compaction.dropped} changes? Offsets below the horizons can then no longer be replayed.",
                yes=yes,
            )
            with waiting(f"Dropping {compaction.dropped} changes"):
                compaction = compact_changes(connection, broker, pipeline, before=until)
            if not as_json:
                out.print(f"Dropped {compaction.dropped} changes.")
        if as_json:
            print_json({"pipeline": pipeline.name, "dropped": compaction.dropped, **asdict(compaction)})
