"""`exactbatch new` on topics as teams have them: what it writes loads the whole topic, without editing."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from exactbatch import Pipeline
from exactbatch.cli.app import app
from exactbatch.formats import WithKeyAndHeaders
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.environment import JOBS
from support.realistic_topics import RealisticTopic, realistic_topics
from support.registry import Registry, registry_server

pytestmark = pytest.mark.slow

SAMPLED = 400  # of 3,000 records and more
TOPICS = realistic_topics()
DAG_BAG = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps({"dags": sorted(bag.dags), "errors": bag.import_errors}))
"""


@dataclass(frozen=True)
class Project:
    """A project of a user, which has nothing but what `new` writes."""

    folder: Path
    registry: Registry

    def pipeline(self, name: str) -> Pipeline:
        path = self.folder / "pipelines" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"pipelines_of_new_{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return getattr(module, name)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Project]:
    with registry_server() as registry:
        for topic in TOPICS:
            for schema_id, schema in topic.schemas.items():
                registry.has(schema_id, schema)
        yield Project(tmp_path_factory.mktemp("project"), registry)


@pytest.fixture
def command(settings, project, monkeypatch):
    """Run `exactbatch …` in the folder of the project."""
    monkeypatch.chdir(project.folder)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str):
        return CliRunner().invoke(app, list(arguments))

    return run


def send(topic: RealisticTopic, make_topic) -> str:
    """Create the topic and send its records: those of a key to one partition, in order."""
    made = make_topic(topic.partitions, **topic.config)
    producer = Producer({**made.properties, "linger.ms": 20, "log_level": 2})
    for number, (key, value) in enumerate(topic.pairs):
        producer.produce(made.name, value, key, partition=number % topic.partitions)
        producer.poll(0)
    assert producer.flush(60) == 0
    return made.name


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_the_pipeline_loads_the_whole_topic_without_a_reject(
    topic, make_topic, command, project, world, connection
):
    name = send(topic, make_topic)
    done = command(
        "new",
        topic.name,
        "--topic",
        name,
        "--records",
        str(SAMPLED),
        "--registry",
        project.registry.address,
        "--json",
    )
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["sampled"] < len(topic.pairs) / 2
    assert shown["broken"] == []
    assert len(shown["rows"]) == 10

    pipeline = project.pipeline(topic.name)
    types = {column.name: column.type for column in pipeline.value.columns}
    assert {column: types.get(column) for column in topic.types} == topic.types
    assert pipeline.traits.key_columns == topic.key

    with transaction(connection):
        Ledger(connection).registry.register(pipeline)
    world.settle(pipeline)
    batch = world.run(pipeline).batch
    assert (batch.status, batch.records, batch.rejected) == ("committed", len(topic.pairs), 0)
    assert world.is_exact(pipeline)
    values = pipeline.value.value if isinstance(pipeline.value, WithKeyAndHeaders) else pipeline.value
    if not topic.key:
        assert batch.rows == len(topic.pairs)
    assert len(values.columns) > 0
    stored = world.rows(f"select count(*) from public.{topic.name}")[0][0]
    assert stored == expected_rows(topic)


def expected_rows(topic: RealisticTopic) -> int:
    """How many rows the target has: every record, or every key whose last record is no delete."""
    if not topic.key:
        return len(topic.pairs)
    last = {}
    for key, value in topic.pairs:
        if value is None and topic.name == "customers":
            continue  # it follows a delete event
        event = None if value is None else json.loads(value)
        event = event["payload"] if event and "payload" in event else event
        is_delete = event is None or event.get("op") == "d" or event.get("__deleted") == "true"
        last[key] = None if is_delete else event
    return sum(event is not None for event in last.values())


def test_the_tests_pass_that_were_written(project):
    done = in_project(project, sys.executable, "-m", "pytest", "-q", "tests")
    assert done.returncode == 0, done.stdout
    assert f"{len(TOPICS)} passed" in done.stdout


def test_airflow_loads_the_dags_that_were_written(project, tmp_path):
    done = in_project(
        project, sys.executable, "-c", DAG_BAG, str(project.folder / "dags"), AIRFLOW_HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"dags": sorted(topic.name for topic in TOPICS), "errors": {}}


def test_ruff_would_not_change_what_was_written(project):
    for width in ("88", "110"):
        done = in_project(project, "ruff", "format", "--isolated", "--check", "--line-length", width, ".")
        assert done.returncode == 0, done.stdout
    assert in_project(project, "ruff", "check", "--isolated", ".").returncode == 0


def in_project(project: Project, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (project.folder, JOBS)))
    bin_ = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        command,
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": path, "PATH": bin_, **environment},
        capture_output=True,
        text=True,
    )
