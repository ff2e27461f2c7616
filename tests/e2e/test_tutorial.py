"""docs/tutorial.md, as it is written, in a fresh folder; then the life of the Airflow that it has started."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from exactbatch.local import LocalStack
from exactbatch.local.airflow_client import AirflowClient
from exactbatch.local.child_process import wait_until
from support.environment import DOCS, HOME, ROOT
from support.jvm import quick_spark
from support.page_blocks import Command, File, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = steps_of(DOCS / "tutorial.md")
LAST = len(STEPS) - 1  # stops the servers


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with what a fresh checkout has for a user; its servers are stopped at the end."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("dags", "plugins", "jobs/pipelines"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".local").mkdir()
    (folder / ".local" / "jars").symlink_to(HOME / "jars")  # `make demo` has downloaded them
    yield folder
    LocalStack(folder / ".local").down(delete=True)


@pytest.fixture(scope="module")
def shell(checkout):
    """Run a command of the page in the checkout, as a shell does in which its virtual environment is active."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EXACTBATCH_", "AIRFLOW_", "PYTEST_"))
    }
    environment |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(checkout / "jobs"),  # what the editable installation of a checkout does
        "SPARK_SUBMIT_OPTS": quick_spark(HOME),
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, cwd=checkout, env=environment, capture_output=True, text=True, timeout=600
        )

    return run


@pytest.fixture(scope="module")
def stack(checkout) -> LocalStack:
    return LocalStack(checkout / ".local")


@pytest.fixture(scope="module")
def done(checkout, shell):
    """The tutorial, carried out up to its last step."""
    for step in STEPS[:LAST]:
        carry_out(step, checkout, shell)


def carry_out(step: File | Command, checkout: Path, shell) -> None:
    if isinstance(step, File):
        (checkout / step.name).write_text(step.content)
        return
    answer = shell(step.text)
    missing = step.missing(answer.stdout + answer.stderr)
    assert missing is None, f"$ {step.text}\nexpected: {missing}\nfound:\n{answer.stdout}{answer.stderr}"
    fails = any("error:" in line or "would be rejected" in line for line in step.output)
    assert (answer.returncode != 0) == fails, f"$ {step.text}\n{answer.stdout}{answer.stderr}"


def test_the_tutorial_does_what_it_says(done, stack):
    airflow = AirflowClient(stack.api_server)
    assert airflow.dags() == {"flights": True, "orders": False}
    assert "success" in {run.state for run in airflow.runs("orders")}
    assert airflow.broken_files() == []
    page = airflow.request("GET", "/dags/orders/tasks")
    assert {task["task_id"] for task in page["tasks"]} >= {"plan_batch", "process_batch", "report_batch"}


def test_a_part_that_died_starts_again_and_the_others_go_on(done, stack, shell, checkout):
    """With a new DAG, its pool, and a file that cannot be imported."""
    (checkout / "dags" / "narrow.py").write_text(
        "from exactbatch.airflow import pipeline_dag\n"
        "from dataclasses import replace\n"
        "from pipelines.orders import orders\n"
        "import pipelines.orders\n"
        'pipelines.orders.narrow = replace(orders, name="narrow")\n'
        'dag = pipeline_dag(pipelines.orders.narrow, replay_pool="narrow_replay")\n'
    )
    (checkout / "dags" / "broken.py").write_text("from airflow.sdk import DAG\nimport nothing_of_that_name\n")
    password = stack.api_server.password
    api, scheduler, processor = (part.pid for part in stack.airflow_parts)
    children = psutil.Process(scheduler).children(recursive=True)
    assert children
    os.kill(scheduler, signal.SIGKILL)
    assert shell("exactbatch local status").returncode == 3

    up = shell("exactbatch local up --airflow")
    assert up.returncode == 0, up.stderr
    assert "broken.py" in up.stderr
    assert "No module named 'nothing_of_that_name'" in up.stderr
    assert "DAG narrow (paused)" in up.stdout
    now = [part.pid for part in stack.airflow_parts]
    assert (now[0], now[2]) == (api, processor)
    assert now[1] not in (None, scheduler)
    assert not any(child.is_running() for child in children)
    assert shell("exactbatch local status").returncode == 0
    pools = AirflowClient(stack.api_server).request("GET", "/pools")["pools"]
    assert "narrow_replay" in {pool["name"] for pool in pools}

    again = json.loads(shell("exactbatch local up --airflow --json").stdout)
    assert again["kafka_properties"] is not None
    assert again["postgres_dsn"] is not None
    assert again["airflow"]["password"] == password
    assert [each["file"] for each in again["airflow"]["import_errors"]] == ["broken.py"]
    assert [part.pid for part in stack.airflow_parts] == now


def test_down_ends_all_processes(done, stack, shell, checkout):
    assert (stack.folder / "airflow" / "passwords.json").stat().st_mode & 0o777 == 0o600
    carry_out(STEPS[LAST], checkout, shell)
    # The driver of the Spark server ends a moment after the JVM.
    wait_until(lambda: not processes_in(stack.folder), 15)
    assert processes_in(stack.folder) == []


def processes_in(folder: Path) -> list[list[str]]:
    """The command lines of the processes whose working directory is in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder.resolve()):
                found.append(process.cmdline())
    return found
