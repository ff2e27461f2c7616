"""Offsets that an audit checks in a second: with and without values, in one process and as Spark tasks.

Loads the topic of flights once, audits it in each way in turn, and writes build/audit.json.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench import HOME, ROOT
from pyspark.sql import SparkSession
from rich.console import Console
from runner import Runner, benchmark_servers, progress_on
from topics import ensure_topic
from ways import CORES, EXACTBATCH, SPARK_CONF, Place, one_transaction

from exactbatch.audit.audit import audit
from exactbatch.local.demo.flights import COUNT
from exactbatch.settings import Settings

REPORT = ROOT / "build" / "audit.json"


def main() -> None:
    """Measure, print the medians, and write build/audit.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=6 * COUNT, help="records to audit")
    parser.add_argument("--rounds", type=int, default=3, help="audits of each kind")
    arguments = parser.parse_args()
    console = Console()
    with progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        topic = f"flights_{arguments.rows}"
        ensure_topic(servers.stack.kafka_properties, topic, arguments.rows, progress)
        place = servers.place(topic, arguments.rows)
        progress(f"loading {arguments.rows:,} records")
        with Runner(EXACTBATCH, place) as runner:
            servers.prepare(place, EXACTBATCH)
            runner.run(servers)
        rates = measure(place, arguments.rounds, progress)
        servers.prepare(place, EXACTBATCH)  # its rows are not needed any more
    report = {"rows": arguments.rows, "rounds": arguments.rounds, "cores": CORES, "offsets_per_s": rates}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    for name, rate in rates.items():
        console.print(f"{name}: {rate:,.0f} offsets/s")


def measure(place: Place, rounds: int, progress: Callable[[str], None]) -> dict[str, float]:
    """Return the median rate of each kind of audit, in offsets per second."""
    rates: dict[str, float] = {}
    for values in (False, True):
        what = "with values" if values else "without values"
        progress(f"audits {what} in this process")
        for workers in (1, CORES):
            with _cores(workers):
                rates[f"one process, workers: {workers}, {what}"] = _rate(place, rounds, values, None)
        progress(f"audits {what} as Spark tasks")
        for workers in (1, CORES):
            spark = _session(place, workers)
            _rate(place, 1, values, spark)  # starts the workers
            rates[f"Spark, workers: {workers}, {what}"] = _rate(place, rounds, values, spark)
            spark.stop()
    return rates


@contextmanager
def _cores(number: int) -> Iterator[None]:
    """Let this process use so many cores: an audit starts a worker for each."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _rate(place: Place, rounds: int, values: bool, spark: SparkSession | None) -> float:
    settings, pipeline = Settings(kafka=place.kafka, postgres=place.postgres), one_transaction(place)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        report = audit(pipeline, settings, values=values, spark=spark)
        seconds.append(time.perf_counter() - started)
        if not report.is_exact or report.records != place.rows:
            raise SystemExit(f"expected an exact audit, found {report.findings}")
    return place.rows / statistics.median(seconds)


def _session(place: Place, workers: int) -> SparkSession:
    builder = SparkSession.builder.appName("audit").master(f"local[{workers}]")
    for name, value in {**SPARK_CONF, "spark.local.dir": str(place.scratch)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()
