"""`exactbatch forward`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import counting
from exactbatch.forwarding.forward import find_stream, forward_results


def forward(
    reference: Reference,
    accept_repeats: Annotated[
        bool,
        typer.Option(
            "--accept-repeats",
            help="Send all waiting results, even if the topic may have some of them already. Asks first.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send the results that batches have committed to the pipeline's topic."""
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        stream, _ = find_stream(connection, pipeline)
        if dry_run:
            if as_json:
                print_json({"pipeline": pipeline.name, "topic": stream.topic, "would_send": stream.unsent})
            else:
                repeats = " It may have some of them already." if accept_repeats else ""
                out.print(
                    f"{stream.unsent:,} results would be sent to the topic {stream.topic}.{repeats} Nothing was sent.",
                    markup=False,
                )
            return
        if accept_repeats and stream.unsent:
            confirm(
                f"Send {stream.unsent:,} results to the topic {stream.topic}, although it may have some of them "
                f"already?",
                yes=yes,
            )
        with counting(f"Results of {pipeline.name}") as update:
            forwarded = forward_results(
                connection, settings, pipeline, accept_repeats=accept_repeats, progress=update
            )
    if as_json:
        print_json({"pipeline": pipeline.name, **asdict(forwarded)})
    else:
        out.print(f"{forwarded}.")
