"""`exactbatch compact`."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import waiting
from exactbatch.errors import ConfigurationError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.compact import compact_changes, preview_compaction
from exactbatch.planning.request import parse_time
from exactbatch.time_text import parse_duration


def compact(
    reference: Reference,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Up to the first change from this time or later.")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="AGE", help='As --before, this long ago, such as "30 days" or "12 hours".'),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Up to the stored offsets.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which changes would be dropped, and stop.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop old changes of an Upsert except the latest of each key. Dropped changes cannot be replayed."""
    given = [name for name, value in (("--before", before), ("--keep", keep), ("--all", everything)) if value]
    if len(given) != 1:
        raise ConfigurationError(
            f"expected one of --before, --keep and --all, found {' and '.join(given) or 'none of them'}"
        )
    until = parse_time(before, "--before") if before else None
    if keep:
        until = datetime.now(UTC) - parse_duration(keep, what="--keep")
    pipeline, settings = load(reference)
    broker = KafkaBroker(settings.kafka)
    with ledger_connection(settings, pipeline) as connection:
        with waiting("Counting changes"):
            compaction = preview_compaction(connection, broker, pipeline, before=until)
        if not as_json:
            out.print(render.compaction_table(pipeline, compaction))
        if not dry_run and compaction.dropped:
            if not yes:
                confirm("Drop these changes? Offsets below the horizons can no longer be replayed.")
            with waiting(f"Dropping {compaction.dropped} changes"):
                compaction = compact_changes(connection, broker, pipeline, before=until)
            if not as_json:
                out.print(f"Dropped {compaction.dropped} changes.")
        if as_json:
            print_json({"pipeline": pipeline.name, "dropped": compaction.dropped, **asdict(compaction)})
