"""Peak memory and seconds of exactbatch batches of different sizes: memory must not grow.

A batch is streamed through its executors, so memory depends on the size of what is in flight and not on
that of the batch. Prints the peaks of the driver's Python, of its JVM and of the Python workers, and writes
build/memory.json. Needs about 1 GB of disk below .local for each million records of the largest size.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import check
from rich.console import Console
from rich.table import Table
from runner import Measured, Runner, Servers, benchmark_servers, progress_on
from topics import drop_topic, ensure_topic
from ways import EXACTBATCH

from exactbatch.local.demo.flights import COUNT

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local"))
REPORT = ROOT / "build" / "memory.json"
SIZES = (6 * COUNT, 30 * COUNT)
KEPT = SIZES[0]  # the topic that `make bench` reads too
# Peaks differ by this much, as a factor, between runs over the same records.
NOISE = 1.15
KINDS = ("driver_python", "jvm", "python_workers")


def main() -> None:
    """Measure, print a table, and write build/memory.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES, help="records of each batch, ascending")
    sizes = parser.parse_args().rows
    console = Console()
    with progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        peaks = {rows: measure(servers, rows, progress) for rows in sizes}
    report = {str(rows): _numbers(peak) for rows, peak in peaks.items()}
    growth = round(peaks[sizes[-1]].peak_mb / peaks[sizes[0]].peak_mb, 2)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"batches": report, "growth": growth}, indent=2) + "\n")
    show(console, report)
    if growth > NOISE:
        raise SystemExit(
            f"expected the same peak for {sizes[0]:,} and {sizes[-1]:,} records, found {growth} times it"
        )


def measure(servers: Servers, rows: int, progress: Callable[[str], None]) -> Measured:
    """The peaks of one batch in a process of its own, from its first record: nothing is warmed up."""
    topic = f"flights_{rows}"
    try:
        ensure_topic(servers.stack.kafka_properties, topic, rows, progress)
        place = servers.place(topic, rows)
        progress(f"one batch of {rows:,} records")
        with Runner(EXACTBATCH, place) as runner:
            servers.prepare(place, EXACTBATCH)
            measured = runner.run(servers)
        check(servers, place, EXACTBATCH)
        servers.prepare(place, EXACTBATCH)  # its rows are not needed any more
        return measured
    finally:
        if rows != KEPT:
            progress(f"dropping the topic {topic}")
            drop_topic(servers.stack.kafka_properties, topic)


def _numbers(measured: Measured) -> dict[str, Any]:
    return {
        "seconds": round(measured.seconds, 1),
        "peak_mb": round(measured.peak_mb),
        **{kind: round(measured.peak_mb_by_kind.get(kind, 0)) for kind in KINDS},
    }


def show(console: Console, report: dict[str, Any]) -> None:
    """Peaks in MB."""
    table = Table(title="Peak memory of one batch, resident MB")
    table.add_column("records", justify="right")
    for heading in ("seconds", "all at one moment", "driver's Python", "JVM", "Python workers"):
        table.add_column(heading, justify="right")
    for rows, numbers in report.items():
        table.add_row(f"{int(rows):,}", *(f"{value:,}" for value in numbers.values()))
    console.print(table)


if __name__ == "__main__":
    main()
