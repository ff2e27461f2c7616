"""Seconds from the start of a job over 1,000 records to its commit: on a Spark Connect server, in a warm Spark session,
and by a new process. The first and the last then take a while to end. And the seconds of 10,000 records in one
partition, and in 1,000 partitions.

Writes build/latency.json.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import HOME, ROOT, check
from rich.console import Console
from runner import Runner, Servers, benchmark_servers, progress_on
from topics import drop_topic, ensure_topic
from ways import CORES, EXACTBATCH, Place, one_transaction, run_batch

from exactbatch.batch.engines.connect_engine import ConnectEngine
from exactbatch.batch.spark.class_archive import archive_folder, build_archive
from exactbatch.settings import Settings

REPORT = ROOT / "build" / "latency.json"
ROWS, ROUNDS = 1_000, 5
SPREAD_ROWS, SPREADS = 10_000, (1, 1_000)  # records, and the partitions that they are spread over


def main() -> None:
    """Measure all, print the medians, and write build/latency.json."""
    console = Console()
    with progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        topic = f"flights_{ROWS}"
        ensure_topic(servers.stack.kafka_properties, topic, ROWS, progress)
        place = servers.place(topic, ROWS)
        seconds = {
            **served(servers, place, progress),
            "warm session": warm(servers, place, progress),
            **cold(servers, place, progress),
        }
        spread = {partitions: spread_over(partitions, servers, progress) for partitions in SPREADS}
    report = {"rows": ROWS, "seconds": seconds, "spread_rows": SPREAD_ROWS, "spread_seconds": spread}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    for name, times in seconds.items():
        console.print(f"{name}: {statistics.median(times):.2f} s (median of {len(times)})")
    for partitions, times in spread.items():
        console.print(
            f"{SPREAD_ROWS:,} records over partitions: {partitions:,}: {statistics.median(times):.2f} s "
            f"(median of {len(times)})"
        )


def served(servers: Servers, place: Place, progress: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds of batches on a server that has processed one before: until the commit, and until the session
    on the server has ended."""
    server, settings = servers.stack.connect, Settings(kafka=place.kafka, postgres=place.postgres)
    server.configure({}, {"spark.master": f"local[{CORES}]", "spark.ui.enabled": "false"}, anywhere=True)
    progress("starting a Spark Connect server")
    server.start()
    engine, pipeline = ConnectEngine(server.url), one_transaction(place)
    until_commit, until_end = [], []
    for number in range(ROUNDS + 1):
        progress(f"batch {number} of {ROUNDS} on a Spark Connect server")
        servers.prepare(place, EXACTBATCH)
        started = time.time()  # the clock of Postgres, too
        run_batch(engine, pipeline, settings)
        until_end.append(time.time() - started)
        until_commit.append(servers.committed_at() - started)
        check(servers, place, EXACTBATCH)
    server.stop()
    return {
        "Spark Connect server": until_commit[1:],
        "Spark Connect server, until the session has ended": until_end[1:],
    }


def warm(servers: Servers, place: Place, progress: Callable[[str], None]) -> list[float]:
    """Return the seconds of batches in a session that has processed one before: plan, read, stage, publish."""
    with Runner(EXACTBATCH, place) as runner:
        seconds = []
        for number in range(ROUNDS + 1):
            progress(f"batch {number} of {ROUNDS} in a warm session")
            servers.prepare(place, EXACTBATCH)
            seconds.append(runner.run(servers).seconds)
            check(servers, place, EXACTBATCH)
    return seconds[1:]


def spread_over(partitions: int, servers: Servers, progress: Callable[[str], None]) -> list[float]:
    """Return the seconds of batches in a warm session, over a topic with this number of partitions."""
    topic = f"flights_{SPREAD_ROWS}_{partitions}"
    ensure_topic(servers.stack.kafka_properties, topic, SPREAD_ROWS, progress, partitions=partitions)
    try:
        return warm(servers, servers.place(topic, SPREAD_ROWS), progress)
    finally:
        drop_topic(servers.stack.kafka_properties, topic)


def cold(servers: Servers, place: Place, progress: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds of `exactbatch run`, which starts Python, a JVM and Spark, and ends them: until the commit,
    and until the process has ended. The JVM uses the archive that `exactbatch archive` builds."""
    progress("building the archive of Spark's classes, if there is none")
    build_archive(archive_folder())
    settings = Settings(kafka=place.kafka, postgres=place.postgres)
    module = place.scratch / "latency_pipeline.py"
    module.write_text(
        "from dataclasses import replace\n"
        "from exactbatch import Append\n"
        "from pipelines.flights import flights\n"
        f"small = replace(flights, name={place.topic!r}, topics=({place.topic!r},), "
        f"sink=Append({EXACTBATCH.target!r}))\n"
    )
    path = os.pathsep.join([str(place.scratch), str(ROOT / "jobs")])
    environment = {**os.environ, **settings.as_environment(), "PYTHONPATH": path}
    command = [
        sys.executable,
        "-m",
        "exactbatch.cli",
        "run",
        "latency_pipeline:small",
        "--master",
        f"local[{CORES}]",
    ]
    until_commit, until_end = [], []
    for number in range(ROUNDS):
        progress(f"batch {number + 1} of {ROUNDS} in a new process")
        servers.prepare(place, EXACTBATCH)
        started = time.time()  # the clock of Postgres, too
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=Path(place.scratch))
        until_end.append(time.time() - started)
        until_commit.append(servers.committed_at() - started)
        check(servers, place, EXACTBATCH)
    return {"new process": until_commit, "new process, until it has ended": until_end}


if __name__ == "__main__":
    main()
