"""`make soak MINUTES=30 SEED=…`: real Kafka, Postgres and Spark under random faults, for as long as you like.

Exit status 0 only when, in the end, every record that was produced is accounted for exactly once.
"""

import os
import secrets
import threading
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from soak.run import Soak
from soak.summary import table
from support.environment import HOME
from support.faults.servers import Kind


def main(
    minutes: Annotated[float, typer.Option(help="how long faults come")] = 30,
    seed: Annotated[int | None, typer.Option(help="which faults come; a random one if none is given")] = None,
    rate: Annotated[int, typer.Option(help="records produced per second")] = 150,
    every: Annotated[float, typer.Option(help="seconds between two faults, on average")] = 10,
    servers: Annotated[
        Kind, typer.Option(help="what is asked of logins, and what servers lack")
    ] = Kind.PASSWORDS,
) -> None:
    """Run the soak and print what was seen."""
    console = Console()
    seed = secrets.randbits(32) if seed is None else seed
    console.print(
        f"seed {seed}, {minutes:g} minutes, a fault every {every:g} s on average, servers: {servers}",
        highlight=False,
    )
    soak = Soak(
        HOME, f"soak-{os.getpid()}", seed=seed, seconds=60 * minutes, rate=rate, every=every, kind=servers
    )
    runner = threading.Thread(target=soak.run, name="soak", daemon=True)
    runner.start()
    begun, told = time.monotonic(), 0.0
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while runner.is_alive():
            live.update(Text(_line(soak, time.monotonic() - begun)))
            runner.join(0.25)
            if not console.is_terminal and time.monotonic() - told > 30:
                told = time.monotonic()
                console.print(_line(soak, told - begun), highlight=False)
    console.print(table(soak.report))
    if soak.report.failure is None:
        console.print(f"[bold green]exact[/]: seed {seed}", highlight=False)
        return
    console.print(soak.report.failure, markup=False, highlight=False)
    console.print(
        f"[bold red]not exact[/]: seed {seed}. The ledger's data, what Kafka holds and all logs are in "
        f"{soak.report.folder}: `exactbatch local up --home {HOME} --name {soak.stack.name}` starts them.",
        highlight=False,
    )
    raise typer.Exit(1)


def _line(soak: Soak, seconds: float) -> str:
    work, account = soak.work, soak.report.account
    if work is None:
        return f"{seconds:4.0f} s  {soak.state}"
    return (
        f"{seconds:4.0f} s  {soak.state}: {len(account.committed):,} records, {work.committed:,} batches, "
        f"{work.faults.total()} faults, {soak.auditor.done if soak.auditor else 0} audits"
    )


if __name__ == "__main__":
    typer.run(main)
