"""Seconds from triggering a DAG run to its end, with engine="connect" and 1,000 new records in each run.

Shows what the three tasks and Airflow's scheduling take. Writes build/airflow.json.
"""

import json
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from unittest.mock import patch

from bench import HOME, ROOT
from rich.console import Console
from runner import Servers, benchmark_servers, progress_on
from topics import drop_topic
from ways import CORES, EXACTBATCH, Place

from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.demo.flights import flights
from exactbatch.local.topics import create_topic, send

REPORT = ROOT / "build" / "airflow.json"
ROWS, ROUNDS = 1_000, 5
DAG = "latency"
MODULE = f"""
from dataclasses import replace
from exactbatch import Append
from pipelines.flights import flights
pipeline = replace(flights, name="{DAG}", topics=("{DAG}",), sink=Append("{EXACTBATCH.target}"))
"""
DAG_FILE = f"""
from exactbatch.airflow import Connections, pipeline_dag
from pipeline_of_{DAG} import pipeline
dag = pipeline_dag(pipeline, engine="connect", connections=Connections(spark="spark_connect_default"))
"""


def main() -> None:
    """Measure, print the medians, and write build/airflow.json."""
    console = Console()
    with progress_on(console) as progress, benchmark_servers(HOME, progress) as servers:
        runs = measure(servers, progress)
    report = {"rows": ROWS, "runs": runs}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    for name in runs[0]:
        times = [run[name] for run in runs]
        console.print(f"{name}: {statistics.median(times):.2f} s (median of {len(times)})")


def measure(servers: Servers, progress: Callable[[str], None]) -> list[dict[str, float]]:
    """Return the seconds of each run and of its parts; the first run, which warms up, is left out."""
    stack, folder = servers.stack, servers.scratch / "airflow_latency"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / f"{DAG}.py").write_text(DAG_FILE)
    (folder / f"pipeline_of_{DAG}.py").write_text(MODULE)
    path = os.pathsep.join([str(folder), str(ROOT / "jobs")])
    with patch.dict(os.environ, {"PYTHONPATH": path}):
        stack.connect.configure(
            {}, {"spark.master": f"local[{CORES}]", "spark.ui.enabled": "false"}, anywhere=True
        )
        progress("starting a Spark Connect server")
        stack.connect.start()
        airflow = LocalAirflow(stack, folder / "dags", environment={"PYTHONPATH": path}, progress=progress)
        place = servers.place(DAG, ROWS)
        drop_topic(place.kafka, DAG)
        create_topic(place.kafka, DAG)
        servers.prepare(place, EXACTBATCH)
        try:
            airflow.up()
            airflow.wait_for_dag(DAG)
            values = flights()
            return [_run(airflow, place, values, number, progress) for number in range(ROUNDS + 1)][1:]
        finally:
            airflow.down()
            stack.connect.stop()


def _run(
    airflow: LocalAirflow, place: Place, values: Iterator[bytes], number: int, progress: Callable[[str], None]
) -> dict[str, float]:
    """Send records, trigger a run, and return its seconds and those of its tasks."""
    send(place.kafka, DAG, list(islice(values, ROWS)))
    progress(f"run {number} of {ROUNDS}")
    triggered = datetime.now(UTC)
    run_id = airflow.trigger(DAG)
    if (state := airflow.wait_for_run(DAG, run_id)) != "success":
        raise SystemExit(f"expected the run {run_id} to succeed, found {state}")
    run = airflow.request("GET", f"/dags/{DAG}/dagRuns/{run_id}")
    tasks = airflow.request("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances")["task_instances"]
    seconds = {
        task["task_id"]: task["duration"] for task in tasks if task["state"] == "success" and task["duration"]
    }
    total = (datetime.fromisoformat(run["end_date"]) - triggered).total_seconds()
    return {"trigger to end": total, **seconds, "scheduling": total - sum(seconds.values())}


if __name__ == "__main__":
    main()
