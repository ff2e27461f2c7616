"""`exactbatch rejects`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, err, out, print_json
from exactbatch.cli.load_pipeline import LOCAL_MASTER, Master, Reference, ledger_connection, load
from exactbatch.cli.replay import ReplayOptions, replay_ranges
from exactbatch.cli.typed_values import AvailableOnly
from exactbatch.errors import WrongUsage
from exactbatch.ledger import Ledger
from exactbatch.planning.request import ReplayRequest, ranges_of_offsets
from exactbatch.postgres.connection import transaction


def rejects(
    reference: Reference,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many records to list.")] = 20,
    replay: Annotated[
        bool, typer.Option("--replay", help="Process the rejected offsets again, after a fix.")
    ] = False,
    available_only: AvailableOnly = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    master: Master = LOCAL_MASTER,
    as_json: AsJson = False,
) -> None:
    """List rejected records and the reasons, or process them again."""
    if (available_only or dry_run) and not replay:
        raise WrongUsage(
            "--available-only and --dry-run have no effect without --replay: the command then only lists."
        )
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        ledger = Ledger(connection)
        with transaction(connection):
            rejected = ledger.rejects.read(pipeline, limit=None if replay else limit)
            reasons = ledger.rejects.count_by_reason(pipeline, limit=limit)
        if not replay:
            if as_json:
                print_json(
                    {
                        "records": reasons.records,
                        "all_reasons": reasons.reasons,
                        "reasons": list(map(asdict, reasons.shown)),
                        "rejects": list(map(asdict, rejected)),
                    }
                )
            else:
                out.print(render.build_reasons_table(pipeline, reasons), render.build_rejects_table(rejected))
            return
        if not rejected:
            print_json({"batch_id": None}) if as_json else out.print("No rejected record.")
            return
        offsets = [
            (record.topic, record.partition, record.offset)
            for record in rejected
            if pipeline.loads(record.topic)
        ]
        if len(offsets) < len(rejected):
            err.print(
                f"{len(rejected) - len(offsets)} rejected records are left out: the pipeline no longer loads their "
                f"topics."
            )
        if not offsets:
            print_json({"batch_id": None}) if as_json else out.print(
                "No rejected record can be processed again."
            )
            return
        request = ReplayRequest(ranges=ranges_of_offsets(offsets), available_only=available_only)
        options = ReplayOptions(dry_run=dry_run, yes=yes, master=master, as_json=as_json)
        replay_ranges(connection, pipeline, settings, request, options)
