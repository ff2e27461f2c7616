"""`exactbatch local`: the stack on the command line."""

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status
from rich.table import Table

from exactbatch.cli.console import AsJson, err, out, print_json, with_exit_status
from exactbatch.connect_server import TOKEN
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.local.jars import fetch_jars
from exactbatch.local.java import find_java, java_version
from exactbatch.local.stack import LocalStack, ServerStatus

app = typer.Typer(
    help="Run Kafka, Postgres and Spark Connect on this machine, with their data in the folder .local.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Option("--name", help="Name of the stack; several stacks can be up at once.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
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
        int | None, typer.Option(help="Preferred port of Kafka.", show_default="9092")
    ] = None,
    postgres_port: Annotated[
        int | None, typer.Option(help="Preferred port of Postgres.", show_default="5432")
    ] = None,
    connect: Annotated[bool, typer.Option(help="Also start a Spark Connect server.")] = True,
    connect_port: Annotated[
        int | None, typer.Option(help="Preferred port of Spark Connect.", show_default="15002")
    ] = None,
) -> None:
    """Start Kafka, Postgres and a Spark Connect server. They keep the data of earlier starts."""
    with err.status("starting") as status:
        stack = LocalStack(home, name, progress=_shown_on(status))
        started = stack.up(
            kafka_port=kafka_port, postgres_port=postgres_port, connect=connect, connect_port=connect_port
        )
    if as_json:
        print_json(_described(stack))
        return
    out.print(f'The stack "{name}" {"is up" if started else "was up already"}.\n', markup=False)
    out.print(f"Kafka     {stack.bootstrap_servers}", markup=False)
    out.print(f"Postgres  {stack.postgres_dsn}", markup=False)
    if stack.connect.pid is not None:
        out.print(f"Connect   sc://{stack.connect.address}", markup=False)
    out.print()
    token = {TOKEN: stack.connect.token} if stack.connect.pid is not None else {}
    for variable, value in {**stack.environment, **token}.items():
        out.print(f"export {variable}={shlex.quote(value)}", markup=False)


@app.command()
@with_exit_status
def down(
    name: Name = "dev",
    home: Home = None,
    delete: Annotated[bool, typer.Option("--delete", help="Also remove data and logs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the servers that `up` started. Their data is kept, unless you give --delete."""
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
        out.print(f"\nData and logs are in {stack.folder}.", markup=False)
    if not all(server.up for server in servers):
        raise typer.Exit(CHECK_FAILED)


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
        print_json({"executable": executable, "version": java_version(executable)})
    else:
        out.print(f"Java {java_version(executable)} at {executable}", markup=False)


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
    known = all(server.address for server in servers)
    return {
        "name": stack.name,
        "folder": str(stack.folder),
        "kafka_properties": stack.kafka_properties if known else None,
        "postgres_dsn": stack.postgres_dsn if known else None,
        "servers": [asdict(server) | {"log_file": str(server.log_file)} for server in servers],
    }
