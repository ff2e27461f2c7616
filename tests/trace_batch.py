"""Run one Append from its DAG to the commit, and say which files it passes and how deep its COPY is.

    python tests/trace_batch.py [--calls]

Real Kafka, Postgres and Spark; the tasks of the DAG are called as Airflow calls them, in traced processes. It prints

- the stops of docs/architecture.md, and for each the calls of ours that lead to it,
- the files on these ways, which a reader passes who follows a batch, and all files with a function that is called,
- our frames between Spark's call of a task and the COPY.
"""
# ruff: noqa: T201 - it prints its findings

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TRACER: Final = ROOT / "tests" / "support" / "tracer"
# (number, file below jobs, function or method) of each stop; the stop of a class is the method that does its work.
_METHODS: Final = {
    "ProcessBatchOperator": "ProcessBatchOperator.execute",
    "RangeReader": "RangeReader.__init__",
}
STOPS: Final = [
    (int(number), file, _METHODS.get(name, name))
    for number, file, name in re.findall(
        r"^\| (\d+) \| `jobs/([^`]+)` \| `(\w+)` \|",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
]

_RUN: Final = """
from jinja2 import Environment
from exactbatch.airflow import pipeline_dag
from pipelines.flights import flights
from support.airflow_runs import Run

dag = pipeline_dag(flights)
run = Run("run", dag_id="flights")
task = dag.task_dict[dag.task_dict["plan_batch"].python_callable(dag_run=run, params={}, ti=run)]
run.task_id = task.task_id
task.batches = Environment().from_string(task.batches).render(ti=run)
task.execute({"ti": run})
"""


def run_batch(folder: Path) -> None:
    """Run a batch of flights in traced processes, each of which writes a file into the folder."""
    sys.path[:0] = [str(ROOT / "tests")]
    from psycopg2.extensions import parse_dsn

    from exactbatch.local.topics import create_topic
    from exactbatch.settings import Settings
    from pipelines.flights import flights
    from support.one_airflow import register
    from support.stacks import new_stack
    from support.topics import Topic

    stack = new_stack("trace")
    try:
        stack.up()
        settings = Settings(kafka=dict(stack.kafka_properties), postgres=stack.postgres_dsn)
        create_topic(settings.kafka, "flights")
        names = [each.column.name for each in flights.value.fields]
        values = dict.fromkeys(names, 1) | {"carrier": "UA", "tailnum": "N1", "origin": "JFK", "dest": "LAX"}
        values["time_hour"] = "2013-01-01T05:00:00Z"
        Topic("flights", settings.kafka).produce(*[json.dumps(values).encode()] * 1000)
        register(settings, flights)
        dsn = parse_dsn(settings.postgres)
        connections = {
            "kafka_default": {"conn_type": "kafka", "extra": dict(settings.kafka)},
            "postgres_default": {
                "conn_type": "postgres",
                "host": dsn.pop("host"),
                "schema": dsn.pop("dbname"),
                "login": dsn.pop("user"),
                "port": int(dsn.pop("port")),
                "extra": dsn,
            },
            "spark_default": {"conn_type": "spark", "host": "local[2]"},
        }
        subprocess.run(
            [sys.executable, "-c", _RUN],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, (TRACER, ROOT / "tests", ROOT / "jobs"))),
                "EXACTBATCH_TRACE": str(folder),
                "EXACTBATCH_STOPS": " ".join(f"{file}:{name}" for _, file, name in STOPS),
                **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in connections.items()},
            },
            check=True,
            stdout=subprocess.DEVNULL,
        )
    finally:
        stack.down(delete=True)


def read_trace(folder: Path) -> dict[str, list[str]]:
    """Return what the processes wrote until the commit, by kind: "call" `file:function`, "way" and "copy" stacks.

    A stack has our frames, the innermost first.
    """
    found: dict[str, list[str]] = {"call": [], "way": [], "copy": []}
    for file in sorted(folder.iterdir(), key=lambda each: each.stat().st_ctime_ns):
        for line in file.read_text(encoding="utf-8").splitlines():
            kind, _, text = line.partition(" ")
            if kind == "committed":
                break
            found[kind].append(text)
    return found


def list_files(places: Iterable[str]) -> list[str]:
    """Return the files of `file:function`, each once, in their order."""
    return list(dict.fromkeys(place.partition(":")[0] for place in places))


def main() -> None:
    """Print what a batch passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--calls", action="store_true", help="also print each function that is called, by file"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_batch(Path(folder))
        found = read_trace(Path(folder))
    passed: list[str] = []
    for number, file, function in STOPS:
        stop = f"{file}:{function}"
        ways = sorted((way.split(" < ") for way in found["way"] if way.startswith(stop)), key=len)
        print(f"{number}. {stop}" + ("" if ways else ": NOT REACHED"))
        for place in reversed(ways[0][1:] if ways else []):
            print(f"      {place}")
        passed += reversed(ways[0] if ways else [])
    called = list_files(found["call"])
    print(
        f"{len(list_files(passed))} files from the DAG to the commit, {len(called)} with a function that is called"
    )
    for file in called if options.calls else ():
        names = [each.partition(":")[2] for each in found["call"] if each.startswith(f"{file}:")]
        print(f"  {file}: {', '.join(names)}")
    deepest = max((stack.split(" < ") for stack in found["copy"]), key=len, default=[])
    print(f"{len(deepest)} frames of ours from Spark's call to the COPY:")
    for place in reversed(deepest):
        print(f"      {place}")


if __name__ == "__main__":
    main()
