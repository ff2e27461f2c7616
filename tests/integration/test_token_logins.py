"""Logins to Kafka with tokens: both clients take those of one provider, and a bad one is a clear, retryable error."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from exactbatch import Pipeline, ToTopic
from exactbatch.errors import KafkaUnavailable, TokenUnavailable
from exactbatch.forwarding import producer
from exactbatch.forwarding.forward import find_stream, forward_results
from exactbatch.kafka import timestamps
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.kafka.timestamps import first_before
from exactbatch.local.stack import Connect
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from support.batch_path import check_path
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.connect_server import ConnectRunner, run_connect_server
from support.faults.proxy import Slow
from support.forwarded import check_once_in_order, committed, standing_rows
from support.token_broker import TokenBroker
from support.token_proxy import TokenProxy
from support.token_server import TokenServer, forget_all_tokens
from support.topics import Topic, record
from support.waiting import wait_for


@pytest.mark.parametrize("commit", ["batch", "partition"])
def test_a_batch_is_exact_with_tokens(
    spark: Any,
    connection: Any,
    database: str,
    issuer: TokenServer,
    token_kafka: TokenBroker,
    token_topic: Topic,
    make_pipeline: MakePipeline,
    commit: Any,
) -> None:
    settings = Settings(kafka=token_kafka.by_token, postgres=database)
    check_path(
        BatchRunner(spark, connection, settings), make_pipeline(token_topic, commit=commit), token_topic.name
    )
    assert {tuple(form["scope"]) for form in issuer.issued} == {("topics",)}
    # One for the driver, and one for each Python worker of the executors, however many clients they open.
    assert 1 <= len(issuer.issued) <= 4


def test_both_clients_send_the_extensions_that_name_a_cluster(
    token_kafka: TokenBroker, token_topic: Topic
) -> None:
    """As Confluent Cloud needs them (RFC 7628, section 3.1): name=value between bytes 1."""
    named = token_kafka.by_token | {
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1"
    }

    def read() -> list[Any]:
        return list(
            read_range(OffsetRange(token_topic.name, 0, 0, 6, ""), named, leader_epoch=None, timeout=20)
        )

    for ask in (lambda: KafkaBroker(named).partitions([token_topic.name]), read):
        for sent in (b"\1logicalCluster=lkc-1\1", b"\1identityPoolId=pool-1\1"):
            token_kafka.network.inject(Slow(10**9), when=sent)
            assert ask()
            assert token_kafka.network.fired.is_set(), sent
            token_kafka.network.heal()


def test_a_read_outlives_its_tokens(
    issuer: TokenServer, token_kafka: TokenBroker, token_topic: Topic
) -> None:
    """The broker ends a connection whose token has expired, unless the client shows a new one in time (KIP-368)."""
    issuer.lifetime = 5
    reading = iter(
        read_range(
            OffsetRange(token_topic.name, 0, 0, 7, ""), token_kafka.by_token, leader_epoch=None, timeout=20
        )
    )
    found = len(next(reading))
    deadline = time.monotonic() + 11
    while time.monotonic() < deadline:
        time.sleep(0.5)
    token_topic.produce(record(10))
    found += sum(len(records) for records in reading)
    assert found == 7
    assert len(issuer.issued) >= 3


def test_a_server_of_tokens_that_refuses_the_client_is_named(
    issuer: TokenServer, token_kafka: TokenBroker, token_topic: Topic
) -> None:
    wrong = token_kafka.by_token | {"sasl.oauthbearer.client.secret": "planted-wr0ng"}
    with pytest.raises(TokenUnavailable) as caught:
        KafkaBroker(wrong).partitions([token_topic.name])
    assert f"{issuer.address}/token answered HTTP status 401 (invalid_client: unknown client, or wro" in str(
        caught.value
    )
    assert "planted-wr0ng" not in str(caught.value)
    assert caught.value.retryable


def test_a_token_that_the_broker_refuses_is_the_tokens_fault(
    issuer: TokenServer, token_kafka: TokenBroker, token_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timestamps, "_SEARCH_TIMEOUT", 3.0)
    issuer.audience = "another"
    with pytest.raises(TokenUnavailable, match="does not accept the token of the provider 'oidc'") as caught:
        KafkaBroker(token_kafka.by_token).partitions([token_topic.name])
    assert caught.value.retryable
    with pytest.raises(TokenUnavailable, match=r"\[0\].*does not accept the token of the provider"):
        list(
            read_range(
                OffsetRange(token_topic.name, 0, 0, 6, ""), token_kafka.by_token, leader_epoch=None, timeout=3
            )
        )
    with pytest.raises(TokenUnavailable, match=r"\[0\].*does not accept the token of the provider"):
        first_before(
            token_kafka.by_token, OffsetRange(token_topic.name, 0, 0, 6, ""), datetime(2000, 1, 1, tzinfo=UTC)
        )
    issuer.audience = "kafka"
    assert KafkaBroker(token_kafka.by_token).partitions([token_topic.name])  # with a new token


def test_a_server_of_tokens_that_is_down_is_named(issuer: TokenServer, token_kafka: TokenBroker) -> None:
    away = token_kafka.by_token | {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}
    with pytest.raises(TokenUnavailable, match="http://127.0.0.1:1/token does not answer: ConnectError"):
        KafkaBroker(away).partitions(["tokens"])


def test_a_function_of_the_user_makes_tokens(
    issuer: TokenServer,
    token_kafka: TokenBroker,
    token_topic: Topic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "shop_tokens.py").write_text(
        "from exactbatch.tokens import Token\n\n\ndef mint(connection):\n"
        "    import time\n    return Token(connection['sasl.oauthbearer.scope'], time.time() + 60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = {
        name: value
        for name, value in token_kafka.by_token.items()
        if not name.startswith("sasl.oauthbearer.")
    }
    own |= {"sasl.oauthbearer.method": "shop_tokens:mint", "sasl.oauthbearer.scope": issuer.token()}
    assert len(KafkaBroker(own).partitions([token_topic.name])) == 2
    assert issuer.issued == []


@pytest.mark.parametrize("opener", [connect, connect_arrow])
def test_a_connection_to_postgres_has_a_token_for_a_password(
    issuer: TokenServer, token_postgres: TokenProxy, opener: Any
) -> None:
    for _ in range(3):
        with (
            closing(opener(token_postgres.dsn, application="tests")) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("select 1")
            assert cursor.fetchone()[0] == 1
    assert len(token_postgres.logins) >= 3
    assert len(set(token_postgres.logins)) == len(issuer.issued) == 1


@pytest.mark.parametrize("opener", [connect, connect_arrow])
def test_a_token_that_postgres_refuses_is_the_tokens_fault(
    issuer: TokenServer, token_postgres: TokenProxy, opener: Any
) -> None:
    issuer.audience = "another"
    with pytest.raises(
        TokenUnavailable, match="does not accept the token of the provider 'tokens_.*:postgres'"
    ):
        opener(token_postgres.dsn, application="tests")
    issuer.audience = "kafka"
    opener(token_postgres.dsn, application="tests").close()  # with a new token
    assert len(token_postgres.refused) == 1
    assert len(issuer.issued) == 2


def test_a_batch_outlives_the_tokens_of_postgres(
    token_world: BatchRunner,
    issuer: TokenServer,
    token_postgres: TokenProxy,
    settings: Settings,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
) -> None:
    """Tokens of some seconds, and connections that are opened all the time."""
    issuer.lifetime = 6
    forget_all_tokens()  # that of token_world's connection
    topic = make_topic(2)
    topic.produce(*(record(n) for n in range(6)))
    topic.produce(*(record(n) for n in range(6, 10)), partition=1)
    by_token = Settings(kafka=settings.kafka, postgres=token_postgres.dsn)
    check_path(
        BatchRunner(token_world.spark, token_world.connection, by_token), make_pipeline(topic), topic.name
    )
    time.sleep(5)  # more than 80 % of the lifetime
    connect(token_postgres.dsn, application="tests").close()
    assert token_postgres.logins[-1] not in token_postgres.logins[:-1]
    assert token_postgres.refused == []


@pytest.fixture(scope="module")
def connect_server(token_modules: Path) -> Iterator[Connect]:
    """A server of Spark Connect that finds the users' modules."""
    with run_connect_server([token_modules]) as server:
        yield server


def test_a_spark_connect_server_logs_in_with_tokens(
    token_world: BatchRunner,
    connect_server: Connect,
    issuer: TokenServer,
    token_postgres: TokenProxy,
    token_topic: Topic,
    make_pipeline: MakePipeline,
) -> None:
    world = ConnectRunner(connect_server, token_world.connection, token_world.settings)
    check_path(world, make_pipeline(token_topic), token_topic.name)
    assert {tuple(form["scope"]) for form in issuer.issued} == {("topics",), ("logins",)}
    # Those of this process, which plans and publishes, and those of the server's workers.
    assert len(set(token_postgres.logins)) >= 2
    assert token_postgres.refused == []


@pytest.fixture
def forwarding(token_topic: Topic, make_token_topic: MakeTopic, make_pipeline: MakePipeline) -> Pipeline:
    """A pipeline whose results go back to a topic."""
    return make_pipeline(token_topic, forward=ToTopic(make_token_topic(2).name, keyed_by="id"))


def find_results(token_kafka: TokenBroker, pipeline: Pipeline) -> list[Any]:
    """Return what a consumer of the results sees."""
    assert pipeline.forward is not None
    return committed(token_kafka.plain, pipeline.forward.topic)


def test_results_are_forwarded_with_tokens(
    token_world: BatchRunner,
    issuer: TokenServer,
    token_kafka: TokenBroker,
    token_topic: Topic,
    forwarding: Pipeline,
) -> None:
    issuer.lifetime = 5
    forget_all_tokens()  # that of token_world's connection
    pipeline = forwarding
    token_world.run(pipeline)
    issued = len(issuer.issued)
    time.sleep(5)
    connection, settings = token_world.connection, token_world.settings
    assert forward_results(connection, settings, pipeline).sent == 10
    assert len(issuer.issued) > issued
    token_topic.produce(*(record(n) for n in range(10, 16)))
    token_world.run(pipeline)
    assert forward_results(connection, settings, pipeline).sent == 6
    messages = find_results(token_kafka, pipeline)
    check_once_in_order(messages, 16)
    assert sorted(json.loads(value or b"")["id"] for _, value in standing_rows(messages)) == list(range(16))


def test_a_forwarder_whose_token_the_broker_refuses_says_so_and_the_next_one_sends(
    token_world: BatchRunner, issuer: TokenServer, token_kafka: TokenBroker, forwarding: Pipeline
) -> None:
    token_world.run(forwarding)
    forget_all_tokens()
    issuer.audience = "another"
    with pytest.raises(TokenUnavailable, match="does not accept the token of the provider 'oidc'") as caught:
        forward_results(token_world.connection, token_world.settings, forwarding)
    assert caught.value.retryable
    issuer.audience = "kafka"
    assert forward_results(token_world.connection, token_world.settings, forwarding).sent == 10
    check_once_in_order(find_results(token_kafka, forwarding), 10)


def test_a_producer_whose_token_the_broker_refuses_names_the_provider(
    token_world: BatchRunner, issuer: TokenServer, forwarding: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forwarder has asked the broker before, with a token that was good then."""
    monkeypatch.setattr(producer, "TRANSACTION_TIMEOUT", 5.0)
    stream, _ = find_stream(token_world.connection, forwarding)
    forget_all_tokens()
    issuer.audience = "another"
    with pytest.raises(TokenUnavailable, match="does not accept the token of the provider 'oidc'"):
        producer.ResultProducer(
            token_world.settings.kafka, stream, compression="none", max_message_bytes=1_000_000
        )


def test_a_pipeline_begins_where_a_group_is_with_tokens(
    token_world: BatchRunner, token_topic: Topic, make_pipeline: MakePipeline
) -> None:
    def commits() -> bool:  # a new broker has no coordinator for a moment
        with suppress(KafkaUnavailable):
            token_world.log.commit_group("shop", {(token_topic.name, 0): 2, (token_topic.name, 1): 3})
            return True
        return False

    wait_for(commits, timeout=60)
    pipeline = make_pipeline(token_topic, start="group:shop")
    assert token_world.run(pipeline).batch.rows == 5
    assert [row[0] for row in token_world.target(pipeline, "id")] == [2, 3, 4, 5, 9]
