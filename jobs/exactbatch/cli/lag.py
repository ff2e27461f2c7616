"""`exactbatch lag`."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from exactbatch.cli.completion import pipeline_names
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import find_registered_name, ledger_connection, load_settings, typed_names
from exactbatch.cli.table_layout import create_text_table, format_duration, format_partition
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.lag import PipelineLag, load_lag, seconds_since, seconds_until
from exactbatch.operations.unprocessed import overdue_text


def lag(
    references: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PIPELINE",
            autocompletion=pipeline_names,
            help="Names of registered pipelines, or MODULE:NAME. Without one: all registered pipelines.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far pipelines are behind: in offsets, in time, and until retention removes an unprocessed record."""
    names = [find_registered_name(reference) for reference in references or ()]
    settings = load_settings()
    with ledger_connection(settings) as connection, typed_names(references or ()):
        lags = load_lag(connection, KafkaBroker(settings.kafka), names)
    missing = [(each.pipeline, each.missing) for each in lags if each.missing is not None]
    if as_json:
        total = sum(each.lag for each in lags)
        print_json({"lag": total, "pipelines": [each.as_json() for each in lags]})
    else:
        for each in lags:
            if each.missing is None:
                _print(each)
        for pipeline, error in missing[1:]:  # the command ends with the first one
            out.print(Text.assemble(("! ", "yellow"), f"{pipeline}: {error}"))
        if not lags:
            out.print("No pipeline is registered.")
    for _, error in missing:
        raise error


def _print(lag: PipelineLag) -> None:
    out.print(_table(lag))
    if text := overdue_text(lag.freshness, lag.oldest, lag.at):
        out.print(Text.assemble(("! ", "yellow"), text))
    for partition in lag.partitions:
        if partition.contradiction is not None:
            out.print(Text.assemble(("! ", "yellow"), partition.contradiction))


def _table(lag: PipelineLag) -> Table:
    """Show the lag of each partition. The columns on transactions and retention appear only where they apply."""
    held_back = ("held back",) if any(partition.held_back for partition in lag.partitions) else ()
    removed = ("removed in",) if lag.removed_at is not None else ()
    behind = f", oldest record {format_duration(seconds_since(lag.oldest, lag.at))} ago" if lag.oldest else ""
    table = create_text_table(
        f"lag of {lag.pipeline}: {lag.lag} offsets{behind}",
        text=("partition",),
        numbers=("stored", "log end", "lag", *held_back, "behind", *removed),
    )
    for partition in lag.partitions:
        cells = [
            "–" if partition.stored is None else str(partition.stored.next_offset),
            str(partition.log.high_watermark),
            str(partition.lag),
            *(str(partition.held_back) for _ in held_back),
            format_duration(seconds_since(partition.oldest, lag.at)),
            *(format_duration(seconds_until(partition.removed_at, lag.at)) for _ in removed),
        ]
        table.add_row(format_partition(partition.log), *cells)
    return table
