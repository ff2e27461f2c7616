"""`exactbatch status`, once or again and again."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, Terminal, out, print_json
from exactbatch.cli.many_tables import status_of_tables
from exactbatch.cli.pipeline import Reference, ledger_connection, load_any
from exactbatch.errors import ConfigurationError, RetryableError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.status import Status, load_status
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.tables import Tables


def status(
    reference: Reference,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Show it again and again until Ctrl-C; with --json, as one object on each line."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With --watch: the time between two queries.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the stored offset and the lag of each partition, and the newest batches."""
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        if watch:
            raise ConfigurationError(f"--watch is for one pipeline. Name it: {reference}.TABLE")
        status_of_tables(pipeline, settings, as_json=as_json)
        return
    if not watch:
        with ledger_connection(settings, pipeline) as connection:
            loaded = load_status(connection, KafkaBroker(settings.kafka), pipeline)
        print_json(loaded.as_json()) if as_json else out.print(_shown(loaded))
        return
    answers = _answers(settings, pipeline, every)
    if as_json:
        for answer in answers:
            told = {"error": str(answer)} if isinstance(answer, RetryableError) else answer.as_json()
            print_json(told, in_one_line=True)
    elif out.is_terminal:
        _redraw(answers, every)
    else:
        for answer in answers:
            out.print(_shown(answer))


def _answers(settings: Settings, pipeline: Pipeline, every: float) -> Iterator[Status | RetryableError]:
    """Yield the status every few seconds, over one connection to the ledger, and the errors that may go away.

    After an error, the next query connects again.
    """
    broker = KafkaBroker(settings.kafka)
    while True:
        try:
            with ledger_connection(settings, pipeline) as connection:
                while True:
                    yield load_status(connection, broker, pipeline)
                    time.sleep(every)
        except RetryableError as error:
            yield error
        time.sleep(every)


def _redraw(answers: Iterator[Status | RetryableError], every: float) -> None:
    """Show each answer in the place of the one before it; under an error, the last status stays."""
    # Not `out`, which leaves it to the terminal to break long lines: Live has to know how many there are.
    with Live(console=Terminal(highlight=False), auto_refresh=False) as live:
        last: RenderableType = ""
        for answer in answers:
            asked = f"{datetime.now(UTC):%H:%M:%S} UTC, every {every:g} s, until Ctrl-C"
            if isinstance(answer, RetryableError):
                shown = Group(last, _shown(answer), Text(asked, style="dim"))
            else:
                last = _shown(answer)
                shown = Group(last, Text(asked, style="dim"))
            live.update(shown, refresh=True)


def _shown(answer: Status | RetryableError) -> RenderableType:
    if isinstance(answer, RetryableError):
        return Text.assemble(("no answer, trying again: ", "red"), f"{type(answer).__name__}: {answer}")
    troubles = [Text.assemble(("! ", "yellow"), trouble) for trouble in answer.troubles]
    forwarding = [] if answer.forwarding is None else [Text(f"forward: {answer.forwarding}")]
    return Group(render.status_table(answer), render.batches_table(answer), *forwarding, *troubles)
