"""Commands that show what Kafka, the ledger and the target hold: boundaries and audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.many_tables import audit_tables
from exactbatch.cli.pipeline import Reference, ledger_connection, load, load_any
from exactbatch.cli.progress import counting
from exactbatch.connect_url import is_connect
from exactbatch.errors import ConfigurationError
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.ledger import Ledger
from exactbatch.pipeline import Pipeline
from exactbatch.planning.request import parse_time
from exactbatch.postgres.connection import transaction
from exactbatch.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def boundaries(
    reference: Reference,
    limit: Annotated[int, typer.Option(min=1, help="How many times to list, the latest first.")] = 100,
    forget: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FROM TO", help="Forget the times from FROM to TO, both included."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets that the times of windows and backfills were resolved to, or forget some of them."""
    times = None if forget is None else (parse_time(forget[0], "FROM"), parse_time(forget[1], "TO"))
    if times is not None and times[0] > times[1]:
        raise ConfigurationError(f"--forget: FROM is {times[0]}, and TO is earlier, {times[1]}. Swap them.")
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection, transaction(connection):
        ledger, forgotten = Ledger(connection), 0
        if times is None:
            ledger.check_registered(pipeline)
        else:
            ledger.lock(pipeline)
            forgotten = ledger.forget_time_boundaries(pipeline, *times)
        resolved = ledger.time_boundaries(pipeline, limit=limit)
    if as_json:
        print_json(
            {"pipeline": pipeline.name, "forgotten": forgotten, "boundaries": list(map(asdict, resolved))}
        )
        return
    if forget is not None:
        out.print(f"Forgot {forgotten} times. The next windows that use them ask Kafka again.")
    out.print(render.boundaries_table(pipeline, resolved))


def audit(
    reference: Reference,
    values: Annotated[
        bool, typer.Option("--values", help="Compare column values, too. Takes several times as long.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(help="Spark master, whose executors compare. Without it, this process compares."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the log again and compare it with the target, offset by offset. Exit 3 if they differ."""
    # Imported here: the auditor loads pyarrow and a Postgres driver that no other command needs.
    from exactbatch.audit.audit import audit as audit_target

    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        if master is not None:
            raise ConfigurationError(f"--master is for one pipeline. Name it: {reference}.TABLE")
        audit_tables(pipeline, settings, values=values, as_json=as_json)
        return
    if master is not None and is_connect(master):
        raise ConfigurationError(
            "an audit cannot run on a Spark Connect server. Give a Spark master, or leave out --master."
        )
    with _spark(pipeline, master) as spark, counting("Comparing offsets") as update:
        report = audit_target(
            pipeline,
            settings,
            values=values,
            spark=spark,
            progress=update,
        )
    if as_json:
        print_json({"pipeline": pipeline.name, "exact": report.is_exact, **asdict(report)})
    else:
        out.print(render.audit_table(pipeline, report))
        out.print(render.verdict(report))
    if not report.is_exact:
        raise typer.Exit(CHECK_FAILED)


@contextmanager
def _spark(pipeline: Pipeline, master: str | None) -> "Iterator[SparkSession | None]":
    """Start Spark with this master; None without one."""
    if master is None:
        yield None
        return
    # Imported here: Spark takes a long time to import.
    from exactbatch.batch.spark.launch_timeout import launch_timeout
    from exactbatch.batch.spark.session import spark_session

    where = f"audit of pipeline {pipeline.name!r}"
    with (
        spark_session(pipeline, master=master) as spark,
        launch_timeout(spark, pipeline.launch_timeout, where),
    ):
        yield spark
