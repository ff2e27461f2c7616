"""`exactbatch forward`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import counting
from exactbatch.forwarding.forward import forward_results
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings


def forward(
    reference: Reference,
    accept_repeats: Annotated[
        bool,
        typer.Option(
            "--accept-repeats",
            help="Send all results that wait, although the topic may have some of them already.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send the results that batches have committed to the pipeline's topic."""
    pipeline, settings = load(reference)
    send_results(pipeline, settings, accept_repeats=accept_repeats, as_json=as_json)


def send_results(
    pipeline: Pipeline, settings: Settings, *, accept_repeats: bool = False, as_json: bool = False
) -> None:
    """Send the results that wait, and say how many they were."""
    with (
        ledger_connection(settings, pipeline) as connection,
        counting(f"Results of {pipeline.name}") as update,
    ):
        forwarded = forward_results(
            connection, settings, pipeline, accept_repeats=accept_repeats, progress=update
        )
    if as_json:
        print_json({"pipeline": pipeline.name, **asdict(forwarded)})
    else:
        out.print(f"{forwarded}.")
