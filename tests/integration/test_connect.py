"""Batches through a Spark Connect server: the same guarantees, whoever is killed in the middle."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from pyspark.sql.connect.client.retries import DefaultPolicy

from exactbatch import Custom, Pipeline, Tuning
from exactbatch.batch.engines import connect_engine
from exactbatch.batch.engines.connect_engine import ConnectEngine
from exactbatch.errors import ConfigurationError, TasksFailed
from exactbatch.local.stack import Connect
from exactbatch.settings import Settings
from support.batch_runner import MakeTopic
from support.connect_server import ConnectRunner, run_connect_server
from support.environment import JOBS, TESTS
from support.topics import Topic, record
from support.waiting import wait_for

SECRET = "s3cret-that-nobody-may-see"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the server's pages can show."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def server(events: Path) -> Iterator[Connect]:
    """A server with two slots."""
    written = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
    }
    with run_connect_server(conf=written) as server:
        yield server


@pytest.fixture
def world(server: Connect, connection: Any, settings: Settings) -> ConnectRunner:
    """The server, and the test's broker and database."""
    settings = Settings(
        kafka={**settings.kafka, "ssl.key.password": SECRET},
        postgres=make_dsn(settings.postgres, sslpassword=SECRET),
    )
    return ConnectRunner(server, connection, settings)


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    """A topic with 20 records in each of two partitions."""
    topic = make_topic(2)
    for partition in range(2):
        topic.produce(*(record(number) for number in range(20)), partition=partition)
    return topic


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def held(gate: Path) -> Custom:
    """A format that waits on the server until the file `gate` exists."""

    def decode(given: Any) -> Any:
        import json

        import pyarrow

        Path(f"{gate}.held").touch()
        while not gate.exists():
            time.sleep(0.02)
        values = [json.loads(value) for value in given.column("value").to_pylist()]
        rows = {
            "value_index": given.column("value_index"),
            "id": pyarrow.array([value["id"] for value in values], pyarrow.int32()),
            "name": pyarrow.array([value["name"] for value in values]),
        }
        return pyarrow.record_batch(rows), {}

    return Custom(decode, "id int, name text")


def in_the_middle(
    world: ConnectRunner, pipeline: Pipeline, batch_id: int, gate: Path, do: Callable[[], Any]
) -> Exception | None:
    """Process a batch, do something while the server decodes, and return how the batch ended."""
    ended: list[Exception | None] = []

    def process() -> None:
        try:
            world.process(pipeline, batch_id)
            ended.append(None)
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=process)
    thread.start()
    wait_for(Path(f"{gate}.held").exists)
    do()
    thread.join(60)
    assert len(ended) == 1
    return ended[0]


@pytest.mark.parametrize("commit", ["batch", "partition"])
def test_rows_rejects_and_replays_are_exact(world, events, topic, make_pipeline, commit):
    topic.produce(b"not JSON", record(20))
    pipeline = make_pipeline(topic, commit=commit, max_rejects=1)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (42, 41, 1)
    assert [log for log in events.iterdir() if str(batch.application_id) in log.name]
    topic.produce(*(record(number) for number in range(21, 30)), partition=1)
    world.run(pipeline)
    assert world.staging() == []
    assert world.is_exact(pipeline)
    assert not world.process(pipeline, batch.batch_id).wrote


@pytest.mark.long
def test_too_many_rejects_fail_the_batch_and_write_nothing(world, topic, make_pipeline):
    from exactbatch.errors import TooManyRejects

    topic.produce(b"not JSON")
    assert "offset 20" in world.refused(TooManyRejects, make_pipeline(topic))


@pytest.mark.long
def test_a_server_that_is_killed_in_the_middle_is_one_more_try(
    world, server, topic, make_pipeline, gate, monkeypatch
):
    monkeypatch.setattr(connect_engine, "_RETRIES", DefaultPolicy(max_retries=1))
    pipeline = make_pipeline(topic, value=held(gate))
    batch_id = world.plan(pipeline)
    error = in_the_middle(world, pipeline, batch_id, gate, server.kill)
    assert isinstance(error, TasksFailed), error
    assert "does not answer" in str(error)
    gate.touch()
    server.start()
    assert world.process(pipeline, batch_id).batch.rows == 40
    assert world.is_exact(pipeline)


@pytest.mark.long
def test_a_server_that_is_restarted_runs_no_job_a_second_time(world, server, topic, make_pipeline, gate):
    """The client finds the server again while it still asks: the new server refuses what the old one was asked."""
    pipeline = make_pipeline(topic, value=held(gate))
    batch_id = world.plan(pipeline)

    def restart() -> None:
        server.kill()
        server.start()

    error = in_the_middle(world, pipeline, batch_id, gate, restart)
    assert isinstance(error, TasksFailed), error
    assert "was restarted while it ran the batch" in str(error)
    gate.touch()
    assert world.process(pipeline, batch_id).batch.rows == 40
    assert world.is_exact(pipeline)


@pytest.mark.long
def test_a_client_that_is_killed_leaves_nothing_that_could_commit(
    world, server, topic, make_pipeline, tmp_path
):
    """The second try finds the same ranges, whatever the server still runs for the first."""
    pipeline = make_pipeline(topic)
    (tmp_path / "of_a_client.py").write_text(f"from exactbatch import *\npipeline = {pipeline!r}\n")
    path = os.pathsep.join(map(str, (tmp_path, JOBS, TESTS)))
    for moment in ("job.after_stage", "publish.before_commit"):
        client = subprocess.run(
            [sys.executable, "-m", "exactbatch.cli", "run", "of_a_client:pipeline", "--master", server.url],
            env={
                **os.environ,
                **world.settings.as_environment(),
                "PYTHONPATH": path,
                "EXACTBATCH_FAILPOINTS": f"{moment}=kill",
            },
            capture_output=True,
            text=True,
        )
        assert client.returncode == -signal.SIGKILL, client.stderr
        assert SECRET not in client.stdout + client.stderr
    assert world.run(pipeline).batch.rows == 40
    assert world.is_exact(pipeline)
    assert world.staging() == []


@pytest.mark.long
def test_a_task_that_airflow_ends_leaves_nothing_on_the_server(world, topic, make_pipeline, gate):
    pipeline = make_pipeline(topic, value=held(gate))
    batch_id = world.plan(pipeline)
    error = in_the_middle(world, pipeline, batch_id, gate, lambda: world.engine.interrupt())
    assert isinstance(error, TasksFailed), error
    gate.touch()
    assert world.process(pipeline, batch_id).batch.rows == 40
    assert world.is_exact(pipeline)


@pytest.mark.long
def test_a_batch_that_gets_no_slot_is_given_up(
    world, topic, make_pipeline, gate, server, settings, connection
):
    """Another batch holds both slots of the server."""
    holding = make_pipeline(topic, value=held(gate))
    waiting = make_pipeline(
        topic,
        name=f"{topic.name}_waits",
        sink=replace(holding.sink, target="public.waits"),
        tuning=Tuning(launch_timeout="30 seconds"),
    )
    other = ConnectRunner(server, connection, settings)
    other.engine = ConnectEngine(server.url)
    waits = world.plan(waiting)

    def wait() -> None:
        try:
            with pytest.raises(TasksFailed, match="Spark has run no task for 30 s"):
                world.process(waiting, waits)
        finally:
            gate.touch()

    assert in_the_middle(other, holding, other.plan(holding), gate, wait) is None
    world.process(waiting, waits)
    assert world.is_exact(waiting)


def test_a_server_with_other_code_is_refused(world, topic, make_pipeline, monkeypatch):
    monkeypatch.setattr(connect_engine, "code_identity", lambda: "9.9 (other)")
    pipeline = make_pipeline(topic)
    assert "and this client 9.9 (other)" in world.refused(ConfigurationError, pipeline)
    monkeypatch.undo()
    monkeypatch.setattr(connect_engine.pyspark, "__version__", "4.9.9")
    assert "this client is PySpark 4.9.9" in world.refused(ConfigurationError, pipeline)


@pytest.mark.long
@pytest.mark.parametrize(
    "conf", [{"spark.sql.session.timeZone": "Nowhere/Land"}, {"spark.sql.shuffle.partitions": "many"}]
)
def test_a_setting_that_the_server_refuses_is_named(world, topic, make_pipeline, conf):
    message = world.refused(ConfigurationError, make_pipeline(topic, spark_conf=conf))
    (name,) = conf
    assert name in message


@pytest.mark.long
def test_a_server_that_keeps_a_daemon_of_each_batch_is_refused(world, topic, make_pipeline, monkeypatch):
    topic.produce(record(1))
    monkeypatch.setattr(
        connect_engine, "ARTIFACT_ISOLATION", "spark.sql.adaptive.enabled"
    )  # this one is true
    with pytest.raises(ConfigurationError, match=r"leave a Python daemon on it\. Nothing was written"):
        world.run(make_pipeline(topic))


def test_a_wrong_token_is_refused_and_not_shown(world, server, topic, make_pipeline):
    world.engine = ConnectEngine(server.url.replace("token=", "token=not-"))
    message = world.refused(ConfigurationError, make_pipeline(topic))
    assert "refuses the token" in message
    assert server.token not in message
    assert server.token not in repr(world.engine)


@pytest.mark.long
def test_no_server_is_worth_another_try(world, topic, make_pipeline, monkeypatch):
    monkeypatch.setattr(connect_engine, "_RETRIES", DefaultPolicy(max_retries=1))
    world.engine = ConnectEngine("sc://localhost:1/;token=x")
    assert "sc://localhost:1 does not answer" in world.refused(TasksFailed, make_pipeline(topic))


@pytest.mark.long
def test_secrets_are_in_no_log_and_on_no_page(world, server, topic, make_pipeline, events):
    """Kafka's and Postgres' secrets and the token, of a batch that succeeds and of one that fails."""

    def fail(_: Any) -> Any:
        raise ValueError("of the function")

    failing = Custom(fail, "id int, name text")
    world.run(make_pipeline(topic))
    with pytest.raises(ConfigurationError, match="of the function"):
        world.run(make_pipeline(topic, name=f"{topic.name}_fails", value=failing))
    wait_for(lambda: "mapInArrow" in _text(events) or "MapInArrow" in _text(events))
    shown = _text(events) + server.log_file.read_text()
    for secret in (SECRET, server.token):
        assert secret not in shown
        assert secret.encode().hex() not in shown


def _text(folder: Path) -> str:
    return "".join(file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file())


def test_workers_are_forked_by_one_daemon_and_end_with_their_task(world, server, topic, make_pipeline):
    """Each session would otherwise start a daemon that the server keeps, and each worker would keep old code."""
    import psutil

    for number in range(3):
        topic.produce(record(100 + number))
        world.run(make_pipeline(topic))

    def commands() -> list[list[str]]:
        found = []
        for child in psutil.Process(server.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                found.append(child.cmdline())
        return found

    wait_for(
        lambda: len([each for each in commands() if "exactbatch.batch.engines.worker_daemon" in each]) == 1
    )
