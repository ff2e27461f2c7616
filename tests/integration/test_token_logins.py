"""Logins to Kafka with tokens: both clients take those of one provider, and a bad one is a clear, retryable error."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.errors import TokenUnavailable
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from exactbatch.tokens.providers import forget_tokens
from support.batch_path import check_path
from support.batch_runner import BatchRunner, MakePipeline
from support.environment import HOME
from support.token_broker import TokenBroker, token_broker
from support.token_proxy import TokenProxy, token_proxy
from support.token_server import TokenServer, token_server
from support.topics import Topic, record


@pytest.fixture(scope="module")
def one_server() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


@pytest.fixture
def server(one_server: TokenServer) -> Iterator[TokenServer]:
    """The server of tokens, which each test may change; no token of an earlier test is used."""
    forget_tokens()
    one_server.issued.clear()
    before = vars(one_server).copy()
    yield one_server
    vars(one_server).update(before)
    forget_tokens()


@pytest.fixture(scope="module")
def broker(one_server: TokenServer) -> Iterator[TokenBroker]:
    with token_broker(HOME, f"tokens-{os.getpid()}", one_server) as broker:
        yield broker


@pytest.fixture
def topic(broker: TokenBroker) -> Topic:
    """Ten records in two partitions."""
    name = f"t{uuid.uuid4().hex[:12]}"
    admin = AdminClient(broker.plain)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    deadline = time.monotonic() + 30
    while name not in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    topic = Topic(name, broker.plain)
    topic.produce(*(record(n) for n in range(6)))
    topic.produce(*(record(n) for n in range(6, 10)), partition=1)
    return topic


@pytest.mark.parametrize("commit", ["batch", "partition"])
def test_a_batch_is_exact_with_tokens(
    spark: Any,
    connection: Any,
    database: str,
    server: TokenServer,
    broker: TokenBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
    commit: Any,
) -> None:
    settings = Settings(kafka=broker.by_token, postgres=database)
    check_path(BatchRunner(spark, connection, settings), make_pipeline(topic, commit=commit), topic.name)
    assert {tuple(form["scope"]) for form in server.issued} == {("topics",)}
    # One for the driver, and one for each Python worker of the executors, however many clients they open.
    assert 1 <= len(server.issued) <= 4


def test_a_read_outlives_its_tokens(server: TokenServer, broker: TokenBroker, topic: Topic) -> None:
    """The broker ends a connection whose token has expired, unless the client shows a new one in time (KIP-368)."""
    server.lifetime = 5
    reading = iter(
        read_range(OffsetRange(topic.name, 0, 0, 7, ""), broker.by_token, leader_epoch=None, timeout=20)
    )
    found = len(next(reading))
    deadline = time.monotonic() + 11
    while time.monotonic() < deadline:
        time.sleep(0.5)
    topic.produce(record(10))
    found += sum(len(records) for records in reading)
    assert found == 7
    assert len(server.issued) >= 3


def test_a_server_of_tokens_that_refuses_the_client_is_named(
    server: TokenServer, broker: TokenBroker, topic: Topic
) -> None:
    wrong = broker.by_token | {"sasl.oauthbearer.client.secret": "planted-wr0ng"}
    with pytest.raises(TokenUnavailable) as caught:
        KafkaBroker(wrong).partitions([topic.name])
    assert f"{server.address}/token answered HTTP status 401 (invalid_client: unknown client, or wro" in str(
        caught.value
    )
    assert "planted-wr0ng" not in str(caught.value)
    assert caught.value.retryable


def test_a_token_that_the_broker_refuses_is_the_tokens_fault(
    server: TokenServer, broker: TokenBroker, topic: Topic
) -> None:
    server.audience = "another"
    with pytest.raises(TokenUnavailable, match="does not accept the token of the provider 'oidc'") as caught:
        KafkaBroker(broker.by_token).partitions([topic.name])
    assert caught.value.retryable
    with pytest.raises(TokenUnavailable, match=r"\[0\].*does not accept the token of the provider"):
        list(read_range(OffsetRange(topic.name, 0, 0, 6, ""), broker.by_token, leader_epoch=None, timeout=3))
    server.audience = "kafka"
    assert KafkaBroker(broker.by_token).partitions([topic.name])  # with a new token


def test_a_server_of_tokens_that_is_down_is_named(server: TokenServer, broker: TokenBroker) -> None:
    away = broker.by_token | {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}
    with pytest.raises(TokenUnavailable, match="http://127.0.0.1:1/token does not answer: ConnectError"):
        KafkaBroker(away).partitions(["tokens"])


def test_a_function_of_the_user_makes_tokens(
    server: TokenServer,
    broker: TokenBroker,
    topic: Topic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "shop_tokens.py").write_text(
        "from exactbatch.tokens import Token\n\n\ndef mint(connection):\n"
        "    import time\n    return Token(connection['sasl.oauthbearer.scope'], time.time() + 60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = {name: value for name, value in broker.by_token.items() if not name.startswith("sasl.oauthbearer.")}
    own |= {"sasl.oauthbearer.method": "shop_tokens:mint", "sasl.oauthbearer.scope": server.token()}
    assert len(KafkaBroker(own).partitions([topic.name])) == 2
    assert server.issued == []


@pytest.fixture
def proxy(database: str, server: TokenServer, provider: str) -> Iterator[TokenProxy]:
    with token_proxy(database, provider, server.is_valid) as proxy:
        yield proxy


@pytest.fixture
def provider(server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A function in a module of the user's, which also executors find: it asks the server of tokens."""
    properties = {name: value for name, value in server.properties.items() if name.startswith("sasl.oauth")}
    (tmp_path / "job_tokens.py").write_text(
        "from exactbatch.tokens.oidc import request_oidc_token\n\n\n"
        f"def postgres(connection):\n    return request_oidc_token({properties!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "job_tokens:postgres"


@pytest.mark.parametrize("opener", [connect, connect_arrow])
def test_a_connection_to_postgres_has_a_token_for_a_password(
    server: TokenServer, proxy: TokenProxy, opener: Any
) -> None:
    for _ in range(3):
        with closing(opener(proxy.dsn, application="tests")) as connection, connection.cursor() as cursor:
            cursor.execute("select 1")
            assert cursor.fetchone()[0] == 1
    assert len(proxy.logins) >= 3
    assert len(set(proxy.logins)) == len(server.issued) == 1


@pytest.mark.parametrize("opener", [connect, connect_arrow])
def test_a_token_that_postgres_refuses_is_the_tokens_fault(
    server: TokenServer, proxy: TokenProxy, opener: Any
) -> None:
    server.audience = "another"
    with pytest.raises(
        TokenUnavailable, match="does not accept the token of the provider 'job_tokens:postgres'"
    ):
        opener(proxy.dsn, application="tests")
    server.audience = "kafka"
    opener(proxy.dsn, application="tests").close()  # with a new token
    assert len(proxy.refused) == 1
    assert len(server.issued) == 2


def test_a_batch_outlives_the_tokens_of_postgres(
    spark: Any,
    connection: Any,
    server: TokenServer,
    proxy: TokenProxy,
    settings: Settings,
    make_topic: Any,
    make_pipeline: MakePipeline,
    tmp_path: Path,
) -> None:
    """Tokens of some seconds, and connections that are opened all the time."""
    server.lifetime = 6
    topic = make_topic(2)
    topic.produce(*(record(n) for n in range(6)))
    topic.produce(*(record(n) for n in range(6, 10)), partition=1)
    spark.sparkContext.addPyFile(str(tmp_path / "job_tokens.py"))
    by_token = Settings(kafka=settings.kafka, postgres=proxy.dsn)
    with closing(connect(proxy.dsn, application="tests")) as own:
        check_path(BatchRunner(spark, own, by_token), make_pipeline(topic), topic.name)
    time.sleep(5)  # more than 80 % of the lifetime
    connect(proxy.dsn, application="tests").close()
    assert proxy.logins[-1] not in proxy.logins[:-1]
    assert proxy.refused == []
