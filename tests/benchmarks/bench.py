"""`make bench`: exactbatch, what people run today, and what the machine allows, in one run.

Every way has a process of its own, which is warm: the whole topic once, unmeasured, then rounds in which the
ways take turns, so that what else the machine does meets all of them. The ways that wait use no CPU. Row counts and
column sums of all targets are checked after each round, and exactbatch's are audited with their values.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from change_events import SCHEMA_ID, avro_registered
from rich.console import Console
from rich.table import Table
from runner import POSTGRES_SETTINGS, Measured, Runner, Servers, benchmark_servers, progress_on
from shapes import SHAPES, Shape
from topics import PARTITIONS, ensure_topic
from ways import (
    AVAILABLE_NOW,
    CORES,
    DEBEZIUM_INSERT,
    DEBEZIUM_UPSERT,
    EXACTBATCH,
    EXACTBATCH_BY_BATCH,
    EXACTBATCH_LATEST,
    EXACTBATCH_PARTITION,
    EXACTBATCH_SQL,
    EXACTBATCH_UPSERT,
    HAND_WRITTEN,
    JDBC,
    KAFKA_SOURCE,
    LIMIT,
    SPARK_CONF,
    WAYS,
    Place,
    Way,
)

from exactbatch.audit.run_audit import audit
from exactbatch.local.demo.flights import COUNT
from exactbatch.local.java import fetch_jars, find_java
from exactbatch.settings import Settings
from support.registry import registry_server

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local"))
REPORT = ROOT / "build" / "bench.json"
ROWS = 6 * COUNT
# The share of the CPU time used that other processes may have before the report says so.
QUIET = 0.1
PACKAGES = (
    "pyspark",
    "confluent-kafka",
    "pyarrow",
    "adbc-driver-postgresql",
    "psycopg2-binary",
    "orjson",
)
# One way's rows/s relative to another's, over flights.
RATIOS = (
    (EXACTBATCH, AVAILABLE_NOW),
    (EXACTBATCH, HAND_WRITTEN),
    (EXACTBATCH_PARTITION, AVAILABLE_NOW),
    (EXACTBATCH_PARTITION, HAND_WRITTEN),
    (EXACTBATCH_BY_BATCH, AVAILABLE_NOW),
    (EXACTBATCH_SQL, EXACTBATCH),
    (EXACTBATCH_UPSERT, EXACTBATCH),
    (EXACTBATCH_UPSERT, DEBEZIUM_UPSERT),
    (EXACTBATCH_LATEST, EXACTBATCH_UPSERT),
    (EXACTBATCH, DEBEZIUM_INSERT),
)

Rounds = list[dict[str, Measured]]


def main() -> None:
    """Measure, print a table for each shape, and write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records in the topic of flights ({ROWS:,})")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each way (3)")
    parser.add_argument(
        "--ways", nargs="+", choices=[way.name for way in WAYS], help="measure only these ways"
    )
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SHAPES), help="measure only these shapes of records"
    )
    arguments = parser.parse_args()
    ways = [way for way in WAYS if way.name in (arguments.ways or [way.name])]
    shapes = [SHAPES[name] for name in arguments.shapes or SHAPES]
    console = Console()
    report: dict[str, Any] = {"shapes": {}}
    with progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        report["facts"] = _facts(servers)
        report["versions"] = _versions()
        for shape in shapes:
            if not (chosen := [way for way in ways if shape.name in way.shapes]):
                parser.error(f"none of these ways loads {shape.name}")
            rows = round(arguments.rows * shape.share)
            report["shapes"][shape.name] = measure(servers, shape, chosen, rows, arguments.rounds, progress)
            REPORT.parent.mkdir(exist_ok=True)
            REPORT.write_text(json.dumps(report, indent=2) + "\n")
    show(console, report)


def measure(
    servers: Servers,
    shape: Shape,
    ways: Sequence[Way],
    rows: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run the ways in turns; return what each round took."""
    jars = {name: fetch_jars(name, HOME / "jars", progress) for name in ("spark-kafka", "kafka-connect")}
    topic = f"{shape.name}_{rows}"
    size = ensure_topic(servers.stack.kafka_properties, topic, rows, progress, shape)
    measured: Rounds = []
    with ExitStack() as runners:
        registry = runners.enter_context(registry_server())
        registry.has(SCHEMA_ID, avro_registered())
        place = servers.place(
            topic,
            rows,
            shape,
            tuple(sorted(jars["spark-kafka"].glob("*.jar"))),
            tuple(sorted([*jars["kafka-connect"].glob("*.jar"), *jars["kafka-connect"].glob("*.tar.gz")])),
            registry.address,
        )
        ready = []
        for way in ways:
            progress(f"{shape.name}: {way.title}: starting, and the whole topic once to warm up")
            servers.prepare(place, way)
            ready.append(runners.enter_context(Runner(way, place)))
            _round(ready[-1], servers, place)
        for number in range(rounds):
            took = {}
            for runner in ready:
                progress(f"{shape.name}: round {number + 1} of {rounds}: {runner.way.title}")
                took[runner.way.name] = _round(runner, servers, place)
            measured.append(took)
    return summary(measured, ways, shape, rows, size)


def _round(runner: Runner, servers: Servers, place: Place) -> Measured:
    """One round of one way, whose target holds exactly the topic's records afterwards."""
    way = runner.way
    servers.prepare(place, way)
    measured = runner.run(servers)
    check(servers, place, way)
    return measured


_contents: dict[tuple[str, int], tuple[Any, ...]] = {}


def check(servers: Servers, place: Place, way: Way) -> None:
    """Stop the benchmark unless the target has a row for each good record, with the same values as every other way's.

    A target of exactbatch is audited as well, with its values where they follow from the records alone.
    """
    good = place.shape.good(place.rows)
    if way.target and way.copies:
        found = servers.contents(way.target, place.shape.sums)
        expected = _contents.setdefault((place.shape.name, place.rows), found)
        if found[0] != good or found != expected:
            raise SystemExit(f"expected {good:,} rows and the sums {expected} in {way.target}, found {found}")
    elif way.target and way.derived and not way.keys and (records := servers.records(way.target)) != good:
        raise SystemExit(f"expected {way.target} to be made of {good:,} records, found {records:,}")
    elif way.target and way.keys and (keys := servers.rows(way.target)) != min(place.shape.keys, place.rows):
        raise SystemExit(f"expected a row for each flight of the year in {way.target}, found {keys:,}")
    if way.pipeline is not None:
        pipeline = way.pipeline(place)
        settings = Settings(kafka=place.kafka, postgres=place.postgres)
        report = audit(pipeline, settings, values=not pipeline.is_transformed)
        if not report.is_exact or report.records != place.rows:
            raise SystemExit(f"expected the audit of {way.target} to be exact, found {report.findings}")


def summary(rounds: Rounds, ways: Sequence[Way], shape: Shape, rows: int, size: int) -> dict[str, Any]:
    """The numbers of one shape in build/bench.json."""
    by_way = {way.name: _way_summary(way, [each[way.name] for each in rounds], rows) for way in ways}
    if LIMIT.name in by_way:
        for way in ways:
            by_way[way.name]["share_of_reference"] = _ratio(rounds, way, LIMIT)
    return {
        "title": shape.title,
        "rows": rows,
        "bytes": size,
        "postgres_settings": POSTGRES_SETTINGS,
        "ways": by_way,
        "ratios": {
            f"{one.name} / {other.name}": _ratio(rounds, one, other)
            for one, other in RATIOS
            if one.name in by_way and other.name in by_way
        },
        "cpu_share_of_others": _share_of_others(rounds),
        "rounds": [{name: asdict(took) for name, took in each.items()} for each in rounds],
    }


def _way_summary(way: Way, measured: list[Measured], rows: int) -> dict[str, Any]:
    median, millions = statistics.median, rows / 1e6
    return {
        "title": way.title,
        "rows_per_s": round(rows / median(each.seconds for each in measured)),
        "rows_per_s_best": round(rows / min(each.seconds for each in measured)),
        "cpu_s_per_million": round(median(each.cpu for each in measured) / millions, 2),
        "cpu_s_per_million_with_servers": round(
            median(each.cpu_with_servers for each in measured) / millions, 2
        ),
        "peak_mb": round(max(each.peak_mb for each in measured)),
        "stages": {
            stage: round(median(each.stages[stage] for each in measured), 2) for stage in measured[0].stages
        },
    }


def _ratio(rounds: Rounds, one: Way, other: Way) -> float:
    """The ratio of one way's rows/s to those of another, both medians over the rounds, as the table shows them."""
    median = statistics.median
    return round(
        median(each[other.name].seconds for each in rounds)
        / median(each[one.name].seconds for each in rounds),
        2,
    )


def _share_of_others(rounds: Rounds) -> float:
    """Of the CPU time used during the rounds, what was used by neither a way nor the servers: 0 to 1."""
    measured = [took for each in rounds for took in each.values()]
    others = sum(each.cpu_others for each in measured)
    return round(others / (others + sum(each.cpu_with_servers for each in measured)), 2)


def _facts(servers: Servers) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "spark_master": f"local[{CORES}]",
        "partitions": PARTITIONS,
        "spark_conf": {name: value for name, value in SPARK_CONF.items() if name != "spark.pyspark.python"},
        "kafka_source_options": KAFKA_SOURCE,
        "jdbc_options": {**JDBC, "reWriteBatchedInserts": "true"},
        "postgres": servers.version(),
    }


def _versions() -> dict[str, str]:
    """Versions of what was measured: packages, Java, and the jars of the peers."""
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    jars = [
        jar.name
        for name in ("kafka", "spark-kafka", "kafka-connect")
        for jar in (HOME / "jars" / name).glob("*")
    ]
    named = ("kafka_2.13", "spark-sql-kafka", "postgresql", "connect-runtime", "debezium-connector-jdbc")
    return {
        "python": platform.python_version(),
        "java": java.stderr.splitlines()[0],
        **{name: version(name) for name in PACKAGES},
        "jars": ", ".join(sorted(jar for jar in jars if jar.startswith(named))),
    }


def show(console: Console, report: dict[str, Any]) -> None:
    """What was compared, and how it came out."""
    for shape in report["shapes"].values():
        _show_shape(console, shape)
    facts, versions = report["facts"], report["versions"]
    console.print(
        f"Same topic ({facts['partitions']} partitions), same columns, all targets checked after each round, those "
        f"of exactbatch by an audit of their values. Each way in a warm process of its own, rounds in turns. "
        f"{facts['cores']} cores for Spark ({facts['spark_master']}), Kafka and Postgres {facts['postgres']} "
        f"together. {', '.join(f'{name} {number}' for name, number in versions.items())}. "
        f"CPU is of all processes of the way; with servers: and of Kafka and Postgres.",
        highlight=False,
    )
    console.print(f"Settings and every round: {REPORT.relative_to(ROOT)}", highlight=False)


def _show_shape(console: Console, shape: dict[str, Any]) -> None:
    table = Table(
        title=f"{shape['title']}: {shape['rows']:,} records, {shape['bytes'] / 1e6:,.0f} MB of JSON"
    )
    headings = {
        "rows/s median": "rows_per_s",
        "best": "rows_per_s_best",
        "of the reference": "share_of_reference",
        "CPU s/million": "cpu_s_per_million",
        "with servers": "cpu_s_per_million_with_servers",
        "peak MB": "peak_mb",
    }
    for heading in ("way", *headings):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for way in shape["ways"].values():
        table.add_row(way["title"], *(f"{way[key]:,}" if key in way else "" for key in headings.values()))
    console.print(table)
    for name, value in shape["ratios"].items():
        console.print(f"{name} = [bold]{value:.2f}[/bold]")
    if shape["cpu_share_of_others"] > QUIET:
        console.print(
            f"[yellow]Other processes took {shape['cpu_share_of_others']:.0%} of the CPU time that was used "
            f"during the rounds: seconds and rows/s are not those of a quiet machine.[/yellow]"
        )


if __name__ == "__main__":
    main()
