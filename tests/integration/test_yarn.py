"""Batches on YARN, launched as Airflow launches them and set up as docs/deploy.md says.

The containers have Java and Python; all else is in the archive and in the zip file of pipelines.
"""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from psycopg2.extensions import parse_dsn

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.airflow import Connections
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, Run
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support import airflow_runs
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.deploy_page import block, make_archive, with_real_paths, zip_pipelines
from support.topics import Topic, record
from support.waiting import wait_for
from support.yarn import Yarn, running_yarn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# What two small executors and a driver need.
SIZES: Final = {
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


@pytest.fixture(scope="module")
def executors() -> Path:
    return make_archive()


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with running_yarn(tmp_path_factory.mktemp("yarn")) as yarn:
        yield yarn


@pytest.fixture
def world(connection: Any, settings: Settings) -> BatchRunner:
    """The test's broker and database, without a Spark session of this process."""
    return BatchRunner(None, connection, settings)


@dataclass
class Site:
    """An Airflow worker that launches batches on YARN: its environment, and the code that it finds."""

    folder: Path
    world: BatchRunner
    launches: int = 0

    def launch(self, pipeline: Pipeline, **conf: str) -> int:
        """Plan a batch and process it as Airflow's task does; return its ID."""
        run = airflow_runs.Run(f"run-{self.launches}", dag_id=pipeline.name, task_id="process_batch")
        self.launches += 1
        batch_id = freeze_advance(
            self.world.connection, self.world.log, pipeline, origin="manual", run=Run(run.dag_id, run.run_id)
        )
        assert batch_id is not None
        ProcessBatchOperator(
            task_id="process_batch",
            connections=Connections(),
            pipeline=f"code_{pipeline.name}:pipeline",
            batch_id=str(batch_id),
            conf={"spark.log.level": "WARN", **SIZES, **conf},
        ).execute({"ti": run})
        return batch_id


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
        monkeypatch.syspath_prepend(code)
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
        staging = f"spark.yarn.stagingDir {yarn.folder.as_uri()}\n"
        (configuration / "spark-defaults.conf").write_text(defaults + staging)
        monkeypatch.setenv("SPARK_CONF_DIR", str(configuration))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        for name, connection in connections(world.settings, mode).items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        return Site(tmp_path, world)

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


def test_append_in_client_mode(site, world, make_topic, make_pipeline):
    topic = make_topic(2)
    load(topic)
    pipeline = make_pipeline(topic, max_rejects=2)
    site(pipeline).launch(pipeline)
    assert sorted(world.target(pipeline, "id")) == [(n,) for n in range(30)]
    assert world.is_exact(pipeline)
