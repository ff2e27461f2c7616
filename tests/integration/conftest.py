"""Fixtures that several files of integration tests share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from exactbatch import (
    Json,
    Pipeline,
    Upsert,
)
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.logins import LOGIN
from support.replays import Replays
from support.roles import ROLES, Deployment
from support.scenarios import KINDS, PARTITIONS, VALUE, Play
from support.staged_batches import Batches, Database, MakeBatches
from support.topics import Topic
from support.upserts import MakeUpsert


@pytest.fixture
def world(spark: Any, connection: Any, settings: Settings) -> BatchRunner:
    """Spark, and the test's broker and database."""
    return BatchRunner(spark, connection, settings)


@pytest.fixture
def empty(database: str) -> Iterator[Any]:
    """A connection to a database without a ledger."""
    connection = connect(database, application="tests", timeout=10)
    yield connection
    connection.close()


@pytest.fixture
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is gone is an error soon, where a test waits for nothing else."""
    monkeypatch.setattr("exactbatch.kafka.broker._SETTLE", 0.5)


@pytest.fixture
def replays(world: BatchRunner) -> Replays:
    return Replays(world)


@pytest.fixture
def make_upsert(make_pipeline: MakePipeline) -> MakeUpsert:
    def make(topic: Topic, version: str | None = None, **changes: Any) -> Pipeline:
        sink = Upsert(f'public."{topic.name}"', key=("id",), version=version)
        value = Json("id int, name text, version int")
        # A tombstone has no version.
        key = None if version else Json("id int")
        return make_pipeline(topic, **{"sink": sink, "value": value, "message_key": key, **changes})

    return make


@pytest.fixture
def db(connection: Any) -> Database:
    return Database(connection)


@pytest.fixture
def batches(connection: Any) -> MakeBatches:
    def make(columns: str, sink: Any, **changes: Any) -> Batches:
        pipeline = Pipeline(name="p", topics=("t",), value=Json(columns), sink=sink, **changes)
        return Batches(connection, pipeline)

    return make


@pytest.fixture
def deployment(database: str, settings: Settings) -> Iterator[Deployment]:
    deployment = Deployment(database, dict(settings.kafka))
    deployment.execute(ROLES)
    for role in ("owner", "job", "reader", "reporter"):
        deployment.execute(
            f"do $$ begin if to_regrole('test_{role}') is null then "
            f"create role test_{role} {LOGIN} in role exactbatch_{role}; end if; end $$"
        )
    deployment.execute("create schema shop; grant usage, create on schema shop to exactbatch_job")
    return deployment


@pytest.fixture
def play(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Callable[[str], Play]:
    def make(kind: str) -> Play:
        topic = make_topic(PARTITIONS)
        sink = KINDS[kind].sink(f'public."{topic.name}"')
        changes = {"value": VALUE, "max_rejects": 100, **KINDS[kind].changes}
        return Play(world, topic, make_pipeline(topic, sink=sink, **changes), KINDS[kind])

    return make
