"""Fixtures that several files of integration tests share."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from exactbatch import (
    Json,
    Pipeline,
    Upsert,
)
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.environment import HOME
from support.faults.proxy import Proxy
from support.logins import LOGIN
from support.replays import Replays
from support.roles import ROLES, Deployment
from support.scenarios import KINDS, PARTITIONS, VALUE, Play
from support.staged_batches import Batches, Database, MakeBatches
from support.token_broker import TokenBroker, token_broker
from support.token_proxy import TokenProxy, token_proxy
from support.token_server import TokenServer, forget_all_tokens, token_server
from support.topics import Topic, record, topic_maker
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


@pytest.fixture(scope="module")
def one_issuer() -> Iterator[tuple[TokenServer, Proxy]]:
    """A server of tokens, and the network in front of it."""
    with token_server() as server, Proxy(server.listens_at) as network:
        server.address = f"http://{network.address}"
        yield server, network


@pytest.fixture
def issuer(one_issuer: tuple[TokenServer, Proxy]) -> Iterator[TokenServer]:
    """The server of tokens, which each test may change; no token of an earlier test is used."""
    server = one_issuer[0]
    forget_all_tokens()
    server.issued.clear()
    before = vars(server).copy()
    yield server
    vars(server).update(before)
    forget_all_tokens()


@pytest.fixture
def issuer_network(one_issuer: tuple[TokenServer, Proxy]) -> Iterator[Proxy]:
    """The network in front of the server of tokens, which a test may disturb."""
    network = one_issuer[1]
    yield network
    network.heal()


@pytest.fixture(scope="module")
def token_kafka(one_issuer: tuple[TokenServer, Proxy]) -> Iterator[TokenBroker]:
    """A broker that takes tokens, and no passwords."""
    with token_broker(HOME, f"tokens-{os.getpid()}", one_issuer[0]) as broker:
        yield broker


@pytest.fixture
def make_token_topic(token_kafka: TokenBroker) -> MakeTopic:
    """Create a topic of that broker, as make_topic does."""
    return topic_maker(AdminClient(token_kafka.plain), token_kafka.plain)


@pytest.fixture
def token_topic(make_token_topic: MakeTopic) -> Topic:
    """Ten records in two partitions."""
    topic = make_token_topic(2)
    topic.produce(*(record(n) for n in range(6)))
    topic.produce(*(record(n) for n in range(6, 10)), partition=1)
    return topic


@pytest.fixture(scope="module")
def token_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for modules of users, which a server of Spark Connect may have on its path."""
    return tmp_path_factory.mktemp("providers")


@pytest.fixture
def token_provider(
    issuer: TokenServer, token_modules: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A function in a module of the user's, which executors find, too: it asks the server of tokens."""
    properties = {name: value for name, value in issuer.properties.items() if name.startswith("sasl.oauth")}
    module = token_modules / f"tokens_{uuid.uuid4().hex[:12]}.py"
    module.write_text(
        "from exactbatch.tokens.oidc import request_oidc_token\n\n\n"
        f"def postgres(connection):\n"
        f"    return request_oidc_token({properties | {'sasl.oauthbearer.scope': 'logins'}!r})\n"
    )
    monkeypatch.syspath_prepend(token_modules)
    spark.sparkContext.addPyFile(str(module))
    return f"{module.stem}:postgres"


@pytest.fixture
def token_postgres(database: str, issuer: TokenServer, token_provider: str) -> Iterator[TokenProxy]:
    """A Postgres whose logins are tokens."""
    with token_proxy(database, token_provider, issuer.is_valid) as proxy:
        yield proxy


@pytest.fixture
def by_token(token_kafka: TokenBroker, token_postgres: TokenProxy) -> Settings:
    """Settings with tokens for both."""
    return Settings(kafka=token_kafka.by_token, postgres=token_postgres.dsn)


@pytest.fixture
def token_world(
    spark: Any, connection: Any, token_postgres: TokenProxy, by_token: Settings
) -> Iterator[BatchRunner]:
    """Spark, and servers that take tokens; the database has a ledger."""
    with closing(connect(token_postgres.dsn, application="tests")) as own:
        yield BatchRunner(spark, own, by_token)
