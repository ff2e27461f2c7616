"""`exactbatch local`: the stack on the command line."""

import functools
import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from exactbatch.errors import ExactbatchError
from exactbatch.local.jars import fetch_jars
from exactbatch.local.java import find_java, java_version
from exactbatch.local.stack import LocalStack, ServerStatus

NOT_ALL_UP = 3

app = typer.Typer(
    no_args_is_help=True, help="Real Kafka and Postgres on this machine, below the folder .local."
)
# Results go to stdout; progress and errors to stderr, so that --json can be piped.
out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

P = ParamSpec("P")
R = TypeVar("R")

Name = Annotated[str, typer.Option("--name", help="The stack's name; several can be up at once.")]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Where stacks live: $EXACTBATCH_HOME, else .local here.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn an ExactbatchError into one line on stderr and exit status 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ExactbatchError as error:
            err.print(f"error: {error}", markup=False)
            raise typer.Exit(1) from error

    return run


@app.command()
@one_line_errors
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
) -> None:
    """Start Kafka and Postgres; data of last time are there again."""
    with err.status("starting") as status:
        stack = LocalStack(home, name, progress=_shown_in(status))
        started = stack.up(kafka_port=kafka_port, postgres_port=postgres_port)
    if as_json:
        _print_json(_described(stack))
        return
    out.print(f'The stack "{name}" {"is up" if started else "was up already"}.\n', markup=False)
    out.print(f"Kafka     {stack.bootstrap_servers}")
    out.print(f"Postgres  {stack.postgres_dsn}\n", markup=False)
    for variable, value in stack.environment.items():
        out.print(f"export {variable}={shlex.quote(value)}", markup=False)


@app.command()
@one_line_errors
def down(
    name: Name = "dev",
    home: Home = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the data and logs too.")] = False,
) -> None:
    """Stop what `up` started, and nothing else. Data stay, unless --delete."""
    with err.status("stopping") as status:
        stopped = LocalStack(home, name, progress=_shown_in(status)).down(delete=delete)
    done = "is down and its data are removed" if delete else "is down"
    out.print(f'The stack "{name}" {done if stopped else "was down already"}.', markup=False)


@app.command()
@one_line_errors
def status(name: Name = "dev", home: Home = None, as_json: AsJson = False) -> None:
    """Say which servers are up. Exit status 0 when all are, 3 when not."""
    stack = LocalStack(home, name)
    servers = stack.status()
    if as_json:
        _print_json(_described(stack, servers))
    else:
        out.print(_table(servers))
        out.print(f"\nData and logs are in {stack.folder}", markup=False)
    if not all(server.up for server in servers):
        raise typer.Exit(NOT_ALL_UP)


@app.command()
@one_line_errors
def jars(home: Home = None) -> None:
    """Fetch the jars of the broker, once."""
    with err.status("fetching the jars of Kafka (45 MB)") as status:
        stack = LocalStack(home, progress=_shown_in(status))
        folder = fetch_jars("kafka", stack.jars_dir, _shown_in(status))
    out.print(f"jars of Kafka in {folder}", markup=False)


@app.command()
@one_line_errors
def java() -> None:
    """Say which Java is used, or what to do when there is none."""
    found = find_java()
    out.print(f"Java {java_version(found)} at {found}", markup=False)


def _shown_in(status: Status) -> Callable[[str], None]:
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


def _print_json(value: dict[str, Any]) -> None:
    out.print(json.dumps(value, indent=2), markup=False)
