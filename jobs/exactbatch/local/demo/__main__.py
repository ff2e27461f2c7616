"""`make demo`: real flights through real Kafka, Airflow, Spark and Postgres. One driver is killed on purpose."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import typer

from exactbatch.audit.run_audit import audit
from exactbatch.cli import render
from exactbatch.cli.console import out, with_exit_status
from exactbatch.discovery import load_pipeline
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, ledger_session, migrate
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.child_process import wait_until
from exactbatch.local.demo.flights import COUNT, find_archive, flights
from exactbatch.local.stack import LocalStack
from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.topics import create_topic, send
from exactbatch.operations.report import load_report
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import Settings

_BURSTS: Final = (60_000, 120_000, 90_000, COUNT - 270_000)
_KILLED_BURST: Final = 1
_STAGED_WITHIN_S: Final = 180.0
_DAGS: Final = Path("dags")


def demo(
    exit_: Annotated[
        bool, typer.Option("--exit", help="Stop the servers at the end, instead of leaving Airflow up.")
    ] = False,
) -> None:
    """Run the demo. Exit 0 if every flight is in the target exactly once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop the servers then, too
    began = time.monotonic()
    find_archive()
    with out.status("starting") as status:
        stack = LocalStack(name="demo", progress=status.update)
        stack.down(delete=True)
        exact = _run(stack, status, began, leave_up=not exit_)
    if not exact:
        raise typer.Exit(CHECK_FAILED)


def _run(stack: LocalStack, status: Any, began: float, *, leave_up: bool) -> bool:
    pipeline = load_pipeline("pipelines.flights:flights")
    with _servers(stack, status) as airflow:
        settings = Settings(kafka=stack.kafka_properties, postgres=stack.postgres_dsn)
        _say(f"Kafka at {stack.bootstrap_servers}, Postgres at {stack.postgres.address}")
        _register(pipeline, settings)
        create_topic(settings.kafka, "flights")
        airflow.up()
        airflow.wait_for_dag(pipeline.name)
        _say(f"Airflow at {airflow.url}, user {airflow.user}, password {airflow.password}")
        values = list(flights())
        for number, size in enumerate(_BURSTS):
            burst, values = values[:size], values[size:]
            status.update(f"sending {size} flights")
            send(settings.kafka, "flights", burst)
            _say(f"\nburst {number + 1}: {size} flights sent")
            _process(airflow, pipeline, settings, status, kill=number == _KILLED_BURST)
        _nothing_new(airflow, pipeline, status)
        exact = _verdict(pipeline, settings, status)
        _say(f"total: {time.monotonic() - began:.0f} s")
        _say(
            "\nNext, a topic of your own:\n"
            "  [bold]source .venv/bin/activate[/bold]\n"
            "  [bold]exactbatch local up --airflow[/bold]  # starts servers that stay up, and says how to go on"
        )
        if leave_up:
            _leave_up(airflow, stack, status)
        return exact


@contextmanager
def _servers(stack: LocalStack, status: Any) -> Iterator[LocalAirflow]:
    """Start Kafka and Postgres, and yield an Airflow that is not started yet. Stop all of them at the end."""
    try:
        stack.up()
        airflow = LocalAirflow(stack, _DAGS.absolute(), progress=status.update)
        try:
            yield airflow
        finally:
            status.update("stopping")
            airflow.down()
    finally:
        stack.down()


def _register(pipeline: Pipeline, settings: Settings) -> None:
    with ledger_session(settings.postgres, "exactbatch demo") as connection:
        migrate(connection)
        with transaction(connection):
            Ledger(connection).registry.register(pipeline)


def _process(
    airflow: LocalAirflow, pipeline: Pipeline, settings: Settings, status: Any, *, kill: bool
) -> None:
    """Process the new flights in one DAG run, and print its batch."""
    run_id = airflow.trigger(pipeline.name)
    status.update(f"Airflow runs {run_id}")
    if kill:
        _kill_driver(settings, status)
        _say("[red]SIGKILL[/red] to the Spark driver in the middle of the batch; Airflow retries")
    airflow.wait_for_run(pipeline.name, run_id)
    with ledger_session(settings.postgres, "exactbatch demo") as connection, transaction(connection):
        newest = Ledger(connection).batches.read_page(pipeline.name, limit=1)[0]
    # The schedule may have been faster than the trigger, so read from the batch which run it belongs to.
    assert newest.run_id is not None
    state = airflow.wait_for_run(pipeline.name, newest.run_id)
    tries = airflow.task_states(pipeline.name, newest.run_id)["process_batch"][1]
    report = load_report(settings.postgres, KafkaBroker(settings.kafka), pipeline, newest.batch_id)
    _say(f"run {newest.run_id}: {state}, process_batch in {tries} {'try' if tries == 1 else 'tries'}")
    out.print(report.as_table(), markup=False)


def _kill_driver(settings: Settings, status: Any) -> None:
    """Wait until rows are being staged, then kill the driver: its Python process and its JVM."""
    status.update("waiting for the middle of the batch, to kill the driver")
    with ledger_session(settings.postgres, "exactbatch demo") as connection:
        connection.autocommit = True
        if not wait_until(
            lambda: _is_staging(connection) and _kill_drivers(), _STAGED_WITHIN_S, every_s=0.02
        ):
            raise LocalStackError(
                f"no batch was staged within {_STAGED_WITHIN_S:.0f} s, so no driver was killed"
            )


def _is_staging(connection: Connection) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "select 1 from pg_class where relnamespace = 'exactbatch_staging'::regnamespace "
            "and relname like '%%_rows' and pg_relation_size(oid) > 0"
        )
        return cursor.fetchone() is not None


def _kill_drivers() -> bool:
    """Kill the processes of the driver. Return False if there are none."""
    drivers = [process for process in psutil.process_iter(["cmdline"]) if _is_driver(process)]
    for driver in drivers:
        driver.kill()
    return bool(drivers)


def _is_driver(process: psutil.Process) -> bool:
    return any(Path(part).name == "process_batch.py" for part in process.info["cmdline"] or ())


def _nothing_new(airflow: LocalAirflow, pipeline: Pipeline, status: Any) -> None:
    run_id = airflow.trigger(pipeline.name)
    status.update("a run with nothing new")
    airflow.wait_for_run(pipeline.name, run_id)
    states = {task: state for task, (state, _) in airflow.task_states(pipeline.name, run_id).items()}
    _say(
        f"a run with nothing new: plan_batch {states['plan_batch']}, process_batch {states['process_batch']}\n"
    )


def _verdict(pipeline: Pipeline, settings: Settings, status: Any) -> bool:
    status.update("auditing: reading the log again and comparing it with the target")
    report = audit(pipeline, settings)
    with ledger_session(settings.postgres, "exactbatch demo") as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from public.flight")
        rows = cursor.fetchone()[0]
    out.print(*render.audit_tables(pipeline, report))
    out.print(render.verdict(report))
    _say(f"{COUNT} flights sent, {rows} rows in {pipeline.traits.target}")
    return rows == COUNT == report.records and report.is_exact


def _leave_up(airflow: LocalAirflow, stack: LocalStack, status: Any) -> None:
    _say(
        f"\nAirflow stays up until Ctrl-C: [bold]{airflow.url}[/bold], user [bold]{airflow.user}[/bold], "
        f"password [bold]{airflow.password}[/bold]\npsql '{stack.postgres_dsn}'"
    )
    status.update("press Ctrl-C to stop")
    try:
        signal.pause()
    except KeyboardInterrupt:
        return


def _say(text: str) -> None:
    out.print(text)


if __name__ == "__main__":
    typer.run(with_exit_status(demo))
