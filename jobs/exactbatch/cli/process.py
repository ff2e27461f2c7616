"""Commands that plan and process batches without Airflow: plan, run, replay and rejects."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, Yes, confirm, err, out, print_json
from exactbatch.cli.many_tables import plan_of_tables, run_tables
from exactbatch.cli.pipeline import Master, Reference, ledger_connection, load, load_any
from exactbatch.cli.progress import counting, following
from exactbatch.connect_url import address_of, is_connect
from exactbatch.errors import ConfigurationError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger
from exactbatch.operations.withdraw import withdraw_replay
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, parse_range, ranges_of_offsets, request_of
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import Settings
from exactbatch.tables import Tables

if TYPE_CHECKING:
    from exactbatch.batch.staging.engine import Engine

_LOCAL_MASTER = "local[*]"


def plan(reference: Reference, as_json: AsJson = False) -> None:
    """Show what the next run would process. Changes nothing."""
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        plan_of_tables(pipeline, settings, as_json=as_json)
        return
    with ledger_connection(settings, pipeline) as connection:
        planned, partitions = preview_advance(connection, KafkaBroker(settings.kafka), pipeline)
    if as_json:
        print_json({"pipeline": pipeline.name, **asdict(planned)})
    else:
        out.print(render.plan_table(pipeline, planned, partitions))


def run(reference: Reference, master: Master = _LOCAL_MASTER, as_json: AsJson = False) -> None:
    """Plan the next batch and process it, without Airflow. `exactbatch forward` sends its results."""
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        run_tables(pipeline, settings, master, as_json=as_json)
        return
    with ledger_connection(settings, pipeline) as connection:
        batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="cli")
        planned = None if batch_id is None else _planned(connection, batch_id)
    if planned is None:
        print_json({"batch_id": None}) if as_json else out.print("Nothing new.")
        return
    _process(pipeline, settings, *planned, master, as_json=as_json)


def replay(
    reference: Reference,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="TOPIC:PARTITION:FROM-UNTIL", help="Offsets, UNTIL not included; repeatable."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Start of a window of message timestamps, such as 2026-01-05T08:00Z; UTC unless it has an offset."
        ),
    ] = None,
    end: Annotated[str | None, typer.Option(help="End of the window; not included.")] = None,
    batch_ids: Annotated[
        list[int] | None, typer.Option("--batch", metavar="ID", help="A committed batch; repeatable.")
    ] = None,
    available_only: Annotated[
        bool,
        typer.Option(
            "--available-only", help="Replay the offsets that neither retention nor compact has removed."
        ),
    ] = False,
    withdraw: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="Withdraw a planned replay: it can no longer commit. Replays nothing."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the replay would do, and stop.")
    ] = False,
    yes: Yes = False,
    master: Master = _LOCAL_MASTER,
    as_json: AsJson = False,
) -> None:
    """Process ranges, a time window or batches again: retract their results and write new ones."""
    if withdraw is not None:
        if ranges or start or end or batch_ids or available_only or dry_run:
            raise ConfigurationError("expected --withdraw alone: it withdraws a replay, and plans none")
        _withdraw(reference, withdraw, as_json=as_json)
        return
    request = request_of(
        {
            "ranges": [asdict(parse_range(text)) for text in ranges or ()],
            "start": start,
            "end": end,
            "batch_ids": batch_ids,
            "available_only": available_only,
        }
    )
    if request is None:
        raise ConfigurationError(
            "expected --range, --start with --end, --batch, or --withdraw, found none of them"
        )
    pipeline, settings = load(reference)
    options = _Options(dry_run=dry_run, yes=yes, master=master, as_json=as_json)
    with ledger_connection(settings, pipeline) as connection:
        _replay(connection, pipeline, settings, request, options)


def rejects(
    reference: Reference,
    limit: Annotated[int, typer.Option(min=1, help="How many records to list.")] = 20,
    replay: Annotated[
        bool, typer.Option("--replay", help="Process the rejected offsets again, after a fix.")
    ] = False,
    available_only: Annotated[
        bool,
        typer.Option(
            "--available-only", help="Replay the offsets that neither retention nor compact has removed."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the replay would do, and stop.")
    ] = False,
    yes: Yes = False,
    master: Master = _LOCAL_MASTER,
    as_json: AsJson = False,
) -> None:
    """List rejected records and the reasons, or process them again."""
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        ledger = Ledger(connection)
        with transaction(connection):
            rejected = ledger.rejects(pipeline, limit=None if replay else limit)
            reasons = ledger.rejects_by_reason(pipeline, limit=limit)
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
                out.print(render.reasons_table(pipeline, reasons), render.rejects_table(rejected))
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
        options = _Options(dry_run=dry_run, yes=yes, master=master, as_json=as_json)
        _replay(connection, pipeline, settings, request, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The options that both commands that replay have."""

    dry_run: bool
    yes: bool
    master: str
    as_json: bool


def _withdraw(reference: str, batch_id: int, *, as_json: bool) -> None:
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        withdraw_replay(connection, pipeline, batch_id)
    if as_json:
        print_json({"pipeline": pipeline.name, "batch_id": batch_id, "status": "superseded"})
    else:
        out.print(f"Replay {batch_id} is withdrawn: it can no longer commit, and the earlier results stay.")


def _replay(
    connection: Connection, pipeline: Pipeline, settings: Settings, request: ReplayRequest, options: _Options
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
        if not options.yes:
            confirm("Retract these results and process the ranges again?")
        batch_id = freeze_replay(connection, broker, pipeline, request, origin="cli").batch_id
    if batch_id is not None:
        _process(pipeline, settings, *_planned(connection, batch_id), options.master, as_json=options.as_json)
    elif options.as_json:
        print_json({"batch_id": None})


def _planned(connection: Connection, batch_id: int) -> tuple[Batch, int]:
    """Return a batch, and how many offsets its ranges have."""
    with transaction(connection):
        ledger = Ledger(connection)
        return ledger.batch(batch_id), sum(map(len, ledger.ranges(batch_id)))


def _process(
    pipeline: Pipeline, settings: Settings, batch: Batch, offsets: int, master: str, *, as_json: bool
) -> None:
    """Process a planned batch with Spark, and print its report; `offsets` says how many it has."""
    # Imported here: Spark takes a long time to import, and no other command needs it.
    from exactbatch.batch.job import process_batch
    from exactbatch.operations.report import load_report

    shown = address_of(master) if is_connect(master) else master
    with (
        counting(f"Batch {batch.batch_id} with Spark on {shown}") as update,
        _engine(pipeline, master, offsets) as engine,
        following(batch, settings, update),
    ):
        process_batch(engine, pipeline, batch.batch_id, settings, batch.plan_id)
    broker = KafkaBroker(settings.kafka)
    report = load_report(settings.postgres, broker, pipeline, batch.batch_id, batch.plan_id)
    print_json(report.as_json()) if as_json else out.print(report.as_table())


@contextmanager
def _engine(pipeline: Pipeline, master: str, offsets: int) -> "Iterator[Engine]":
    """Start a Spark driver in this process, or use the Spark Connect server that `master` names. `offsets` says how
    many a batch has."""
    if is_connect(master):
        from exactbatch.batch.engines.connect_engine import ConnectEngine

        yield ConnectEngine(master)
        return
    from exactbatch.batch.engines.driver_engine import DriverEngine
    from exactbatch.batch.spark.session import spark_session

    with spark_session(pipeline, master=master, offsets=offsets) as spark:
        yield DriverEngine(spark)
