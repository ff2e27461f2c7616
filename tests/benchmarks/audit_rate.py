"""Offsets that an audit checks in a second: with and without values, in one process and as Spark tasks.

Loads the topic of flights once, audits it in each way in turn, and writes build/audit.json. A worker also makes Kafka
and Postgres work. So two workers on two cores are compared with one worker that shares one core with the servers, and
not only with one that has a core while the servers have the other.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import psutil
import usage
from bench import HOME, ROOT
from pyspark.sql import SparkSession
from rich.console import Console
from runner import Runner, Servers, benchmark_servers, progress_on
from topics import ensure_topic
from ways import CORES, EXACTBATCH, Place, one_transaction, spark_session

from exactbatch.audit.run_audit import audit
from exactbatch.batch.spark.python_daemon import PROPERTIES
from exactbatch.local.demo.flights import COUNT
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings

REPORT = ROOT / "build" / "audit.json"


def main() -> None:
    """Measure, print the medians, and write build/audit.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=24 * COUNT, help="records to audit")
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
        _vacuum(place)
        rates = measure(servers, place, arguments.rounds, progress)
        servers.prepare(place, EXACTBATCH)  # its rows are not needed any more
    report = {"rows": arguments.rows, "rounds": arguments.rounds, "cores": CORES, "offsets_per_s": rates}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    for name, rate in rates.items():
        console.print(f"{name}: {rate:,.0f} offsets/s")


def _vacuum(place: Place) -> None:
    """Do what autovacuum, which would disturb measurements, does within about a minute of a large load."""
    with closing(connect(place.postgres, application="benchmark")) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("vacuum (analyze)")


def measure(servers: Servers, place: Place, rounds: int, progress: Callable[[str], None]) -> dict[str, float]:
    """Return the median rate of each kind of audit, in offsets per second."""
    rates: dict[str, float] = {}
    for values in (False, True):
        what = "with values" if values else "without values"
        _rate(place, 1, values, None)  # the first one also reads files and loads compiled code
        progress(f"audits {what} in this process")
        with _one_core(servers):
            rates[f"one process, workers: 1, on one core with the servers, {what}"] = _rate(
                place, rounds, values, None
            )
        for workers in (1, CORES):
            with _cores(workers):
                rates[f"one process, workers: {workers}, {what}"] = _rate(place, rounds, values, None)
        progress(f"audits {what} as Spark tasks")
        for workers in (1, CORES):
            spark = spark_session(place, cores=workers, properties=PROPERTIES)
            _rate(place, 1, values, spark)  # starts the workers
            rates[f"Spark, workers: {workers}, {what}"] = _rate(place, rounds, values, spark)
            spark.stop()
    return rates


@contextmanager
def _cores(number: int) -> Iterator[None]:
    """Let this process use `number` cores: an audit starts a worker for each."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _one_core(servers: Servers) -> Iterator[None]:
    """Let Kafka, Postgres and this process share one core."""
    before = os.sched_getaffinity(0)
    _let_servers_use(servers, {min(before)})
    try:
        with _cores(1):
            yield
    finally:
        _let_servers_use(servers, before)


def _let_servers_use(servers: Servers, cores: set[int]) -> None:
    """Let all threads of the servers use these cores; later threads and processes inherit that."""
    for server in servers.stack.servers:
        for process in usage.tree(server.pid or 0):
            with suppress(psutil.NoSuchProcess):  # a connection of Postgres has ended
                for thread in process.threads():
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(thread.id, cores)


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


if __name__ == "__main__":
    main()
