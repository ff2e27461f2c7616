"""`exactbatch replay`."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.text import Text

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import (
    LOCAL_MASTER,
    Master,
    Reference,
    find_planned,
    ledger_connection,
    load,
)
from exactbatch.cli.typed_values import AvailableOnly, typed
from exactbatch.errors import WrongUsage
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.withdraw import preview_withdrawal, withdraw_replay
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, parse_range, parse_request
from exactbatch.postgres.connection import Connection
from exactbatch.settings import Settings


def replay(
    reference: Reference,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="TOPIC:PARTITION:FROM-UNTIL", help="Offsets, UNTIL not included. Repeatable."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Start of a window of Kafka timestamps, such as 2026-01-05T08:00Z; UTC unless it says otherwise.",
        ),
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="End of the window, not included.")] = None,
    batch_ids: Annotated[
        list[int] | None, typer.Option("--batch", metavar="ID", help="A committed batch. Repeatable.")
    ] = None,
    available_only: AvailableOnly = False,
    withdraw: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="Withdraw a planned replay, so that it can no longer commit. Replays nothing."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    master: Master = LOCAL_MASTER,
    as_json: AsJson = False,
) -> None:
    """Process ranges, a time window or batches again: retract their results and write new ones."""
    options = ReplayOptions(dry_run=dry_run, yes=yes, master=master, as_json=as_json)
    if withdraw is not None:
        if ranges or start or end or batch_ids or available_only:
            raise WrongUsage("expected --withdraw alone: it withdraws a replay, and plans none")
        _withdraw(reference, withdraw, options)
        return
    with typed():
        request = parse_request(
            {
                "ranges": [asdict(parse_range(text)) for text in ranges or ()],
                "start": start,
                "end": end,
                "batch_ids": batch_ids,
                "available_only": available_only,
            }
        )
    if request is None:
        raise WrongUsage("expected --range, --start with --end, --batch, or --withdraw, found none of them")
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        replay_ranges(connection, pipeline, settings, request, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options that both commands that replay have."""

    dry_run: bool
    yes: bool
    master: str
    as_json: bool


def _withdraw(reference: str, batch_id: int, options: ReplayOptions) -> None:
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        planned = preview_withdrawal(connection, pipeline, batch_id)
        if not options.dry_run:
            confirm(
                f"Withdraw replay {batch_id} of {pipeline.name}, planned at {planned.planned_at:%Y-%m-%d %H:%M:%S} "
                f"UTC? It can then never commit.",
                yes=options.yes,
            )
            withdraw_replay(connection, pipeline, batch_id)
    if options.as_json:
        status = planned.status if options.dry_run else "superseded"
        print_json({"pipeline": pipeline.name, "batch_id": batch_id, "status": status})
    elif options.dry_run:
        out.print(f"Replay {batch_id} would be withdrawn. Nothing was changed.")
    else:
        out.print(f"Replay {batch_id} is withdrawn: it can no longer commit, and the earlier results stay.")


def replay_ranges(
    connection: Connection,
    pipeline: Pipeline,
    settings: Settings,
    request: ReplayRequest,
    options: ReplayOptions,
) -> None:
    """Show what a replay would do, ask for confirmation, and process it."""
    broker = KafkaBroker(settings.kafka)
    preview = preview_replay(connection, broker, pipeline, request)
    if options.dry_run and options.as_json:
        found = asdict(preview)
        # taken_back is the name that versions up to 0.5 gave it.
        print_json({"pipeline": pipeline.name, **found, "taken_back": found["retracted"]})
    elif not options.as_json:
        out.print(render.replay_table(pipeline, preview))
        for note in render.replay_notes(preview):
            out.print(Text.assemble(("! ", "yellow"), note))
    if options.dry_run:
        return
    batch_id = None
    if not preview.plan.is_empty:
        offsets = sum(map(len, preview.plan.ranges))
        confirm(f"Process {offsets} offsets again, and replace their results?", yes=options.yes)
        batch_id = freeze_replay(connection, broker, pipeline, request, origin="cli").batch_id
    if batch_id is not None:
        # It imports Spark, which takes long, and is needed only for a batch.
        from exactbatch.cli.processing import process_planned

        process_planned(
            pipeline, settings, find_planned(connection, batch_id), options.master, as_json=options.as_json
        )
    elif options.as_json:
        print_json({"batch_id": None})
