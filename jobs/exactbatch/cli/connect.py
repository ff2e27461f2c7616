"""`exactbatch connect`: a long-lived Spark Connect server, for engine="connect"."""

import os
from typing import Annotated

import typer

from exactbatch.batch.engines.connect_server import (
    PORT,
    TOKEN,
    build_server_command,
    build_server_environment,
)
from exactbatch.cli.console import err
from exactbatch.errors import WrongUsage


def connect(
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = PORT,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A Spark property. Repeatable.")
    ] = None,
) -> None:
    """Run a Spark Connect server for batches with engine="connect", until it is stopped.

    Clients need the token in SPARK_CONNECT_AUTHENTICATE_TOKEN, if it is set here.
    """
    properties = dict(_property(text) for text in conf or ())
    if TOKEN not in os.environ:
        err.print(f"[yellow]![/] {TOKEN} is not set: every client that reaches the port can run code")
    command = build_server_command(master, host, port, properties)
    os.execvpe(command[0], command, build_server_environment())


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WrongUsage(f"expected --conf NAME=VALUE, found {text}")
    return name, value
