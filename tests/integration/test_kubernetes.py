"""Executors as pods: a driver with docs/deploy/kubernetes/spark.yaml asks the API for them, and they run its batch.

The API is a stand-in, and a pod is a process of this machine. So these tests see what Spark asks for, that it is enough
for a batch, and what becomes of it; no cluster's rights, networks or images.
"""

import os
import sys
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
import yaml

from exactbatch.ledger import Ledger
from exactbatch.local.child_process import HOST
from exactbatch.postgres.connection import transaction
from support.bare_cluster import submit
from support.environment import DOCS, HOME
from support.kubernetes_api import KubernetesApi
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAMESPACE: Final = "airflow"
PARTITIONS: Final = 4
# A task that finds no file at STOP makes it, and then takes too long.
MODULE: Final = """
import os
import time

import pyarrow as pa

from exactbatch import Append, Custom, Json, Pipeline, Upsert

NAME = "%(name)s"


def decode(values):
    stop = os.environ.get("STOP")
    if stop:
        try:
            os.close(os.open(stop, os.O_CREAT | os.O_EXCL))
            time.sleep(60)
        except FileExistsError:
            pass
    texts = pa.array([str(os.getppid())] * len(values))
    return pa.RecordBatch.from_arrays([values.column("value_index"), texts], ["value_index", "place"]), {}


def doubled(rows):
    return rows.withColumn("amount", rows.amount * 2)


conf = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.memoryOverhead": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
append = Pipeline(
    name=NAME, topics=(NAME,), value=Custom(decode, "place text"), sink=Append(f"public.{NAME}"), spark_conf=conf
)
json = Json("id int, amount int")
upsert = Pipeline(name=NAME, topics=(NAME,), value=json, sink=Upsert(f"public.{NAME}", key=("id",)), spark_conf=conf)
transform = Pipeline(
    name=NAME,
    topics=(NAME,),
    value=json,
    transform=doubled,
    sink=Append(f"public.{NAME}"),
    spark_conf=conf,
)
"""
DRIVER: Final = {
    "metadata": {"name": "airflow-worker-0", "labels": {"exactbatch/role": "driver"}},
    "spec": {
        "serviceAccountName": "exactbatch-driver",
        "containers": [{"name": "worker", "image": "airflow:1"}],
    },
}


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind in spark.yaml, by name."""
    text = (DOCS / "deploy/kubernetes/spark.yaml").read_text()
    return {each["metadata"]["name"]: each for each in yaml.safe_load_all(text) if each["kind"] == kind}


@pytest.fixture
def api(tmp_path):
    api = KubernetesApi(tmp_path, HOME / "jars", NAMESPACE, DRIVER)
    yield api
    api.close()


@pytest.fixture
def run(api, world, make_topic, tmp_path, monkeypatch):
    """Run a batch of a pipeline of MODULE over the records of a new topic, with the documented configuration."""

    def run(name, records, **environment):
        topic = make_topic(PARTITIONS)
        for number, record in enumerate(records):
            topic.produce(record, partition=number % PARTITIONS)
        (module := tmp_path / f"of_{topic.name}.py").write_text(MODULE % {"name": topic.name})
        monkeypatch.syspath_prepend(tmp_path)
        pipeline = getattr(__import__(module.stem), name)
        with transaction(world.connection):
            Ledger(world.connection).registry.register(pipeline)
        files = manifests("ConfigMap")["exactbatch-spark"]["data"]
        (template := tmp_path / "executor.yaml").write_text(files["executor.yaml"])
        documented = "/etc/exactbatch/spark/executor.yaml"
        assert documented in files["spark-defaults.conf"]
        api.image = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(tmp_path),
            **environment,
        }
        done = submit(
            f"k8s://{api.url}",
            tmp_path,
            files["spark-defaults.conf"].replace(documented, str(template)),
            ["--pipeline", f"{module.stem}:{name}", "--batches", f"{pipeline.name}:{world.plan(pipeline)}:"],
            world.settings,
            tmp_path,
            POD_NAME=DRIVER["metadata"]["name"],
            POD_NAMESPACE=NAMESPACE,
            POD_IP=HOST,
        )
        assert done.returncode == 0, done.stdout
        assert world.is_exact(pipeline)
        return topic.name

    return run


def test_the_pods_are_those_that_the_manifests_and_their_policies_are_about(api, run, world):
    table = run("append", [b"x"] * 200)
    assert len(world.rows(f"select distinct place from {table}")) == 2  # both pods had tasks
    assert len(api.pods) == 2
    wait_for(lambda: api.deleted == api.pods.keys())  # by the driver, when it ended
    policies = manifests("NetworkPolicy")
    executors = policies["exactbatch-executor"]["spec"]["podSelector"]["matchLabels"]
    driver = policies["exactbatch-driver"]["spec"]["ingress"][0]["ports"][0]
    for pod in api.pods.values():
        [container] = pod["spec"]["containers"]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert executors.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["ownerReferences"][0]["name"] == "airflow-worker-0"
        assert pod["spec"]["serviceAccountName"] == "exactbatch-executor"
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}
        assert container["image"].startswith("exactbatch-executor:")
        host, _, port = environment["SPARK_DRIVER_URL"].rpartition("@")[2].partition(":")
        assert (host, driver["port"] <= int(port) <= driver["endPort"]) == (HOST, True)
        assert world.settings.kafka["sasl.password"] not in str(pod)


@pytest.mark.parametrize(
    ("pipeline", "rows"), [("upsert", [(n, n + 20) for n in range(20)]), ("transform", None)]
)
def test_an_upsert_and_a_transform_are_exact(run, world, pipeline, rows):
    records = [b'{"id": %d, "amount": %d}' % (n % 20, n) for n in range(40)]
    table = run(pipeline, records)
    expected = rows or sorted((n % 20, 2 * n) for n in range(40))
    assert world.rows(f"select id, amount from {table} order by 1, 2") == expected


def test_tasks_of_a_pod_that_is_lost_run_in_another(api, run, world, tmp_path):
    stop, lost = tmp_path / "stop", []

    def lose():
        wait_for(stop.exists)
        lost.append(next(iter(api.pods)))
        api.kill(lost[0])

    killer = Thread(target=lose)
    killer.start()
    table = run("append", [b"x"] * 200, STOP=str(stop))
    killer.join()
    assert len(api.pods) == 3  # another one was asked for
    assert world.rows(f"select count(*) from {table}") == [(200,)]
