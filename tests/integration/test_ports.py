"""Which ports a driver with a local master opens: the network reaches none of them, and no port obeys a stranger."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.commands import start_command
from support.environment import HOME
from support.jvm import quick_spark
from support.listening import listening
from support.topics import record
from support.waiting import wait_for


@pytest.fixture
def held(settings, make_topic, make_pipeline, tmp_path, monkeypatch):
    """Start `exactbatch run` with Spark properties; return the ports that its batch has open after staging."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", quick_spark(HOME))
    gate, started = tmp_path / "gate", []

    def start(**spark_conf: str) -> set[tuple[str, int]]:
        topic = make_topic()
        topic.produce(*(record(number) for number in range(5)))
        pipeline = make_pipeline(topic, spark_conf={"spark.driver.memory": "512m", **spark_conf})
        process = start_command(
            settings, tmp_path, "run", pipeline, failpoints=f"job.after_stage=hold:{gate}"
        )
        started.append(process)
        wait_for(lambda: Path(f"{gate}.held").exists() or process.poll() is not None)
        return listening(process.pid)

    yield start
    gate.touch()
    for process in started:
        _, told = process.communicate(timeout=240)
        assert process.returncode == 0, told


def obeys(spark: Any, host: str, port: int) -> bool:
    """True if a driver answers a message of another Spark application, which lacks the driver's secret."""
    environment = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().rpcEnv()
    answer = environment.asyncSetupEndpointRefByURI(f"spark://MapOutputTracker@{host}:{port}")
    for _ in range(100):
        if answer.isCompleted():
            return bool(answer.value().get().isSuccess())
        time.sleep(0.1)
    return False


def has_pages(port: int) -> bool:
    """True if Spark's pages are on a port."""
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=20)  # a redirect; only Spark's pages speak HTTP
    except httpx.HTTPError:
        return False
    return True


def test_a_local_driver_listens_on_loopback_without_pages_and_obeys_no_stranger(held, spark):
    ports = held()
    assert len(ports) >= 3  # of the Python gateway, of messages, of blocks
    assert {address for address, _ in ports} == {"127.0.0.1"}
    assert not any(has_pages(port) for _, port in ports)
    assert not any(obeys(spark, "127.0.0.1", port) for _, port in ports)
    own = spark.sparkContext.getConf()
    assert obeys(spark, own.get("spark.driver.host"), int(own.get("spark.driver.port")))


def test_the_properties_of_a_pipeline_take_precedence(held):
    ports = held(**{"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.driver.bindAddress": "0.0.0.0"})
    assert any(has_pages(port) for _, port in ports)
    assert len({address for address, _ in ports}) > 1
