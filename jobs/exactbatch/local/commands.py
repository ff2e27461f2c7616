"""`exactbatch local`: the stack on the command line."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status
from rich.table import Table

from exactbatch.batch.engines.connect_server import TOKEN
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, err, out, print_json, with_exit_status
from exactbatch.cli.typer_app import App
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.airflow_client import AirflowClient
from exactbatch.local.commands_airflow import (
    described_airflow,
    open_browser,
    run_once,
    show_airflow,
    show_runs,
    start_airflow,
)
from exactbatch.local.java import fetch_jars, find_java, read_java_version
from exactbatch.local.postgres import executables
from exactbatch.local.stack import LocalStack, ServerStatus
from exactbatch.local.stack_error import LocalStackError
from exactbatch.local.topics import MAX_BYTES, create_topic
from exactbatch.local.topics import send as send_values

app = App(
    help="Run Kafka, Postgres, Spark Connect and Airflow on this machine, with their data in the folder .local.",
    add_completion=False,
)

Name = Annotated[str, typer.Option("--name", help="Name of the stack; several stacks can be up at once.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="Folder of all stacks: by default $EXACTBATCH_HOME, or else .local in the working directory.",
        show_default=False,
    ),
]


@app.command()
@with_exit_status
def up(
    name: Name = "dev",
    home: Home = None,
    as_json: AsJson = False,
    kafka_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Preferred port of Kafka.", show_default="9092")
    ] = None,
    postgres_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Preferred port of Postgres.", show_default="5432")
    ] = None,
    connect: Annotated[bool, typer.Option(help="Also start a Spark Connect server.")] = True,
    connect_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Preferred port of Spark Connect.", show_default="15002"),
    ] = None,
    airflow: Annotated[bool, typer.Option("--airflow", help="Also start Airflow.")] = False,
    dags: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of Airflow's DAG files.",
            exists=True,
            file_okay=False,
            show_default="dags",
        ),
    ] = None,
    airflow_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Preferred port of Airflow.", show_default="8080")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open Airflow in a browser.")] = False,
) -> None:
    """Start Kafka, Postgres and a Spark Connect server, and Airflow with --airflow.

    They run in the background until `down`, and keep the data of earlier starts. What runs already stays.
    """
    if not airflow and (dags or airflow_port or open_):
        raise LocalStackError("--dags, --airflow-port and --open are for Airflow. Add --airflow.")
    with err.status("starting") as status:
        progress = _shown_on(status)
        stack = LocalStack(home, name, progress=progress)
        started = stack.up(
            kafka_port=kafka_port, postgres_port=postgres_port, connect=connect, connect_port=connect_port
        )
        its_airflow = None
        if airflow:
            its_airflow, airflow_started = start_airflow(stack, dags, airflow_port, progress)
            started |= airflow_started
    if as_json:
        described = {} if its_airflow is None else {"airflow": described_airflow(its_airflow)}
        print_json(_described(stack) | described)
    else:
        _show(stack, its_airflow, started=started)
    if its_airflow is not None and open_:
        open_browser(its_airflow.url)


def _show(stack: LocalStack, airflow: LocalAirflow | None, *, started: bool) -> None:
    out.print(f'The stack "{stack.name}" {"is up" if started else "was up already"}.\n', markup=False)
    out.print(f"Kafka     {stack.bootstrap_servers}", markup=False)
    out.print(f"Postgres  {stack.postgres_dsn}", markup=False)
    if stack.connect.pid is not None:
        out.print(f"Connect   sc://{stack.connect.address}", markup=False)
    is_found = stack.folder == LocalStack().folder
    found = (
        "In this folder, exactbatch finds these servers. For other programs:" if is_found else "Environment:"
    )
    out.print(f"\n{found}\n", markup=False)
    token = {TOKEN: stack.connect.token} if stack.connect.pid is not None else {}
    for variable, value in {**stack.environment, **token}.items():
        out.print(f"export {variable}={shlex.quote(value)}", markup=False)
    if airflow is not None:
        show_airflow(airflow)


@app.command()
@with_exit_status
def down(
    name: Name = "dev",
    home: Home = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete their data and logs. Asks first.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop the servers that `up` started. Their data is kept, unless you give --delete."""
    stack = LocalStack(home, name)
    exists = stack.folder.exists()
    if dry_run:
        running = [each.name for each in stack.servers if each.pid is not None] if exists else []
        if as_json:
            print_json({"name": name, "would_stop": running, "would_delete": delete and exists})
            return
        out.print(f"Would stop: {', '.join(running) or 'nothing'}.", markup=False)
        if delete and exists:
            out.print(f"Would delete {stack.folder}.", markup=False)
        return
    if delete and exists:
        confirm(f"Delete {stack.folder}, with all data of Kafka, Postgres and Airflow in it?", yes=yes)
    with err.status("stopping") as status:
        stopped = LocalStack(home, name, progress=_shown_on(status)).down(delete=delete)
    if as_json:
        print_json({"name": name, "stopped": stopped, "deleted": delete})
        return
    done = "is down, and its data is removed" if delete else "is down"
    out.print(f'The stack "{name}" {done if stopped else "was down already"}.', markup=False)


@app.command()
@with_exit_status
def status(name: Name = "dev", home: Home = None, as_json: AsJson = False) -> None:
    """Show which servers are up. Exit status 0 if all of them are, 3 if not."""
    stack = LocalStack(home, name)
    servers = stack.status()
    if as_json:
        print_json(_described(stack, servers))
    else:
        out.print(_table(servers))
        if stack.api_server.was_started:
            login = AirflowClient(stack.api_server)
            out.print(f"\nAirflow's user is {login.user}, with the password {login.password}.", markup=False)
        out.print(f"\nData and logs are in {stack.folder}.", markup=False)
    if not all(server.up for server in servers):
        raise typer.Exit(CHECK_FAILED)


@app.command()
@with_exit_status
def trigger(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The DAG's ID, which is the pipeline's name.")],
    name: Name = "dev",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Switch a DAG of the local Airflow on, start a run, and wait for it. Exit status 3 unless it succeeds."""
    stack = LocalStack(home, name)
    if not stack.api_server.is_up():
        raise LocalStackError("Airflow is not up. Run `exactbatch local up --airflow`.")
    with err.status("waiting") as status:
        its_airflow = AirflowClient(stack.api_server)
        runs = run_once(its_airflow, dag, _shown_on(status))
    if as_json:
        print_json([asdict(run) for run in runs])
    else:
        show_runs(its_airflow, dag, runs)
    if any(run.state != "success" for run in runs):
        raise typer.Exit(CHECK_FAILED)


@app.command()
@with_exit_status
def send(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic, which is created if it does not exist.")
    ],
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file whose lines are the values; - reads standard input."),
    ],
    name: Name = "dev",
    home: Home = None,
    partitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of partitions of a new topic.")
    ] = 4,
    as_json: AsJson = False,
) -> None:
    """Send each line of a file to a topic of the local Kafka, as a record without a key."""
    stack = LocalStack(home, name)
    if not stack.broker.is_up():
        raise LocalStackError("Kafka is not up. Run `exactbatch local up`.")
    values = _lines(file)
    partitions = create_topic(stack.kafka_properties, topic, partitions)
    send_values(stack.kafka_properties, topic, values, partitions)
    if as_json:
        print_json({"topic": topic, "records": len(values)})
    else:
        out.print(f"Sent {len(values):,} records to the topic {topic}.", markup=False)


@app.command(context_settings={"ignore_unknown_options": True})
@with_exit_status
def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="PSQL_OPTION", help="Options of psql.")
    ] = None,
    name: Name = "dev",
    home: Home = None,
) -> None:
    """Open psql on the database of the stack, or run one statement: exactbatch local psql -c "select 1"."""
    executable = executables() / "psql"
    os.execv(executable, [str(executable), LocalStack(home, name).postgres_dsn, *(arguments or ())])


@app.command()
@with_exit_status
def jars(home: Home = None, as_json: AsJson = False) -> None:
    """Download the broker's jars, unless they are there already."""
    with err.status("downloading the jars of Kafka (45 MB)") as status:
        stack = LocalStack(home, progress=_shown_on(status))
        folder = fetch_jars("kafka", stack.jars_dir, _shown_on(status))
    if as_json:
        print_json({"folder": folder})
    else:
        out.print(f"The jars of Kafka are in {folder}.", markup=False)


@app.command()
@with_exit_status
def java(as_json: AsJson = False) -> None:
    """Show which Java is used, or how to install one."""
    executable = find_java()
    if as_json:
        print_json({"executable": executable, "version": read_java_version(executable)})
    else:
        out.print(f"Java {read_java_version(executable)} at {executable}", markup=False)


def _lines(file: Path) -> list[bytes]:
    """Return the lines of a file, or of standard input, that are not empty.

    Raises LocalStackError, also for a line that is too long for a record.
    """
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise LocalStackError(f"{file} cannot be read: {error.strerror}. Nothing was sent.") from error
    lines = [each.removesuffix(b"\r") for each in text.split(b"\n")]
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_BYTES:
            raise LocalStackError(
                f"line {number:,} of {file} has {len(line):,} bytes, and a record may have {MAX_BYTES:,}. Nothing was "
                f"sent. Shorten the line, or leave it out."
            )
    return [line for line in lines if line]


def _shown_on(status: Status) -> Callable[[str], None]:
    def show(step: str) -> None:
        if err.is_terminal:
            status.update(step)
        else:
            err.print(f"· {step}", markup=False)

    return show


def _table(servers: list[ServerStatus]) -> Table:
    table = Table("server", "state", "pid", "address", box=None, pad_edge=False, header_style="dim")
    for server in servers:
        state = (
            "[green]up[/]" if server.up else "[red]down[/]" if server.pid is None else "[yellow]no answer[/]"
        )
        table.add_row(server.title, state, str(server.pid or "-"), server.address or "-")
    return table


def _described(stack: LocalStack, servers: list[ServerStatus] | None = None) -> dict[str, Any]:
    servers = stack.status() if servers is None else servers
    known = bool(stack.broker.ports and stack.postgres.ports)
    return {
        "name": stack.name,
        "folder": str(stack.folder),
        "kafka_properties": stack.kafka_properties if known else None,
        "postgres_dsn": stack.postgres_dsn if known else None,
        "servers": [asdict(server) | {"log_file": str(server.log_file)} for server in servers],
    }
