"""`exactbatch status`, once or again and again."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from exactbatch.cli import render
from exactbatch.cli.completion import pipeline_names
from exactbatch.cli.console import AsJson, Terminal, out, print_json
from exactbatch.cli.load_pipeline import REFERENCE_HELP, ledger_connection, load_any, load_settings
from exactbatch.cli.table_layout import create_text_table, time_text
from exactbatch.errors import RetryableError, WrongUsage
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.operations.all_pipelines import load_states
from exactbatch.operations.status import PipelineStatus, TablesStatus, load_status, load_tables_status
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.tables import Tables


def status(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE",
            help=f"{REFERENCE_HELP} Without one: all registered pipelines.",
            autocompletion=pipeline_names,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Show it again and again until Ctrl-C; with --json, one object on each line."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With --watch: seconds between two queries.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the stored offset and lag of each partition, and the newest batches. Without a name, show one line for each
    pipeline.
    """
    if reference is None:
        if watch:
            raise WrongUsage("--watch is for one pipeline. Name it: exactbatch status PIPELINE --watch")
        _show_all(as_json=as_json)
        return
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        if watch:
            raise WrongUsage(f"--watch is for one pipeline. Name it: {reference}.TABLE")
        _show_tables(pipeline, settings, as_json=as_json)
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


def _answers(
    settings: Settings, pipeline: Pipeline, every: float
) -> Iterator[PipelineStatus | RetryableError]:
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


def _redraw(answers: Iterator[PipelineStatus | RetryableError], every: float) -> None:
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


def _shown(answer: PipelineStatus | RetryableError) -> RenderableType:
    if isinstance(answer, RetryableError):
        return Text.assemble(("no answer, trying again: ", "red"), f"{type(answer).__name__}: {answer}")
    troubles = [Text.assemble(("! ", "yellow"), trouble) for trouble in answer.troubles]
    forwarding = [] if answer.forwarding is None else [Text(f"forward: {answer.forwarding}")]
    return Group(
        render.build_status_table(answer), render.build_batches_table(answer), *forwarding, *troubles
    )


def _show_all(*, as_json: bool) -> None:
    """Show one line for each registered pipeline."""
    settings = load_settings()
    with ledger_connection(settings) as connection:
        states = load_states(connection, KafkaBroker(settings.kafka))
    if as_json:
        print_json({"pipelines": [each.as_json() for each in states]})
        return
    table = create_text_table(
        f"registered pipelines: {len(states)}",
        text=("pipeline", "state", "newest batch"),
        numbers=("partitions", "lag", "committed (UTC)"),
    )
    for each in states:
        newest, committed = each.summary.newest, each.summary.committed
        table.add_row(
            escape(each.summary.definition.name),
            each.state,
            f"{newest.batch_id} {newest.status}" if newest else "–",
            str(each.partitions),
            "–" if each.lag is None else str(each.lag.lag),
            time_text(committed.committed_at if committed else None),
        )
    troubles = [
        Text.assemble(("! ", "yellow"), f"{each.summary.definition.name}: {trouble}")
        for each in states
        for trouble in each.troubles
    ]
    out.print(Group(table, *troubles))


def _show_tables(tables: Tables, settings: Settings, *, as_json: bool) -> None:
    """Show one line for each member."""
    with ledger_connection(settings) as connection:
        status = load_tables_status(connection, KafkaBroker(settings.kafka), tables)
    print_json(status.as_json()) if as_json else out.print(_tables_shown(status))


def _tables_shown(status: TablesStatus) -> RenderableType:
    table = create_text_table(
        f"tables {status.tables.name}: lag {status.lag}",
        text=("pipeline", "newest batch"),
        numbers=("partitions", "lag", "committed (UTC)"),
    )
    for member in status.members:
        newest = f"{member.batches[0].batch_id} {member.batches[0].status}" if member.batches else "–"
        times = [each.committed_at for each in member.partitions if each.committed_at is not None]
        lag = sum(each.lag for each in member.partitions)
        table.add_row(
            escape(member.pipeline.name),
            newest,
            str(len(member.partitions)),
            str(lag),
            time_text(max(times, default=None)),
        )
    for name in status.new:
        table.add_row(escape(name), "joins at the next run", "–", "–", "–")
    troubles = [Text.assemble(("! ", "yellow"), trouble) for trouble in status.troubles]
    return Group(table, *troubles)
