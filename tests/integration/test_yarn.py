"""Batches on YARN, launched as Airflow launches them and set up as docs/deploy.md says.

The containers have Java and Python; all else is in the archive and in the zip file of pipelines.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark
import pytest
from airflow.sdk.exceptions import AirflowException
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch import Pipeline, Upsert
from exactbatch.airflow import Connections
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.ledger import DagRun, Ledger
from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support import airflow_runs
from support.batch_runner import BatchRunner
from support.deploy_page import block, make_archive, with_real_paths, zip_pipelines
from support.faults.held import held
from support.topics import Topic, record
from support.waiting import wait_for
from support.yarn import Yarn, running_yarn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODES: Final = ("client", "cluster")
SETTINGS: Final = {
    "spark.yarn.maxAppAttempts": "1",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": HOST,
    "spark.executorEnv.SPARK_LOCAL_IP": HOST,
    # All that Spark can tell.
    "spark.log.level": "INFO",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",  # so that a secret in it would be found
}
# By their names, pipelines whose topics have what load() appends, and the ids of their rows.
KINDS: Final[dict[str, tuple[Callable[[str], dict[str, Any]], list[int]]]] = {
    "append": (lambda _: {}, list(range(30))),
    "upsert": (lambda name: {"sink": Upsert(name, key=("id",))}, list(range(30))),
    "transform": (lambda _: {"transform": "select * from records where id % 2 = 0"}, list(range(0, 30, 2))),
}


@pytest.fixture(scope="module")
def executors() -> Path:
    return make_archive()


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with running_yarn(tmp_path_factory.mktemp("yarn")) as yarn:
        yield yarn


@pytest.fixture
def settings(stack: LocalStack, database: str) -> Settings:
    """Settings that have both passwords, and no file with one."""
    dsn = {**parse_dsn(database), "password": stack.postgres.password}
    del dsn["passfile"]
    return Settings(kafka=dict(stack.kafka_properties), postgres=make_dsn(**dsn))


@pytest.fixture
def world(connection: Any, settings: Settings) -> BatchRunner:
    """The test's broker and database, without a Spark session of this process."""
    return BatchRunner(None, connection, settings)


@dataclass
class Site:
    """An Airflow worker that launches batches on YARN."""

    world: BatchRunner
    events: Path

    def launch(self, pipeline: Pipeline, action: str = "", **conf: str) -> None:
        """Plan a batch and process it as Airflow's task does. The executors do an action before they commit."""
        run = airflow_runs.Run("run", dag_id=pipeline.name, task_id="process_batch")
        batch_id = freeze_advance(
            self.world.connection,
            self.world.log,
            pipeline,
            origin="manual",
            run=DagRun(run.dag_id, run.run_id),
        )
        assert batch_id is not None
        failpoint = f"stage.before_copy_commit={action}" if action else ""
        ProcessBatchOperator(
            task_id="process_batch",
            connections=Connections(),
            pipeline=f"code_{pipeline.name}:pipeline",
            batches=f'["{pipeline.name}:{batch_id}:"]',
            conf={**SETTINGS, "spark.executorEnv.EXACTBATCH_FAILPOINTS": failpoint, **conf},
        ).execute({"ti": run})


@pytest.fixture
def site(
    yarn: Yarn,
    executors: Path,
    world: BatchRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Site]:
    """Set up a site for pipelines: site(pipeline, mode="client")."""

    def make(*pipelines: Pipeline, mode: str = "client") -> Site:
        code = tmp_path / "code"
        code.mkdir()
        for pipeline in pipelines:
            # A pipeline's repr is the Python that makes it.
            module = f"from exactbatch import *\npipeline = {pipeline!r}\n"
            (code / f"code_{pipeline.name}.py").write_text(module)
        configuration = tmp_path / "conf"
        configuration.mkdir()
        defaults = with_real_paths(
            block("YARN", "properties"),
            {
                "hdfs:///apps/exactbatch/executors.tar.gz": executors.as_uri(),
                "hdfs:///apps/exactbatch/pipelines.zip": zip_pipelines(tmp_path, *code.iterdir()).as_uri(),
                "hdfs:///apps/exactbatch/jars": f"local:{Path(pyspark.__file__).parent / 'jars'}",
                "/opt/airflow/bin/python": sys.executable,
                "2g": "512m",
            },
        )
        if mode == "cluster":
            defaults = defaults.replace("spark.pyspark.driver.python", "#")
        events = yarn.folder / "events"
        events.mkdir(exist_ok=True)
        folders = f"spark.yarn.stagingDir {yarn.folder.as_uri()}\nspark.eventLog.dir {events.as_uri()}\n"
        (configuration / "spark-defaults.conf").write_text(defaults + folders)
        monkeypatch.setenv("SPARK_CONF_DIR", str(configuration))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
        monkeypatch.setenv("SPARK_LOCAL_IP", HOST)
        monkeypatch.delenv("PYTHONPATH", raising=False)  # Spark hands it to the containers
        for name, connection in connections(world.settings, mode).items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        return Site(world, events)

    return make


def connections(settings: Settings, mode: str) -> dict[str, dict[str, Any]]:
    """Airflow's connections of a site."""
    dsn = parse_dsn(settings.postgres)
    names = {"host": "host", "schema": "dbname", "login": "user", "password": "password"}
    postgres = {name: dsn.pop(of_libpq) for name, of_libpq in names.items() if of_libpq in dsn}
    return {
        "kafka_default": {"conn_type": "kafka", "extra": dict(settings.kafka)},
        "postgres_default": {"conn_type": "postgres", **postgres, "extra": dsn},
        "spark_default": {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": mode}},
    }


def load(topic: Topic) -> None:
    """Append 30 good records and 2 bad ones in two partitions."""
    topic.produce(*(record(n, "x") for n in range(20)), b"bad")
    topic.produce(*(record(n, "x") for n in range(20, 30)), b"worse", partition=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_whose_executor_is_killed_is_exact_and_keeps_its_secrets(
    yarn, site, world, make_topic, make_pipeline, tmp_path, capfd, mode, kind
):
    changes, ids = KINDS[kind]
    topic = make_topic(2)
    load(topic)
    pipeline = make_pipeline(topic, max_rejects=2, **changes(f"public.{topic.name}"))
    airflow = site(pipeline, mode=mode)
    with held(partial(airflow.launch, pipeline), tmp_path / "gate") as batch:
        wait_for(lambda: len(batch.waiting()) == 2)
        arguments = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
        found = [file for file in find_files(yarn.folder) if has_secret(file.read_bytes(), world.settings)]
        exposed = [file for file in found if others_read(file, yarn.folder)]
        yarn.executors()[0].kill()
        wait_for(lambda: len(batch.waiting()) == 3)  # another one does its task again
        batch.result()
    assert sorted(world.rows(f"select id from {topic.name}")) == [(number,) for number in ids]
    rejects = world.rows('select partition, "offset" from exactbatch.rejected_record')
    assert sorted(rejects) == [(0, 20), (1, 10)]
    with transaction(world.connection):
        assert [
            each.next_offset for each in Ledger(world.connection).plans.read_stored_offsets(pipeline)
        ] == [21, 11]
    assert world.is_exact(pipeline)

    printed = "".join(capfd.readouterr())  # the lines of spark-submit, as the task's log has them
    assert "application_" in printed
    # YARN's own files of credentials have what the driver was given.
    assert {file.suffix or file.name for file in found} == (
        {".tokens", "container_tokens"} if mode == "cluster" else set()
    )
    assert exposed == []
    assert not any(has_secret(text.encode(), world.settings) for text in (*arguments, printed))


def test_a_driver_that_fails_in_cluster_mode_fails_the_task(site, world, make_topic, make_pipeline):
    topic = make_topic(2)
    load(topic)
    pipeline = make_pipeline(topic)  # without any rejects
    with pytest.raises(AirflowException, match="finished with failed status"):
        site(pipeline, mode="cluster").launch(pipeline)
    assert world.everything(pipeline)["coverage"] == []


def find_files(folder: Path) -> list[Path]:
    """What servers and containers have written; the links lead to what was unpacked."""
    return [
        each
        for each in folder.rglob("*")
        if each.is_file() and not each.is_symlink() and "executors.tar.gz" not in each.parts
    ]


def has_secret(content: bytes, settings: Settings) -> bool:
    passwords = settings.kafka["sasl.password"], parse_dsn(settings.postgres)["password"]
    return any(each.encode() in content for each in passwords)


def others_read(file: Path, folder: Path) -> bool:
    """True if another account that may enter `folder` can read a file in it."""
    parents = file.relative_to(folder).parents
    return bool(file.stat().st_mode & 0o004) and all(
        (folder / each).stat().st_mode & 0o001 for each in parents[:-1]
    )
