"""The command line: exactbatch init, plan, run, replay, rejects, boundaries, compact, status, audit and local."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from exactbatch.cli import render as tables
from exactbatch.discovery import load_pipeline
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.exit_status import DIFFERS, exit_status
from exactbatch.errors.translation import all_errors_own
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client import check_properties
from exactbatch.ledger import Batch, Ledger, check_schema, migrate
from exactbatch.local.commands import app as local_app
from exactbatch.local.stack import LocalStack
from exactbatch.operations import compact as compaction
from exactbatch.operations.status import load_status
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance
from exactbatch.planning.freeze_replay import freeze_replay, missing_index, preview_replay
from exactbatch.planning.request import (
    ReplayRequest,
    parse_age,
    parse_range,
    parse_time,
    ranges_of_offsets,
    request_of,
)
from exactbatch.postgres.connection import Connection, connect, transaction
from exactbatch.settings import KAFKA, POSTGRES, Settings

P = ParamSpec("P")

app = typer.Typer(
    help="Exactly-once batches from Kafka to Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(local_app, name="local")

out, err = Console(), Console(stderr=True)

Reference = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="module:name, or NAME for pipelines.NAME:NAME")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _command(function: Callable[P, None]) -> Callable[P, None]:
    """Register a command: an error becomes one message and an exit status.

    A traceback is shown of an error that nobody has foreseen, and of no other.
    """

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        _let_any_terminal_print()
        try:
            with all_errors_own(but=(typer.Exit, typer.Abort)):
                function(*args, **kwargs)
        except ExactbatchError as error:
            err.print(Text.assemble(("error: ", "red"), f"{type(error).__name__}: {error}"))
            raise typer.Exit(exit_status(error)) from None

    return app.command()(guarded)


def _let_any_terminal_print() -> None:
    """Where an encoding lacks a character, an escape is shown: a command that has done its work does not fail
    over an arrow."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@_command
def init(
    reference: Reference,
    accept_identity: Annotated[
        bool,
        typer.Option(help="Accept another target, sink, key, version or lineage than the registered one."),
    ] = False,
    rename: Annotated[
        str | None,
        typer.Option(
            metavar="OLD", help="The name that the pipeline had before: it goes on where that stands."
        ),
    ] = None,
    share_topics: Annotated[
        bool,
        typer.Option("--share-topics", help="Load topics that another pipeline loads into the same target."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create or bring forward the ledger, and register a pipeline in it."""
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline, ledger=False) as connection:
        versions = migrate(connection)
        with transaction(connection):
            registered = Ledger(connection).register(
                pipeline, accept_identity=accept_identity, share_topics=share_topics, rename=rename
            )
        with transaction(connection) as cursor:
            index = missing_index(cursor, pipeline)
            is_there = all(table.exists(cursor) for table in pipeline.sink.tables)
    if as_json:
        _print_json({"pipeline": pipeline.name, "migrated_to": versions, "registered": registered})
        return
    for version in versions:
        out.print(f"The ledger is at version {version} now.")
    state = "registered now" if registered else "registered already"
    if registered and rename:
        state += f", and goes on where {rename} stood"
    out.print(f"Pipeline [bold]{pipeline.name}[/bold] → {escape(pipeline.sink.target)} is {escape(state)}.")
    if not is_there:
        created = " and ".join(table.written for table in pipeline.sink.tables)
        out.print(f"What is missing of {escape(created)} is created by the first batch, schema included.")
    if index is not None:
        out.print(escape(tables.index_note(index)), highlight=False, soft_wrap=True)


@_command
def plan(reference: Reference, as_json: AsJson = False) -> None:
    """Show what the next run would do. Changes nothing."""
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline) as connection:
        planned, log = preview_advance(connection, KafkaBroker(settings.kafka), pipeline)
    if as_json:
        _print_json({"pipeline": pipeline.name, **asdict(planned)})
    else:
        out.print(tables.plan_table(pipeline, planned, log))


@_command
def run(
    reference: Reference,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Plan the next batch and process it, without Airflow."""
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline) as connection:
        batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="cli")
        batch = None if batch_id is None else _batch(connection, batch_id)
    if batch is None:
        _print_json({"batch_id": None}) if as_json else out.print("Nothing new.")
        return
    _process(pipeline, settings, batch, master, as_json=as_json)


@_command
def replay(
    reference: Reference,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="TOPIC:PARTITION:FROM-UNTIL", help="Offsets, UNTIL not included; repeatable."
        ),
    ] = None,
    start: Annotated[str | None, typer.Option(help="Start of a window of message timestamps.")] = None,
    end: Annotated[str | None, typer.Option(help="End of the window; not included.")] = None,
    batch_ids: Annotated[
        list[int] | None, typer.Option("--batch", metavar="ID", help="A committed batch; repeatable.")
    ] = None,
    available_only: Annotated[
        bool, typer.Option("--available-only", help="Replay what retention and compact have left of it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Process ranges, a time window or batches again: take back what they gave and write it anew."""
    request = request_of(
        {
            "ranges": [asdict(parse_range(each)) for each in ranges or ()],
            "start": start,
            "end": end,
            "batch_ids": batch_ids,
            "available_only": available_only,
        }
    )
    if request is None:
        raise ConfigurationError("expected --range, --start with --end, or --batch, found none of them")
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline) as connection:
        _replay(
            connection, pipeline, settings, request, dry_run=dry_run, yes=yes, master=master, as_json=as_json
        )


@_command
def rejects(
    reference: Reference,
    most: Annotated[int, typer.Option("--limit", min=1, help="How many records to list.")] = 20,
    replay: Annotated[
        bool, typer.Option("--replay", help="Process exactly these offsets again, after a fix.")
    ] = False,
    available_only: Annotated[
        bool, typer.Option("--available-only", help="Replay what retention and compact have left of them.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a replay would do, and stop.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """List the records that were rejected and why, or process them again."""
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline) as connection:
        ledger = Ledger(connection)
        with transaction(connection):
            found = ledger.rejects(pipeline, most=None if replay else most)
            reasons = ledger.rejects_by_reason(pipeline, most=most)
        if not replay:
            if as_json:
                _print_json(
                    {
                        "records": reasons.records,
                        "all_reasons": reasons.reasons,
                        "reasons": list(map(asdict, reasons.shown)),
                        "rejects": list(map(asdict, found)),
                    }
                )
            else:
                out.print(tables.reasons_table(pipeline, reasons), tables.rejects_table(found))
            return
        if not found:
            _print_json({"batch_id": None}) if as_json else out.print("No rejected record.")
            return
        offsets = [(each.topic, each.partition, each.offset) for each in found]
        request = ReplayRequest(ranges=ranges_of_offsets(offsets), available_only=available_only)
        _replay(
            connection, pipeline, settings, request, dry_run=dry_run, yes=yes, master=master, as_json=as_json
        )


def _replay(
    connection: Connection,
    pipeline: Pipeline,
    settings: Settings,
    request: ReplayRequest,
    *,
    dry_run: bool,
    yes: bool,
    master: str,
    as_json: bool,
) -> None:
    """Show what a replay would do, ask on a terminal, and do it."""
    kafka = KafkaBroker(settings.kafka)
    preview = preview_replay(connection, kafka, pipeline, request)
    if dry_run and as_json:
        _print_json({"pipeline": pipeline.name, **asdict(preview)})
    elif not as_json:
        out.print(tables.replay_table(pipeline, preview))
        for each in tables.replay_notes(preview):
            out.print(Text.assemble(("! ", "yellow"), each))
    if dry_run:
        return
    batch_id = None
    if not preview.plan.is_empty:
        if not yes:
            _ask("Take back and process again?")
        batch_id = freeze_replay(connection, kafka, pipeline, request, origin="cli").batch_id
    if batch_id is not None:
        _process(pipeline, settings, _batch(connection, batch_id), master, as_json=as_json)
    elif as_json:
        _print_json({"batch_id": None})


def _ask(question: str) -> None:
    """Go on if a person at the terminal says so, or if there is none. What is asked is no output."""
    if sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise typer.Abort


def _batch(connection: Connection, batch_id: int) -> Batch:
    with transaction(connection):
        return Ledger(connection).batch(batch_id)


def _process(pipeline: Pipeline, settings: Settings, batch: Batch, master: str, *, as_json: bool) -> None:
    """Process a planned batch with Spark, and print its report."""
    # Imported when it is needed: Spark takes its time, and the other commands do without.
    from exactbatch.batch.job import process_batch
    from exactbatch.batch.session import spark_session
    from exactbatch.operations.report import load_report

    with (
        err.status(f"Processing batch {batch.batch_id} with Spark on {master} …"),
        spark_session(pipeline, master=master) as spark,
    ):
        process_batch(spark, pipeline, batch.batch_id, settings, batch.plan_id)
    report = load_report(
        settings.postgres, KafkaBroker(settings.kafka), pipeline, batch.batch_id, batch.plan_id
    )
    _print_json(report.as_json()) if as_json else out.print(report.as_table(), highlight=False)


@_command
def boundaries(
    reference: Reference,
    most: Annotated[
        int, typer.Option("--limit", min=1, help="How many times to list, the latest first.")
    ] = 100,
    forget: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FROM TO", help="Forget the times from FROM to TO, both included."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets that times of windows and backfills were resolved to, or forget some."""
    times = None if forget is None else (parse_time(forget[0], "FROM"), parse_time(forget[1], "TO"))
    if times is not None and times[0] > times[1]:
        raise ConfigurationError(
            f"--forget: FROM is {times[0]}, and TO is earlier, {times[1]}. Exchange them."
        )
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline) as connection, transaction(connection):
        ledger, forgotten = Ledger(connection), 0
        if times is None:
            ledger.check_registered(pipeline)
        else:
            ledger.lock(pipeline)
            forgotten = ledger.forget_boundaries(pipeline, *times)
        found = ledger.boundaries(pipeline, most=most)
    if as_json:
        _print_json(
            {"pipeline": pipeline.name, "forgotten": forgotten, "boundaries": list(map(asdict, found))}
        )
        return
    if forget is not None:
        out.print(f"Forgot {forgotten} times: the next windows with them ask Kafka again.")
    out.print(tables.boundaries_table(pipeline, found))


@_command
def compact(
    reference: Reference,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Up to the first change from this time or later.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="AGE", help="As --before, that long ago: 30d, 12h or 90m.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Up to the stored offsets.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop old changes of an Upsert, beside the latest of each key. They can no longer be replayed."""
    given = [name for name, value in (("--before", before), ("--keep", keep), ("--all", everything)) if value]
    if len(given) != 1:
        raise ConfigurationError(
            f"expected one of --before, --keep and --all, found {' and '.join(given) or 'none of them'}"
        )
    until = parse_time(before, "--before") if before else None
    if keep:
        until = datetime.now(UTC) - parse_age(keep)
    pipeline, settings = _load(reference)
    kafka = KafkaBroker(settings.kafka)
    with _connection(settings, pipeline) as connection:
        with err.status("Counting changes …"):
            found = compaction.preview_compaction(connection, kafka, pipeline, before=until)
        if not as_json:
            out.print(tables.compaction_table(pipeline, found))
        if not dry_run and found.dropped:
            if not yes:
                _ask("Drop these changes? What lies below the horizons cannot be replayed any more.")
            with err.status("Dropping changes …"):
                found = compaction.compact(connection, kafka, pipeline, before=until)
            if not as_json:
                out.print(f"Dropped {found.dropped} changes.")
        if as_json:
            _print_json({"pipeline": pipeline.name, "dropped": found.dropped, **asdict(found)})


@_command
def status(reference: Reference, as_json: AsJson = False) -> None:
    """Show where a pipeline stands in each partition, and its newest batches."""
    pipeline, settings = _load(reference)
    with _connection(settings, pipeline) as connection:
        found = load_status(connection, KafkaBroker(settings.kafka), pipeline)
    if as_json:
        _print_json(found.as_json())
    else:
        out.print(tables.status_table(found), tables.batches_table(found))
        for trouble in found.troubles:
            out.print(Text.assemble(("! ", "yellow"), trouble))


@_command
def audit(
    reference: Reference,
    values: Annotated[
        bool, typer.Option("--values", help="Compare what rows hold, too; takes several times as long.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read the log again and compare it with the target, offset by offset. Exit 1 when they differ."""
    from exactbatch.audit.audit import audit as compare

    pipeline, settings = _load(reference)
    columns = (TextColumn("Comparing offsets"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task("", total=None)
        results = compare(
            pipeline,
            settings,
            values=values,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    exact = all(each.is_exact for each in results)
    if as_json:
        partitions = [{**asdict(each), "exact": each.is_exact} for each in results]
        _print_json({"pipeline": pipeline.name, "exact": exact, "partitions": partitions})
    else:
        out.print(tables.audit_table(pipeline, results))
        out.print(tables.verdict(results))
    if not exact:
        raise typer.Exit(DIFFERS)


def _load(reference: str) -> tuple[Pipeline, Settings]:
    """The pipeline, and where Kafka and Postgres are: the environment, or else a running local stack."""
    pipeline = load_pipeline(reference if ":" in reference else f"pipelines.{reference}:{reference}")
    settings = _settings()
    check_properties(settings.kafka)
    return pipeline, settings


def _settings() -> Settings:
    if KAFKA not in os.environ and POSTGRES not in os.environ:
        stack = LocalStack()
        if all(server.up for server in stack.status()):
            err.print(
                "[dim]EXACTBATCH_KAFKA and EXACTBATCH_POSTGRES are not set: using the local stack[/dim]"
            )
            return Settings(kafka=stack.kafka_properties, postgres=stack.postgres_dsn)
    return Settings.from_environment()


@contextmanager
def _connection(settings: Settings, pipeline: Pipeline, *, ledger: bool = True) -> Iterator[Connection]:
    connection = connect(
        settings.postgres,
        application="exactbatch cli",
        timeout=pipeline.publish_timeout,
        statement_timeout=pipeline.statement_timeout,
    )
    try:
        if ledger:
            check_schema(connection)
        yield connection
    finally:
        connection.close()


def _print_json(value: Any) -> None:
    try:
        json.dump(value, sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it has enough, as `head`. Nothing may be written at the interpreter's end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
