"""`exactbatch audit`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from exactbatch.audit.run_audit import audit as audit_target
from exactbatch.batch.engines.connect_url import is_connect
from exactbatch.cli import render
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load_any
from exactbatch.cli.progress import counting
from exactbatch.errors import ExactbatchError, WrongUsage
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import find_members
from exactbatch.settings import Settings
from exactbatch.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audit(
    reference: Reference,
    values: Annotated[
        bool,
        typer.Option("--values", help="Also compare the values of columns. Takes several times as long."),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(help="Spark master whose executors compare. Without it, this process does."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the log again and compare it with the target, offset by offset. Exit status 3 if they differ."""
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        if master is not None:
            raise WrongUsage(f"--master is for one pipeline. Name it: {reference}.TABLE")
        _audit_tables(pipeline, settings, values=values, as_json=as_json)
        return
    if master is not None and is_connect(master):
        raise WrongUsage(
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
        out.print(*render.audit_tables(pipeline, report))
        out.print(render.verdict(report))
    if not report.is_exact:
        raise typer.Exit(CHECK_FAILED)


@contextmanager
def _spark(pipeline: Pipeline, master: str | None) -> "Iterator[SparkSession | None]":
    """Start Spark with this master; None without one."""
    if master is None:
        yield None
        return
    # Spark takes long to import, and is needed only with a master.
    from exactbatch.batch.spark.spark_session import spark_session
    from exactbatch.batch.spark.waiting_jobs import launch_timeout

    where = f"audit of pipeline {pipeline.name!r}"
    with (
        spark_session(pipeline, master=master) as spark,
        launch_timeout(spark, pipeline.tuning.launch_seconds, where),
    ):
        yield spark


def _audit_tables(tables: Tables, settings: Settings, *, values: bool, as_json: bool) -> None:
    """Audit each member; exit with 3 if one of them is not exact or cannot be audited."""
    with ledger_connection(settings) as connection:
        members, unmade = find_members(connection, KafkaBroker(settings.kafka), tables)
    found: list[dict[str, Any]] = []
    lines: list[RenderableType] = []

    def note(name: str, error: ExactbatchError) -> None:
        text = f"{type(error).__name__}: {error}"
        found.append({"pipeline": name, "exact": False, "error": text})
        lines.append(Text.assemble((f"{name}: not audited: ", "bold red"), text))

    for name, unmade_because in unmade.items():
        note(name, unmade_because)
    for member in members:
        try:
            with translate_all_errors():
                report = audit_target(member, settings, values=values)
        except ExactbatchError as error:
            note(member.name, error)
        else:
            found.append({"pipeline": member.name, "exact": report.is_exact, **asdict(report)})
            lines.append(Text.assemble(f"{member.name}: ", render.verdict(report)))
    exact = sum(each["exact"] for each in found)
    if as_json:
        print_json({"tables": tables.name, "exact": exact == len(found), "members": found})
    else:
        out.print(Group(*lines, f"{exact} of {len(found)} tables are exact."))
    if exact < len(found):
        raise typer.Exit(CHECK_FAILED)
