"""Fixtures that several files of fault tests share."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Json, Pipeline, Tuning
from exactbatch.batch import job as batch_job
from exactbatch.batch.by_partition import partition_commit
from exactbatch.batch.engines import driver_engine
from exactbatch.batch.rows import decode
from exactbatch.batch.staging import reread
from exactbatch.compiled import availability
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.faults.answered_batches import (
    SINKS,
    AnsweredBatches,
    KnownIds,
    on_this_process,
    process,
    read_once,
)
from support.faults.answers import Answers
from support.faults.cases import Case
from support.faults.cluster import SparkCluster
from support.faults.drivers import BatchLauncher, load
from support.topics import Topic


@pytest.fixture
def make_case(
    stack: LocalStack, cluster: SparkCluster, database: str, make_topic: Callable[..., Topic], tmp_path: Path
) -> Callable[..., Case]:
    """A pipeline with a sink by its name, whose batches the cluster processes."""

    def make(sink: str, **changes: Any) -> Case:
        return Case(cluster, make_topic(2), database, tmp_path, sink, **changes)

    return make


@pytest.fixture
def world(spark: Any, connection: Any, settings: Settings, tmp_path: Path) -> Iterator[BatchLauncher]:
    """Drivers over the test's broker and database; none of them outlives the test."""
    world = BatchLauncher(spark, connection, settings, tmp_path)
    yield world
    for each in world.drivers:
        each.close()


@pytest.fixture
def make_loaded(
    make_topic: Callable[..., Topic], make_pipeline: Callable[..., Pipeline]
) -> Callable[..., Pipeline]:
    """A pipeline whose topic has two partitions with 30 good records and 2 bad ones."""

    def make(**changes: Any) -> Pipeline:
        topic = make_topic(2)
        load(topic)
        return make_pipeline(topic, value=Json("id int"), max_rejects=2, **changes)

    return make


@pytest.fixture
def answers(stack: LocalStack) -> Iterator[Answers]:
    with Answers((HOST, stack.postgres.port)) as answers:
        yield answers


@pytest.fixture
def case(
    answers: Answers,
    settings: Settings,
    database: str,
    connection: Any,
    kafka_log: KafkaBroker,
    make_topic: Callable[..., Topic],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> AnsweredBatches:
    # A process that has loaded compiled code uses it for ranges of any size, and these tests would depend on the order.
    monkeypatch.setenv(availability.VARIABLE, "off")
    monkeypatch.setattr(driver_engine, "batch_session", lambda spark, _pipeline: nullcontext(spark))
    monkeypatch.setattr(driver_engine, "launch_timeout", lambda *_: nullcontext())
    monkeypatch.setattr(driver_engine, "on_executors", on_this_process)
    for module in (decode, reread):
        monkeypatch.setattr(module, "read_range", read_once(module.read_range))
    for module in (batch_job, partition_commit):
        monkeypatch.setattr(module, "KafkaBroker", lambda _properties: KnownIds(kafka_log))
    topic = make_topic()
    behind = make_dsn(database, port=answers.port, sslmode="disable", gssencmode="disable")
    name = f"public.{topic.name}"
    pipeline = Pipeline(
        name=topic.name,
        topics=(topic.name,),
        max_rejects=100,
        tuning=Tuning(read_timeout="10 seconds", lock_timeout="10 seconds"),
        **{"value": Json("id int, name varchar(8)"), **SINKS[request.param](name)},
    )
    with transaction(connection):
        Ledger(connection).registry.register(pipeline)
    case = AnsweredBatches(answers, pipeline, topic, Settings(settings.kafka, behind), connection, kafka_log)
    process(case)()  # targets are there from now on
    return case
