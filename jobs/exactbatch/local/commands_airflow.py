"""Airflow in `exactbatch local`: what `up` shows of it, and `trigger`."""

import os
import webbrowser
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rich.markup import escape

from exactbatch.cli.console import err, out
from exactbatch.cli.project_files import project_at
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.airflow_client import AirflowClient, Run
from exactbatch.local.server import Progress
from exactbatch.local.stack import LocalStack

USUAL_DAGS: Final = Path("dags")
_LINES_SHOWN: Final = 6  # of the traceback of a DAG file
_DAGS_SHOWN: Final = 20


def start_airflow(
    stack: LocalStack, dags: Path | None, port: int | None, progress: Progress
) -> tuple[LocalAirflow, bool]:
    """Start Airflow on a folder of DAG files, by default `dags` in the working directory, which is created.

    Return Airflow, and False if all of it was up. Raises LocalStackError.
    """
    if dags is None:
        dags = USUAL_DAGS
        dags.mkdir(exist_ok=True)
    # As `exactbatch new` lays out a project: the package `pipelines` is in `jobs` if there is one, or beside `dags`.
    modules = project_at(dags.absolute().parent, None).modules
    path = [str(modules), *(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)]
    environment = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
    airflow = LocalAirflow(stack, dags, environment=environment, progress=progress, port=port)
    return airflow, airflow.up()


def show_airflow(airflow: LocalAirflow) -> None:
    """Print where Airflow is, its DAGs, and the DAG files that it could not import."""
    out.print(f"\nAirflow   {airflow.url}  user {airflow.user}  password {airflow.password}", markup=False)
    out.print(f"Pipelines {airflow.url}/exactbatch/\n", markup=False)
    dags = airflow.dags()
    for dag_id in sorted(dags)[:_DAGS_SHOWN]:
        out.print(
            f"DAG {dag_id}{' (paused)' if dags[dag_id] else ''}: {airflow.url}/dags/{dag_id}", markup=False
        )
    if len(dags) > _DAGS_SHOWN:
        out.print(f"… and {len(dags) - _DAGS_SHOWN} more: {airflow.url}/dags", markup=False)
    out.print(
        f"\nNew files in {airflow.dags_folder} appear within seconds. A new DAG is paused: switch it on in the "
        "browser, or with `exactbatch local trigger`.\n\nNext:",
        markup=False,
    )
    for command, why in (
        ("exactbatch local send TOPIC FILE", "send the lines of a file to a topic, which is created"),
        ("exactbatch new NAME --topic TOPIC", "write a pipeline for a topic, with its DAG"),
        ("exactbatch register NAME", "create the ledger, and register the pipeline"),
        ("exactbatch local trigger NAME", "switch its DAG on, run it, and wait for the run"),
        ("exactbatch audit NAME", "compare the table with the topic, record by record"),
    ):
        out.print(f"  [bold]{command}[/]  # {why}")
    for broken in airflow.broken_files():
        file = escape(str(airflow.dags_folder / broken.name))
        err.print(f"[red]error:[/] Airflow cannot import {file}:")
        for line in broken.traceback.strip().splitlines()[-_LINES_SHOWN:]:
            err.print(f"  {line}", markup=False)


def described_airflow(airflow: LocalAirflow) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "url": airflow.url,
        "user": airflow.user,
        "password": airflow.password,
        "dags_folder": str(airflow.dags_folder),
        "dags": [{"dag_id": dag_id, "paused": paused} for dag_id, paused in sorted(airflow.dags().items())],
        "import_errors": [
            # Airflow 3.0 tells the whole path.
            {
                "file": os.path.relpath(airflow.dags_folder / each.name, airflow.dags_folder),
                "traceback": each.traceback,
            }
            for each in airflow.broken_files()
        ],
    }


def run_once(airflow: AirflowClient, dag_id: str, progress: Progress) -> list[Run]:
    """Unpause a DAG, start a run, and return the runs that have ended since, oldest first.

    A schedule starts a run as well when its DAG is unpaused, and that run may be the first to find the new records.
    Raises LocalStackError if there is no such DAG.
    """
    before = {run.run_id for run in airflow.runs(dag_id)}
    airflow.wait_for_dag(dag_id)
    triggered = airflow.trigger(dag_id)
    airflow.wait_for_run(dag_id, triggered, progress=progress)
    started = [run.run_id for run in airflow.runs(dag_id) if run.run_id not in before]
    for run_id in started:
        if run_id != triggered:
            airflow.wait_for_run(dag_id, run_id, progress=progress)
    return [run for run in airflow.runs(dag_id) if run.run_id in started]


def show_runs(airflow: AirflowClient, dag_id: str, runs: list[Run]) -> None:
    """Print each run with its tasks."""
    for run in runs:
        tasks = airflow.task_states(dag_id, run.run_id)
        shown = ", ".join(f"{task} {state}" for task, (state, _) in tasks.items())
        out.print(f"{run.state}  {run.run_id}: {shown}", markup=False)
        out.print(f"{airflow.url}/dags/{dag_id}/runs/{quote(run.run_id)}", markup=False)
        for task, (state, attempt) in tasks.items():
            if state == "failed" and (error := airflow.last_error(dag_id, run.run_id, task, attempt)):
                err.print(f"[red]error:[/] {task}: {escape(error)}")


def open_browser(url: str) -> None:
    """Open a page in the browser, if this machine has one."""
    try:
        opened = webbrowser.open(url)
    except webbrowser.Error:
        opened = False
    if not opened:
        err.print(f"found no browser on this machine: open {url} in yours", markup=False)
