"""TLS and SCRAM to Kafka: one configuration for both clients, and what is wrong with it is said in time."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from exactbatch import Pipeline
from exactbatch.audit.audit import audit
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, ExactbatchError, KafkaUnavailable, ReadFailed
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner, MakePipeline
from support.certificates import Authority
from support.environment import HOME
from support.secure_broker import KEY_PASSWORD, MECHANISMS, PASSWORD, SecureBroker, secure_broker
from support.topics import Topic, record

WRONG_PASSWORD: Final = "planted-wr0ng-pa55word"
SECONDS: Final = 2
# How long the clients try, so that a test does not take the usual five seconds.
SOON: Final = {"socket.connection.setup.timeout.ms": SECONDS * 1000}
LATEST: Final = SECONDS + 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Path:
    """The certificate of an authority that has issued nothing here."""
    return Authority(folder, "stranger").certificate


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[SecureBroker]:
    with secure_broker(HOME, f"secure-{os.getpid()}", Authority(folder, "authority")) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(broker: SecureBroker) -> Topic:
    """Ten records in two partitions."""
    admin = AdminClient(broker.plain)
    admin.create_topics([NewTopic("secure", 2, 1)])["secure"].result(30)
    deadline = time.monotonic() + 30
    while "secure" not in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    topic = Topic("secure", broker.plain)
    topic.produce(*(record(n) for n in range(6)))
    topic.produce(*(record(n) for n in range(6, 10)), partition=1)
    return topic


def check_path(world: BatchRunner, pipeline: Pipeline) -> None:
    """Plan, batch, replay, audit and the group for lag tools, with the properties of `world` alone."""
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows) == (10, 10)
    request = ReplayRequest(ranges=(RequestedRange(pipeline.topics[0], 0, 2, 5),))
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.rows == 3
    assert sorted(row[0] for row in world.target(pipeline, "id")) == list(range(10))
    results = audit(pipeline, world.settings)
    assert results.is_exact
    assert len(results.partitions) == 2
    stored = {(pipeline.topics[0], partition): end for partition, end in ((0, 6), (1, 4))}
    world.log.commit_group("exactbatch.secure", stored)
    assert world.log.group_offsets("exactbatch.secure", pipeline.topics) == stored


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_batch_is_exact_over_sasl_ssl_with_scram(
    spark: Any,
    connection: Any,
    database: str,
    broker: SecureBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
    mechanism: str,
) -> None:
    settings = Settings(kafka=broker.scram(mechanism), postgres=database)
    commit = "partition" if mechanism.endswith("256") else "batch"
    check_path(BatchRunner(spark, connection, settings), make_pipeline(topic, commit=commit))


def test_a_batch_is_exact_over_ssl_with_a_client_certificate(
    spark: Any,
    connection: Any,
    database: str,
    broker: SecureBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
) -> None:
    settings = Settings(kafka=broker.by_certificate, postgres=database)
    check_path(BatchRunner(spark, connection, settings), make_pipeline(topic, sql="select * from records"))


def test_the_command_line_takes_it_from_the_environment(
    connection: Any,
    database: str,
    broker: SecureBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pipeline = make_pipeline(topic)
    settings = Settings(kafka=broker.scram(), postgres=database)
    (tmp_path / "pipeline_over_tls.py").write_text(
        f"from exactbatch import Append, Json, Limits, Pipeline\nsecure = {pipeline!r}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(app, ["plan", "pipeline_over_tls:secure", "--json"])
    assert shown.exit_code == 0, shown.output
    ranges = json.loads(shown.stdout)["ranges"]
    assert sorted((each["partition"], each["until_offset"]) for each in ranges) == [(0, 6), (1, 4)]
    assert json.dumps(PASSWORD)[1:-1] not in shown.output

    monkeypatch.setenv("EXACTBATCH_KAFKA", json.dumps(broker.scram(sasl_password=WRONG_PASSWORD) | SOON))
    refused = CliRunner().invoke(app, ["plan", "pipeline_over_tls:secure", "--json"])
    assert refused.exit_code == 42, refused.output
    assert "sasl.password" in refused.output
    assert WRONG_PASSWORD not in refused.output


def without(properties: dict[str, Any], *prefixes: str) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if not name.startswith(prefixes)}


def wrong(name: str, broker: SecureBroker, stranger: Path) -> dict[str, Any]:
    """Client properties with something wrong."""
    return (
        SOON
        | {
            "password": broker.scram(sasl_password=WRONG_PASSWORD),
            "user": broker.scram(sasl_username="nobody"),
            "mechanism": broker.scram("PLAIN"),
            "authority": broker.scram(ssl_ca_location=str(stranger)),
            "no authority": without(broker.scram(), "ssl.ca."),
            "host": broker.by_address(broker.scram()),
            "no file": broker.scram(ssl_ca_location="/nowhere/authority.pem"),
            "key's password": broker.by_certificate | {"ssl.key.password": WRONG_PASSWORD},
            "no certificate": without(broker.by_certificate, "ssl.certificate.", "ssl.key."),
            "TLS for a plain listener": broker.scram() | broker.plain,
            "a plain client": without(broker.scram(), "ssl.", "sasl.", "security."),
        }[name]
    )


WRONG: Final = [
    ("password", ConfigurationError, "sasl.username and sasl.password"),
    ("user", ConfigurationError, "sasl.username and sasl.password"),
    ("mechanism", ConfigurationError, "sasl.mechanism"),
    ("authority", ConfigurationError, "ssl.ca.location"),
    ("no authority", ConfigurationError, "ssl.ca.location"),
    ("host", ConfigurationError, "the host in bootstrap.servers"),
    ("no file", ConfigurationError, "ssl.ca.location"),
    ("key's password", ConfigurationError, "ssl.key.location"),
    ("no certificate", KafkaUnavailable, "bad certificate"),
    # Whether librdkafka guesses that the listener is a plain one depends on how soon it is hung up on.
    ("TLS for a plain listener", KafkaUnavailable, "SSL_HANDSHAKE"),
    ("a plain client", KafkaUnavailable, "security properties"),
]

# A message states one of these facts, once.
FACTS: Final = (
    "do not accept each other",
    "rejects the Kafka client properties",
    "client properties do not work on",
    "does not answer",
    "sent nothing",
)


@pytest.mark.parametrize(("name", "error", "said"), WRONG)
def test_planning_says_in_time_what_is_wrong(
    broker: SecureBroker, topic: Topic, stranger: Path, name: str, error: type[ExactbatchError], said: str
) -> None:
    properties = wrong(name, broker, stranger)
    started = time.monotonic()
    with pytest.raises(error) as caught:
        KafkaBroker(properties).partitions([topic.name])
    assert time.monotonic() - started < LATEST
    check_message(str(caught.value), said)


@pytest.mark.parametrize(("name", "error", "said"), WRONG)
def test_reading_says_in_time_what_is_wrong(
    broker: SecureBroker, topic: Topic, stranger: Path, name: str, error: type[ExactbatchError], said: str
) -> None:
    properties = wrong(name, broker, stranger)
    topic_id = KafkaBroker(broker.plain).topic_ids([topic.name])[topic.name]
    range_ = OffsetRange(topic.name, 0, 0, 6, topic_id)
    started = time.monotonic()
    with pytest.raises(ReadFailed if error is KafkaUnavailable else error) as caught:
        list(read_range(range_, properties, leader_epoch=None, timeout=SECONDS))
    assert time.monotonic() - started < LATEST
    # librdkafka does not tell a plain client anything but that it was hung up on.
    check_message(str(caught.value), "brokers are down" if name == "a plain client" else said)
    assert str(range_) in str(caught.value)


def check_message(message: str, said: str) -> None:
    assert said in message
    assert sum(message.count(fact) for fact in FACTS) == 1, message
    for secret in (PASSWORD, WRONG_PASSWORD, KEY_PASSWORD):
        assert secret not in message


def test_the_host_is_not_checked_where_the_configuration_says_so(broker: SecureBroker, topic: Topic) -> None:
    properties = broker.by_address(broker.scram()) | {"ssl.endpoint.identification.algorithm": "none"}
    log = KafkaBroker(properties)
    assert [each.high_watermark for each in log.partitions([topic.name])] == [6, 4]
    range_ = OffsetRange(topic.name, 0, 0, 6, log.topic_ids([topic.name])[topic.name])
    assert sum(map(len, read_range(range_, properties, leader_epoch=None, timeout=10))) == 6


def test_a_batch_that_cannot_log_in_leaves_nothing_behind(
    spark: Any,
    connection: Any,
    database: str,
    broker: SecureBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
) -> None:
    """The password was changed between the plan and the batch."""
    pipeline = make_pipeline(topic)
    world = BatchRunner(spark, connection, Settings(kafka=broker.scram(), postgres=database))
    batch_id = world.plan(pipeline)
    world.settings = Settings(kafka=broker.scram(sasl_password=WRONG_PASSWORD) | SOON, postgres=database)
    assert "sasl.password" in world.refused(ConfigurationError, pipeline, batch_id)
    with transaction(connection) as cursor:
        cursor.execute("select status from exactbatch.batch where batch_id = %s", (batch_id,))
        assert cursor.fetchone()[0] == "planned"
    world.settings = Settings(kafka=broker.scram(), postgres=database)
    assert world.process(pipeline, batch_id).batch.rows == 10
