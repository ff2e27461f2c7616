"""Every DAG file loads, is light to parse, and has the shape that the ledger counts on."""

import subprocess
import sys
from pathlib import Path

import pytest

DAGS = sorted((Path(__file__).parents[2] / "dags").glob("*.py"))
HEAVY = (
    "pyspark",
    "kafka",
    "confluent_kafka",
    "pandas",
    "pyarrow",
    "adbc_driver_postgresql",
    "exactbatch.airflow.openlineage_facets",
)
PROBE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("unusual_prefix_dag", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
dag = module.dag
process = dag.task_dict["process_batch"]
print(json.dumps({
    "heavy": [name for name in sys.argv[2:] if name in sys.modules],
    "tasks": {task: sorted(dag.task_dict[task].downstream_task_ids) for task in dag.task_dict},
    "pools": {task: dag.task_dict[task].pool for task in dag.task_dict},
    "max_active_runs": dag.max_active_runs,
    "catchup": dag.catchup,
    "retries": process.retries,
    "arguments": process.application_args,
    "env_vars": process.env_vars,
    "doc": dag.doc_md,
    "dag_id": dag.dag_id,
    "timetable": type(dag.timetable).__name__,
}))
"""


@pytest.fixture(scope="module", params=DAGS, ids=lambda path: path.stem)
def loaded(request, tmp_path_factory):
    """What a fresh process finds after it has loaded a DAG file as Airflow does."""
    import json
    import os

    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(request.param), *HEAVY],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_heavy_is_imported_at_parse_time(loaded):
    assert loaded["heavy"] == []


def test_plan_then_one_kind_of_process_then_report(loaded):
    assert loaded["tasks"] == {
        "plan_batch": ["process_batch", "process_replay", "report_batch"],
        "process_batch": ["report_batch"],
        "process_replay": ["report_batch"],
        "report_batch": [],
    }


def test_one_run_at_time_and_no_pool_that_somebody_has_to_create(loaded):
    assert loaded["max_active_runs"] == 1
    assert loaded["catchup"] is False
    assert set(loaded["pools"].values()) == {"default_pool"}


def test_a_cron_schedule_has_data_intervals(loaded):
    assert loaded["timetable"] == "CronDataIntervalTimetable"


def test_the_job_gets_the_pipeline_by_reference_and_no_secret(loaded):
    assert loaded["arguments"][:2] == ["--pipeline", f"pipelines.{loaded['dag_id']}:{loaded['dag_id']}"]
    assert loaded["env_vars"] is None
    assert loaded["retries"] >= 1
