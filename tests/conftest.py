"""Real servers for the tests: one Kafka broker, one Postgres and one Spark session for the whole run."""

import fcntl
import gc
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from confluent_kafka.admin import AdminClient
from psycopg2.extensions import make_dsn
from xdist.scheduler.loadfile import LoadFileScheduling

from exactbatch import Append, Json, Pipeline, Tuning
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.local import LocalStack
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.databases import create_ledger_template, execute_alone
from support.environment import HOME, LONG, TESTS
from support.jvm import quick_kafka, quick_spark
from support.postgres_versions import TESTED, close_public, stacks_with
from support.readers import READERS, read_with
from support.stacks import new_stack
from support.topics import Topic, topic_maker
from support.user_statements import let_tests_use_the_path_of_the_login

# SIGTERM ends a run like Ctrl-C, so that it stops its servers.
signal.signal(signal.SIGTERM, signal.default_int_handler)

let_tests_use_the_path_of_the_login()

# Importing Airflow creates this folder, by default in the user's home.
os.environ.setdefault("AIRFLOW_HOME", str(HOME / "airflow"))

# `make test` tries the same examples each time, `make test-long` new ones.
hypothesis.settings.register_profile("exactbatch", derandomize=not LONG, deadline=None)
# tests/mutants.py only needs to know that a test fails: it does not shrink the example.
hypothesis.settings.register_profile(
    "unshrunk",
    derandomize=True,
    phases=set(hypothesis.Phase) - {hypothesis.Phase.shrink, hypothesis.Phase.explain},
)
hypothesis.settings.load_profile("exactbatch")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are marked as long, except in the long form."""
    if not LONG:
        long = [each for each in items if each.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [each for each in items if each not in long]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting all imported modules again and again."""
    gc.collect()
    gc.freeze()


class _ByFile(LoadFileScheduling):
    """A file runs on one worker; the end-to-end tests run on one worker, too, because they share an Airflow."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/e2e" if nodeid.startswith("tests/e2e/") else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Let `pytest -n 4` distribute whole files."""
    return _ByFile(config, log)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock: two workers that look for free ports at the same moment find the same ones."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "ports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_brokers(request: pytest.FixtureRequest) -> None:
    """Make all brokers of this run start fast, also those that other processes start."""
    if not all(each.nodeid.startswith(("tests/unit", "tests/pipelines")) for each in request.session.items):
        os.environ["KAFKA_OPTS"] = quick_kafka(HOME)


@pytest.fixture(scope="session", autouse=True)
def _postgres_version() -> Iterator[None]:
    """Let the stacks of this run have the Postgres of EXACTBATCH_TEST_POSTGRES, if it is set."""
    with stacks_with(TESTED) if TESTED else nullcontext():
        yield


@pytest.fixture(scope="session")
def stack() -> Iterator[LocalStack]:
    """Kafka and Postgres for this test run; tests that stop a server start it again."""
    stack = new_stack("test")
    try:
        with _one_at_a_time():
            stack.up()
        if TESTED:
            close_public(stack, TESTED)
        yield stack
    finally:
        stack.down(delete=True)


@pytest.fixture(scope="module")
def own_stack() -> Iterator[LocalStack]:
    """A broker that tests can stop, kill and truncate without disturbing other tests."""
    stack = new_stack("broker")
    try:
        with _one_at_a_time():
            stack.broker.configure({}, None)
            stack.broker.start()
        yield stack
    finally:
        stack.down(delete=True)


@pytest.fixture(scope="session")
def admin(stack: LocalStack) -> AdminClient:
    """An admin client of the broker."""
    return AdminClient(dict(stack.kafka_properties))


@pytest.fixture
def make_topic(make_topic_once: Callable[..., Topic]) -> Callable[..., Topic]:
    """Create a topic with a unique name: make_topic(partitions=4, **config)."""
    return make_topic_once


@pytest.fixture(scope="session")
def make_topic_once(stack: LocalStack, admin: AdminClient) -> Callable[..., Topic]:
    """The same as make_topic, for fixtures that many tests share."""

    return topic_maker(admin, stack.kafka_properties)


@pytest.fixture(scope="session")
def ledger_template(stack: LocalStack) -> str:
    """The name of a database with a ledger. To copy it takes less time than to run all migrations."""
    return create_ledger_template(stack.postgres_dsn)


@pytest.fixture
def database(stack: LocalStack, request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of a database of this test: empty, or with a ledger if the test asks for `connection`."""
    name = f"d{uuid.uuid4().hex[:12]}"
    with_ledger = "connection" in request.fixturenames
    template = f" template {request.getfixturevalue('ledger_template')}" if with_ledger else ""
    execute_alone(stack.postgres_dsn, f"create database {name}{template}")
    yield make_dsn(stack.postgres_dsn, dbname=name)
    execute_alone(stack.postgres_dsn, f"drop database if exists {name} with (force)")


@pytest.fixture
def settings(stack: LocalStack, database: str) -> Settings:
    """Settings for the test's broker and database."""
    return Settings(kafka=dict(stack.kafka_properties), postgres=database)


@pytest.fixture
def kafka_log(settings: Settings) -> KafkaBroker:
    """The test's broker."""
    return KafkaBroker(settings.kafka, settle=1)


@pytest.fixture
def connection(database: str) -> Iterator[Any]:
    """A connection to the test's database, which has a ledger."""
    connection = connect(database, application="tests", timeout=10)
    migrate(connection)
    yield connection
    connection.close()


@pytest.fixture
def make_pipeline(connection: Any) -> Callable[..., Pipeline]:
    """Register a pipeline over a topic: make_pipeline(topic, max_rejects=1, …)."""

    def make(topic: Topic, **changes: Any) -> Pipeline:
        pipeline = Pipeline(
            name=topic.name,
            topics=(topic.name,),
            value=Json("id int, name text"),
            sink=Append(f'public."{topic.name}"'),
            tuning=Tuning(read_timeout="10 seconds", lock_timeout="10 seconds"),
        )
        pipeline = replace(pipeline, **changes)
        with transaction(connection):
            # With a name, a test has two pipelines over one topic.
            Ledger(connection).registry.register(pipeline, share_topics="name" in changes)
        return pipeline

    return make


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each of the two ways to read from Kafka in this process."""
    reader: str = request.param
    read_with(monkeypatch, reader)
    return reader


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session with two task slots, which retries a failed task once."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # An error ends a worker: a daemon that has imported exactbatch forks the next one quickly.
    path = [str(TESTS), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2, 2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.daemon.module", "support.warm_daemon")
        .config("spark.driver.extraJavaOptions", quick_spark(HOME))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
