"""`exactbatch new-epoch`."""

from typing import Annotated

import typer

from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.typed_values import typed
from exactbatch.errors import WrongUsage
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.new_epoch import begin_epoch, preview_epoch
from exactbatch.planning.request import parse_place, parse_time


def new_epoch(
    reference: Reference,
    places: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="TOPIC:PARTITION:OFFSET",
            help="The first record of the new epoch in a partition. Repeatable.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Begin in each partition with the first record with this or a later Kafka timestamp.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Begin a new epoch after the positions of the source went back: later changes then count as newer."""
    if bool(places) == bool(start):
        raise WrongUsage(f"expected either --from or --start, found {'both' if start else 'neither'}")
    with typed():
        firsts = [parse_place(text) for text in places or ()]
        at = parse_time(start, "--start") if start else None
    offsets = {(place.topic, place.partition): place.from_offset for place in firsts} or None
    pipeline, settings = load(reference)
    broker = KafkaBroker(settings.kafka)
    with ledger_connection(settings, pipeline) as connection:
        begun = preview_epoch(connection, broker, pipeline, starts=offsets, at=at)
        if not dry_run:
            where = ", ".join(
                f"{topic}[{partition}] from offset {offset}" for (topic, partition), offset in begun.items()
            )
            confirm(
                f"Count the changes of {where} on as newer than all before? This cannot be undone.", yes=yes
            )
            begun = begin_epoch(connection, broker, pipeline, starts=offsets, at=at)
    if as_json:
        shown = [
            {"topic": topic, "partition": partition, "from_offset": offset}
            for (topic, partition), offset in begun.items()
        ]
        print_json({"pipeline": pipeline.name, "would_begin" if dry_run else "begins": shown})
        return
    verb = "would begin" if dry_run else "begins"
    for (topic, partition), offset in begun.items():
        out.print(f"{topic}[{partition}]: the new epoch {verb} at offset {offset}", markup=False)
