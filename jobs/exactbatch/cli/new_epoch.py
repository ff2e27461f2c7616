"""`exactbatch new-epoch`."""

from typing import Annotated

import typer

from exactbatch.cli.console import AsJson, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.errors import ConfigurationError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.new_epoch import begin_epoch
from exactbatch.planning.request import parse_place, parse_time


def new_epoch(
    reference: Reference,
    starts: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="TOPIC:PARTITION:OFFSET",
            help="The first record of the new epoch in a partition. May be repeated.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The new epoch begins with the first record from this time or later."
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Begin a new epoch: the positions of the source went back, and its changes from now on are the newer ones."""
    if bool(starts) == bool(at):
        raise ConfigurationError(f"expected either --from or --at, found {'both' if at else 'neither'}")
    places = [parse_place(text) for text in starts or ()]
    pipeline, settings = load(reference)
    if not yes:
        confirm("Count changes from there on as newer than all before? This cannot be undone.")
    with ledger_connection(settings, pipeline) as connection:
        begun = begin_epoch(
            connection,
            KafkaBroker(settings.kafka),
            pipeline,
            starts={(place.topic, place.partition): place.from_offset for place in places} or None,
            at=parse_time(at, "--at") if at else None,
        )
    if as_json:
        shown = [
            {"topic": topic, "partition": partition, "from_offset": offset}
            for (topic, partition), offset in sorted(begun.items())
        ]
        print_json({"pipeline": pipeline.name, "begins": shown})
        return
    for (topic, partition), offset in sorted(begun.items()):
        out.print(f"{topic}[{partition}]: the new epoch begins at offset {offset}")
