"""Airflow 2 runs batches by a BashOperator, as docs/deploy.md shows, and refuses exactbatch.airflow.

`make test-airflow VERSION=2.11.2` sets AIRFLOW_2, the folder of an environment that has that Airflow and no exactbatch.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.local.topics import create_topic, send
from exactbatch.settings import Settings
from support.environment import DOCS, JOBS
from support.one_airflow import register

pytestmark = pytest.mark.timeout(1500)
BIN = Path(os.environ["AIRFLOW_2"]) / "bin"
PIPELINE = Pipeline(name="flights", topics=("flights",), value=Json("id int"), sink=Append("public.flight"))


@pytest.fixture(scope="module")
def settings(stack):
    return Settings(kafka=stack.kafka_properties, postgres=stack.postgres_dsn)


@pytest.fixture(scope="module")
def run_dag(settings, tmp_path_factory):
    """Run the page's DAG once, without retries, and return the output of `airflow dags test`."""
    folder = tmp_path_factory.mktemp("airflow_2")
    (folder / "dags").mkdir()
    (folder / "my_pipelines.py").write_text(
        f"from exactbatch import Append, Json, Limits, Pipeline, Tuning\nflights = {PIPELINE!r}\n"
    )
    (code,) = re.findall(
        r"```python\n((?:(?!```).)*BashOperator.*?)```", (DOCS / "deploy.md").read_text(), re.DOTALL
    )
    for written, here in (
        ("/opt/exactbatch/bin", str(Path(sys.executable).parent)),
        ("spark://spark-master:7077", "local[2]"),
        ('"retries": 3', '"retries": 0'),
    ):
        assert code.count(written) == 1
        code = code.replace(written, here)
    (folder / "dags" / "flights.py").write_text(code)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": f"{folder}{os.pathsep}{JOBS}",
    }

    def run(of: Settings = settings) -> str:
        done = subprocess.run(
            [BIN / "airflow", "dags", "test", "flights"],
            env={**environment, **of.as_environment()},
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    subprocess.run([BIN / "airflow", "db", "migrate"], env=environment, check=True, capture_output=True)
    create_topic(settings.kafka, "flights")
    register(settings, PIPELINE)
    return run


def _rows(settings: Settings) -> int:
    results = audit(PIPELINE, settings)
    assert results.is_exact, results
    return results.rows


def test_a_bash_operator_commits_a_batch_and_succeeds_if_there_is_nothing_new(run_dag, settings):
    send(settings.kafka, "flights", [json.dumps({"id": n}).encode() for n in range(100)])
    said = run_dag()
    assert "Command exited with return code 0" in said, said
    assert _rows(settings) == 100
    said = run_dag()
    assert "Nothing new." in said, said
    assert "Command exited with return code 0" in said
    assert _rows(settings) == 100


def test_a_retryable_error_ends_with_exit_status_1(run_dag, settings):
    said = run_dag(replace(settings, kafka={"bootstrap.servers": "127.0.0.1:1"}))
    assert "KafkaUnavailable" in said, said
    assert "non-zero exit code 1." in said
    assert _rows(settings) == 100


def test_a_terminal_error_ends_with_exit_status_42(run_dag, settings):
    send(settings.kafka, "flights", [b"not json"])
    said = run_dag()
    assert "TooManyRejects" in said, said
    assert "non-zero exit code 42." in said
    assert _rows(settings) == 100


def test_exactbatch_airflow_is_refused_in_one_line():
    done = subprocess.run(
        [BIN / "python", "-c", "import exactbatch.airflow"],
        env={**os.environ, "PYTHONPATH": str(JOBS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: found Airflow 2.11.2, expected 3.0 or newer. To run batches in Airflow 2, call "
        "`exactbatch run` in a BashOperator: `exactbatch explain deploy` shows how."
    )
