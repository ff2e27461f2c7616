"""`make bench`: exactbatch, what people run today, and Spark's bare Kafka source, in one run.

Every way has a process of its own with a warm Spark session: the whole topic once, unmeasured, then rounds
in which the ways take turns, so that what else the machine does meets all of them. The ways that wait use
no CPU. Row counts and column sums of all targets are checked after each round.
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flights_log import PARTITIONS, ensure_topic
from rich.console import Console
from rich.table import Table
from runner import Measured, Runner, Servers, benchmark_servers, progress_on
from ways import (
    AVAILABLE_NOW,
    CORES,
    EXACTBATCH,
    JDBC,
    KAFKA_SOURCE,
    SINKS,
    SPARK_CONF,
    WAYS,
    Place,
    Way,
)

from exactbatch.local.demo.flights import COUNT
from exactbatch.local.jars import fetch_jars

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local"))
REPORT = ROOT / "build" / "bench.json"
ROWS = 6 * COUNT
# The share of the CPU time used that other processes may have before the report says so.
QUIET = 0.1
PACKAGES = ("pyspark", "confluent-kafka", "pyarrow", "adbc-driver-postgresql", "psycopg2-binary")

Rounds = list[dict[str, Measured]]


def main() -> None:
    """Measure, print a table, and write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records in the topic ({ROWS:,})")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each way (3)")
    arguments = parser.parse_args()
    console = Console()
    with progress_on(console) as progress:
        rounds, facts = measure(arguments.rows, arguments.rounds, progress)
    report = {**summary(rounds, arguments.rows), "facts": facts}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    show(console, report)


def measure(rows: int, rounds: int, progress: Callable[[str], None]) -> tuple[Rounds, dict[str, Any]]:
    """Run all ways in turns; returns what each round took, and what was compared."""
    jars = fetch_jars("spark-kafka", HOME / "jars", progress)
    with benchmark_servers(HOME, progress) as servers, ExitStack() as runners:
        topic = f"flights_{rows}"
        size = ensure_topic(servers.stack.kafka_properties, topic, rows, progress)
        place = servers.place(topic, tuple(sorted(jars.glob("*.jar"))))
        facts = {**_facts(place), "postgres": servers.version(), "rows": rows, "bytes": size}
        ready = []
        for way in WAYS:
            progress(f"{way.title}: starting, and the whole topic once to warm up")
            ready.append(runners.enter_context(Runner(way, place)))
            _round(ready[-1], servers, place, rows)
        measured: Rounds = []
        for number in range(rounds):
            took = {}
            for runner in ready:
                progress(f"round {number + 1} of {rounds}: {runner.way.title}")
                took[runner.way.name] = _round(runner, servers, place, rows)
            measured.append(took)
    return measured, facts


def _round(runner: Runner, servers: Servers, place: Place, rows: int) -> Measured:
    """One round of one way, whose target holds exactly the topic's records afterwards."""
    way = runner.way
    servers.prepare(place, way)
    measured = runner.run(servers)
    if way.target and way.derived:
        check_derived(servers, way.target, rows)
    elif way.target:
        check(servers, way.target, rows)
    return measured


_contents: dict[int, tuple[Any, ...]] = {}


def check(servers: Servers, target: str, rows: int) -> None:
    """Stop the benchmark unless the target has a row for each record and the same values as every other."""
    found = servers.contents(target)
    expected = _contents.setdefault(rows, found)
    if found[0] != rows or found != expected:
        raise SystemExit(f"expected {rows:,} rows and the sums {expected} in {target}, found {found}")


def check_derived(servers: Servers, target: str, rows: int) -> None:
    """Stop the benchmark unless the target accounts for each record."""
    if (found := servers.records(target)) != rows:
        raise SystemExit(f"expected {target} to be made of {rows:,} records, found {found:,}")


def summary(rounds: Rounds, rows: int) -> dict[str, Any]:
    """The numbers of build/bench.json."""
    ways = {way.name: _way_summary([each[way.name] for each in rounds], rows) for way in WAYS}
    return {
        "ways": ways,
        "ratios": {
            f"exactbatch / {AVAILABLE_NOW.name}": _ratio(rounds, lambda m: 1 / m.seconds),
            **{
                f"{way.name} / exactbatch": _ratio(rounds, lambda m: 1 / m.seconds, way, EXACTBATCH)
                for way in SINKS
            },
            f"cpu: {AVAILABLE_NOW.name} / exactbatch": 1 / _ratio(rounds, lambda m: m.cpu_with_servers),
        },
        "cpu_share_of_others": _share_of_others(rounds),
        "rounds": [{name: asdict(took) for name, took in each.items()} for each in rounds],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def _way_summary(measured: list[Measured], rows: int) -> dict[str, float]:
    median, millions = statistics.median, rows / 1e6
    return {
        "rows_per_s": round(rows / median(each.seconds for each in measured)),
        "rows_per_s_best": round(rows / min(each.seconds for each in measured)),
        "cpu_s_per_million": round(median(each.cpu for each in measured) / millions, 2),
        "cpu_s_per_million_with_servers": round(
            median(each.cpu_with_servers for each in measured) / millions, 2
        ),
        "peak_mb": round(max(each.peak_mb for each in measured)),
    }


def _ratio(
    rounds: Rounds, quantity: Callable[[Measured], float], one: Way = EXACTBATCH, other: Way = AVAILABLE_NOW
) -> float:
    """The median over the rounds of one way's quantity to that of another."""
    ratios = [quantity(each[one.name]) / quantity(each[other.name]) for each in rounds]
    return round(statistics.median(ratios), 2)


def _share_of_others(rounds: Rounds) -> float:
    """Of the CPU time used during the rounds, what was used by neither a way nor the servers: 0 to 1."""
    measured = [took for each in rounds for took in each.values()]
    others = sum(each.cpu_others for each in measured)
    return round(others / (others + sum(each.cpu_with_servers for each in measured)), 2)


def _facts(place: Place) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "spark_master": f"local[{CORES}]",
        "partitions": PARTITIONS,
        "spark_conf": SPARK_CONF,
        "kafka_source_options": KAFKA_SOURCE,
        "jdbc_options": {**JDBC, "reWriteBatchedInserts": "true"},
        "jars": [jar.name for jar in place.jars],
    }


def show(console: Console, report: dict[str, Any]) -> None:
    """What was compared, and how it came out."""
    facts, versions = report["facts"], report["versions"]
    table = Table(title=f"{facts['rows']:,} records, {facts['bytes'] / 1e6:,.0f} MB of JSON")
    headings = ("rows/s median", "best", "CPU s/million", "with servers", "peak MB")
    for heading in ("way", *headings):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for way in WAYS:
        row = report["ways"][way.name]
        table.add_row(way.title, *(f"{value:,}" for value in row.values()))
    console.print(table)
    for name, value in report["ratios"].items():
        console.print(f"{name} = [bold]{value:.2f}[/bold] (median of {len(report['rounds'])} rounds)")
    console.print(
        f"Same topic ({facts['partitions']} partitions), same columns (19 and the lineage), all targets checked "
        f"after each round. Each way in a warm session of its own, rounds in turns. {facts['cores']} cores for "
        f"Spark ({facts['spark_master']}), Kafka and Postgres {facts['postgres']} together. "
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}. "
        f"CPU is of driver, JVM and Python workers; with servers: and of Kafka and Postgres.",
        highlight=False,
    )
    if report["cpu_share_of_others"] > QUIET:
        console.print(
            f"[yellow]Other processes took {report['cpu_share_of_others']:.0%} of the CPU time that was used "
            f"during the rounds: seconds and rows/s are not those of a quiet machine.[/yellow]"
        )
    console.print(f"Settings and every round: {REPORT.relative_to(ROOT)}", highlight=False)


if __name__ == "__main__":
    main()
