"""The wheel: what it contains, and that it works in an environment that has nothing else."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from exactbatch.code_identity import code_identity
from exactbatch.local.child_process import accepts, find_port
from support.topics import record
from support.waiting import wait_for

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
BUILT_FROM = (
    "pyproject.toml",
    "requirements-executor.txt",
    "requirements.in",
    "requirements-local.in",
    "requirements-fast.in",
    "README.md",
    "LICENSE",
    "jobs",
    "docs",  # to which a link in jobs leads
)
DAG = """
import sys
import exactbatch
import process_batch
from exactbatch.airflow import pipeline_dag
import own_pipelines

assert exactbatch.__file__.startswith(sys.prefix)
dag = pipeline_dag(own_pipelines.flights, schedule="@hourly")
for name in ("process_batch", "process_replay"):
    assert dag.task_dict[name].application == process_batch.__file__
print(sorted(dag.task_dict))
"""
PIPELINES = """
from exactbatch import Append, Json, Pipeline

flights = Pipeline(name="flights", topics=("flights",), value=Json("id int"), sink=Append("public.flight"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools leaves folders in the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    run(UV, "build", "--quiet", "--wheel", "--out-dir", source / "dist", source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(
    scope="module",
    params=["packages of this environment", pytest.param("own packages", marks=pytest.mark.long)],
)
def installed(request, wheel, tmp_path_factory):
    """The bin folder of an environment that has the wheel, and either only the dependencies that it names, or,
    which takes seconds instead of minutes, the packages of the environment that runs the tests."""
    environment = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    install = (UV, "pip", "install", "--quiet", "--link-mode", "hardlink", "--python", python)
    if request.param == "own packages":
        run(*install, "--constraints", ROOT / "requirements.txt", wheel)
    else:
        run(*install, "--no-deps", wheel)
        # A .pth file in the folder named here is not read, so this checkout is not on the path.
        (packages,) = environment.glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return environment / "bin"


def run(*command: object, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without this checkout on its path."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), env=inherited | environment, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_wheel_contains_all_of_the_package_and_nothing_else(wheel):
    jobs = ROOT / "jobs"
    files = {
        str(path.relative_to(jobs))
        for path in (
            *(jobs / "exactbatch").rglob("*"),
            # A link, which rglob does not follow.
            *(jobs / "exactbatch" / "docs").glob("*.md"),
            *(
                page
                for folder in ("errors", "howto", "reference")
                for page in (jobs / "exactbatch" / "docs" / folder).glob("*.md")
            ),
            jobs / "exactbatch" / "docs" / "roles.sql",
            *jobs.glob("*.py"),
        )
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"
    assert {name for name in names if not name.startswith(metadata)} == files
    assert f"{metadata}licenses/LICENSE" in names
    for name in (
        "py.typed",
        "ledger/queries/plans.sql",
        "ledger/migrations/0001_ledger.sql",
        "local/ivy/kafka.xml",
        "local/ivy/kafka.sha256",
    ):
        assert f"exactbatch/{name}" in names


def test_the_command_runs(installed):
    assert "audit" in run(installed / "exactbatch", "--help").stdout
    assert "audit" in run(installed / "python", "-m", "exactbatch.cli", "--help").stdout


def test_the_wheel_is_the_same_code_as_the_checkout(installed):
    """An executor with the wheel accepts tasks of a driver with the checkout."""
    script = "from exactbatch.code_identity import code_identity; print(code_identity())"
    assert run(installed / "python", "-c", script).stdout.strip() == code_identity()


def test_the_wheel_explains_errors(installed):
    assert run(installed / "exactbatch", "explain", "OffsetsLost").stdout.startswith("# OffsetsLost\n")
    assert "create role" in run(installed / "exactbatch", "explain", "roles").stdout


@pytest.mark.parametrize("installed", [pytest.param("own packages", marks=pytest.mark.long)], indirect=True)
def test_the_extra_is_not_installed_unless_it_is_asked_for(installed):
    assert "exactbatch[local]" in run(installed / "exactbatch", "local", "up", status=42).stderr


def test_a_command_against_nothing_says_what_is_missing(installed, tmp_path):
    command = (installed / "exactbatch", "status", "own_pipelines:flights")
    assert "No module" not in (missing := run(*command, status=2).stderr)
    assert "own_pipelines" in missing
    (tmp_path / "own_pipelines.py").write_text(PIPELINES)
    assert "EXACTBATCH_KAFKA" in run(*command, status=42, PYTHONPATH=str(tmp_path)).stderr
    settings = {
        "EXACTBATCH_KAFKA": json.dumps({"bootstrap.servers": "127.0.0.1:1"}),
        "EXACTBATCH_POSTGRES": "host=127.0.0.1 port=1 dbname=nothing",
    }
    nobody = run(*command, status=1, PYTHONPATH=str(tmp_path), **settings).stderr
    assert "error: PostgresUnavailable: " in nobody


def test_a_dag_is_built_with_the_application_of_the_wheel(installed, tmp_path):
    (tmp_path / "own_pipelines.py").write_text(PIPELINES)
    done = run(
        installed / "python", "-c", DAG, PYTHONPATH=str(tmp_path), AIRFLOW_HOME=str(tmp_path / "airflow")
    )
    assert done.stdout.splitlines()[-1] == "['plan_batch', 'process_batch', 'process_replay', 'report_batch']"


BATCHES = """
from exactbatch import Append, Json, Pipeline

driver, server = (
    Pipeline(name=name, topics=(f"{name}_TOPIC",), value=Json("id int, name text"), sink=Append(f"public.{name}"))
    for name in ("driver", "server")
)
"""


@pytest.fixture(scope="module")
def installed_as_documented(wheel, tmp_path_factory):
    """The bin folder of an environment in which the resolver has chosen all packages, as `pip install` of the page."""
    environment = tmp_path_factory.mktemp("documented")
    run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--link-mode", "hardlink", "--python", python, wheel)
    return environment / "bin"


@contextlib.contextmanager
def connect_server(installed: Path, log: Path, **environment: str) -> Iterator[str]:
    """Start `exactbatch connect`; yield its URL."""
    port = find_port(None)
    command = [installed / "exactbatch", "connect", "--master", "local[2]", "--port", str(port)]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--conf", "spark.ui.enabled=false"],
            env=os.environ | environment,
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(lambda: server.poll() is not None or accepts(port))
        assert server.poll() is None, log.read_text()
        yield f"sc://localhost:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_batches_run_as_the_page_installs_them(installed_as_documented, make_topic, settings, tmp_path):
    installed = installed_as_documented
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    versions = {each.name: each.version for each in distributions(path=[str(packages)])}
    assert versions["pyspark"] == versions["pyspark-client"]
    suffix = tmp_path.name.lower()
    topics = {name: make_topic(2, f"{name}_{suffix}") for name in ("driver", "server")}
    for topic in topics.values():
        topic.produce(*map(record, range(20)))
    (tmp_path / "own_batches.py").write_text(BATCHES.replace("TOPIC", suffix))
    environment = {"PYTHONPATH": str(tmp_path), **settings.as_environment()}

    def exactbatch(*arguments: str, status: int = 0) -> str:
        done = run(installed / "exactbatch", *arguments, status=status, **environment)
        return done.stdout + done.stderr

    exactbatch("register", "own_batches:driver")
    exactbatch("register", "own_batches:server")
    assert '"rows": 20' in exactbatch("run", "own_batches:driver", "--master", "local[2]", "--json")
    with connect_server(installed, tmp_path / "server.log", **environment) as url:
        assert '"rows": 20' in exactbatch("run", "own_batches:server", "--master", url, "--json")
    for name in ("driver", "server"):
        exactbatch("audit", f"own_batches:{name}", "--values")

    # The page's command for a version without a client, and what installs the client over it.
    replace = (UV, "pip", "install", "--quiet", "--no-deps", "--python", installed / "python", "--reinstall")
    run(*replace, "pyspark-client==4.1.3")
    topics["driver"].produce(record(20))
    refused = exactbatch("run", "own_batches:driver", "--master", "local[2]", status=42)
    assert "are those of pyspark-client 4.1.3" in " ".join(refused.split())
    run(*replace, f"pyspark=={versions['pyspark']}")
    assert '"rows": 1' in exactbatch("run", "own_batches:driver", "--master", "local[2]", "--json")
