"""A cluster whose machines have only Java, Spark and Python gets everything else as docs/deploy.md says."""

import sys
from pathlib import Path
from typing import Final

import pytest

from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.bare_cluster import BareCluster, submit
from support.deploy_page import block, make_archive, with_real_paths, zip_pipelines

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PARTITIONS: Final = 4
MODULE: Final = '''
"""A pipeline whose rows say where they were decoded."""

import os
import sys

import psycopg2
import pyarrow as pa

import exactbatch
from exactbatch import Append, Custom, Pipeline


def decode(values):
    count = len(values)
    places = [sys.executable, exactbatch.__file__, psycopg2.__file__, __file__, os.getcwd()]
    columns = [values.column("value_index"), *([each] * count for each in places)]
    names = ["value_index", "python", "package", "dependency", "module", "folder"]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names), {}


places = Pipeline(
    name="%(topic)s",
    topics=("%(topic)s",),
    value=Custom(decode, "python text, package text, dependency text, module text, folder text"),
    sink=Append("public.%(topic)s"),
    spark_conf={"spark.executor.memory": "512m", "spark.scheduler.minRegisteredResourcesRatio": "1.0"},
)
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = BareCluster(tmp_path_factory.mktemp("bare"))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def executors() -> Path:
    return make_archive()


def test_bare_workers_run_a_batch_from_the_archive_and_none_without_it(
    cluster, executors, world, make_topic, tmp_path, monkeypatch
):
    topic = make_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        topic.produce(*[b"x"] * 50, None, partition=partition)
    package = tmp_path / "code" / "placed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(MODULE % {"topic": topic.name})
    pipelines = zip_pipelines(tmp_path, package)
    monkeypatch.syspath_prepend(tmp_path / "code")
    from placed import places

    with transaction(world.connection):
        Ledger(world.connection).registry.register(places)
    batch_id = world.plan(places)
    arguments = ["--pipeline", "placed:places", "--batches", f"places:{batch_id}:"]
    defaults = with_real_paths(
        block("Spark standalone", "properties"),
        {
            "/srv/exactbatch/executors.tar.gz": executors,
            "/srv/exactbatch/pipelines.zip": pipelines,
            "/opt/airflow/bin/python": sys.executable,
        },
    )

    done = submit(cluster.master, cluster.folder, defaults, arguments, world.settings, tmp_path / "code")
    assert done.returncode == 0, done.stdout
    assert world.is_exact(places)
    rows = world.rows(f"select python, package, dependency, module, folder from {topic.name}")
    assert len(rows) == 50 * PARTITIONS
    for python, package_file, dependency, module, folder in rows:
        for file in (python, package_file, dependency):
            assert file.startswith(f"{folder}/"), (file, folder)
            assert "/environment/" in file
        assert "pipelines.zip" in module
    assert {Path(folder).relative_to(cluster.folder).parts[0] for *_, folder in rows} == {"one", "two"}

    # Without the archive there is nothing that could run a task.
    topic.produce(b"x")
    arguments = ["--pipeline", "placed:places", "--batches", f"places:{world.plan(places)}:"]
    bare = defaults.replace("./environment/bin/python", "/usr/bin/python3.11")
    refused = submit(
        cluster.master,
        cluster.folder,
        f"{bare}\nspark.task.maxFailures 1\n",
        arguments,
        world.settings,
        tmp_path / "code",
    )
    assert refused.returncode == 42, refused.stdout
    assert "must be a Python with exactbatch" in refused.stdout
