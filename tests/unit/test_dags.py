"""Every DAG file loads, is light to parse, and has the shape that the ledger counts on."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.new_process import run

DAGS = sorted((Path(__file__).parents[2] / "dags").glob("*.py"))
HEAVY = (
    "pyspark",
    "kafka",
    "confluent_kafka",
    "pandas",
    "pyarrow",
    "adbc_driver_postgresql",
    "numba",
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
    "params": {task: list(dag.task_dict[task].params) for task in dag.task_dict},
    "form": list(dag.params),
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


def test_parameters_are_those_of_the_dag_and_no_task_has_a_copy(loaded):
    assert loaded["form"] == ["start", "end", "batch_ids", "ranges", "available_only"]
    assert set(loaded["params"]) == {"plan_batch", "process_batch", "process_replay", "report_batch"}
    assert not any(loaded["params"].values())


_ENGINE = """
import sys
from exactbatch.airflow import pipeline_dag
from pipelines.flights import flights
pipeline_dag(flights, engine=sys.argv[1])
print("airflow.providers.apache.spark.operators.spark_submit" in sys.modules)
"""


@pytest.mark.parametrize(("engine", "is_imported"), [("connect", "False"), ("spark-submit", "True")])
def test_a_dag_imports_the_provider_of_spark_only_for_spark_submit(tmp_path, engine, is_imported):
    done = run(_ENGINE, engine, AIRFLOW_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == is_imported


FORMATS = """
import sys
from exactbatch import *
for value in (
    Json("id int, tags text[] from 'a.tags', at timestamptz", epoch={"at": "ms"}),
    Json("id int from 'items[].id', note jsonb", encoding="gzip", documents="lines"),
    JsonSchema("id int", registry="http://r"),
    Avro(registry="http://r", fields="id bigint, note text"),
    Protobuf("id bigint from 'user.id'", registry="http://r"),
    Debezium("id int, at timestamp, big numeric(60,2)", "postgres", times="connect"),
    Debezium("id int", registry="http://r"),
    Flattened("id int, lsn bigint from '__lsn'"),
    Csv("id int, name text", delimiter=";"),
    Raw("id bigint"),
    Text("name"),
    Custom(print, "id int"),
    WithKeyAndHeaders(Json("id int"), key=Text("name"), headers={"trace": Raw("trace")}, all_headers="headers"),
):
    Pipeline(name="p", topics=("t",), value=value, sink=Append("public.t"))
upsert = Upsert("public.t", key=("id",))
Pipeline(name="p", topics=("t",), value=Json("id int"), sink=upsert, message_key=Json("id int"))
print({name.partition(".")[0] for name in sys.modules} & {*sys.argv[1:]})
"""


def test_a_pipeline_of_any_format_loads_no_large_library():
    large = [
        "pyspark",
        "kafka",
        "confluent_kafka",
        "pandas",
        "pyarrow",
        "numpy",
        "fastavro",
        "google",
        "msgspec",
    ]
    done = run(FORMATS, *large)
    assert done.stdout.strip() == "set()", done.stderr
