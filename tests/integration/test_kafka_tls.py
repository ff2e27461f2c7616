"""TLS and SCRAM to Kafka: one configuration for both clients, and what is wrong with it is said in time."""

import json
import os
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, ExactbatchError, KafkaUnavailable, ReadFailed
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.batch_path import check_path
from support.batch_runner import BatchRunner, MakePipeline
from support.certificates import Authority
from support.environment import HOME
from support.readers import READERS, read_with
from support.secure_broker import KEY_PASSWORD, MECHANISMS, PASSWORD, SecureBroker, secure_broker
from support.topics import Topic, record

WRONG_PASSWORD: Final = "planted-wr0ng-pa55word"
SECONDS: Final = 2
READ_TIMEOUT: Final = 4
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


@pytest.mark.parametrize(("mechanism", "reader"), list(zip(MECHANISMS, READERS, strict=True)))
def test_a_batch_is_exact_over_sasl_ssl_with_scram(
    spark: Any,
    connection: Any,
    database: str,
    broker: SecureBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    reader: str,
) -> None:
    read_with(monkeypatch, reader, spark)
    settings = Settings(kafka=broker.scram(mechanism), postgres=database)
    commit = "partition" if mechanism.endswith("256") else "batch"
    check_path(BatchRunner(spark, connection, settings), make_pipeline(topic, commit=commit), topic.name)


def test_a_batch_is_exact_over_ssl_with_a_client_certificate(
    spark: Any,
    connection: Any,
    database: str,
    broker: SecureBroker,
    topic: Topic,
    make_pipeline: MakePipeline,
) -> None:
    settings = Settings(kafka=broker.by_certificate, postgres=database)
    check_path(
        BatchRunner(spark, connection, settings),
        make_pipeline(topic, transform="select * from records"),
        topic.name,
    )


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
        f"from exactbatch import Append, Json, Limits, Pipeline, Tuning\nsecure = {pipeline!r}\n"
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
            "expired": broker.expired,
            "no file": broker.scram(ssl_ca_location="/nowhere/authority.pem"),
            "key's password": broker.by_certificate | {"ssl.key.password": WRONG_PASSWORD},
            "no certificate": without(broker.by_certificate, "ssl.certificate.", "ssl.key."),
            "TLS for a plain listener": broker.scram()
            | {"bootstrap.servers": broker.plain["bootstrap.servers"]},
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
    ("expired", ConfigurationError, "that it has not expired"),
    ("no file", ConfigurationError, "ssl.ca.location"),
    ("key's password", ConfigurationError, "ssl.key.location"),
    ("no certificate", KafkaUnavailable, "bad certificate"),
    # Whether librdkafka guesses that the listener is a plain one depends on how soon it is hung up on.
    ("TLS for a plain listener", KafkaUnavailable, "SSL_HANDSHAKE"),
    ("a plain client", KafkaUnavailable, "security properties"),
]
RIGHT: Final = (*MECHANISMS, "certificate", "no check of the host")


def right(name: str, broker: SecureBroker) -> dict[str, Any]:
    """Client properties that work."""
    if name in MECHANISMS:
        return broker.scram(name)
    unchecked = {"ssl.endpoint.identification.algorithm": "none"}
    return broker.by_certificate if name == "certificate" else broker.by_address(broker.scram()) | unchecked


# A message states one of these facts, once.
FACTS: Final = (
    "do not accept each other",
    "rejects the Kafka client properties",
    "client properties do not work on",
    "does not answer",
    "sent nothing",
)
CLIENTS: Final = ("planning", *READERS)


@dataclass(frozen=True)
class Attempt:
    """What a client got: the ends of the logs for planning, values for a reader; or how it failed."""

    got: list[Any]
    error: ExactbatchError | None
    seconds: float

    @classmethod
    def of(cls, get: Callable[[], list[Any]]) -> "Attempt":
        started = time.monotonic()
        try:
            return cls(get(), None, time.monotonic() - started)
        except ExactbatchError as error:
            return cls([], error, time.monotonic() - started)


@dataclass(frozen=True)
class Attempts:
    """Those of each of CLIENTS with each of RIGHT and WRONG, and all that librdkafka logs meanwhile."""

    by_client: dict[tuple[str, str], Attempt]
    log: str


@pytest.fixture(scope="module")
def attempts(broker: SecureBroker, topic: Topic, stranger: Path, folder: Path) -> Attempts:
    """Those of one client run together: each of them does little but wait."""
    range_ = OffsetRange(topic.name, 0, 0, 6, KafkaBroker(broker.plain).topic_ids([topic.name])[topic.name])
    connections = {name: right(name, broker) for name in RIGHT}
    connections |= {name: wrong(name, broker, stranger) for name, _, _ in WRONG}

    def plan(properties: dict[str, Any]) -> list[int]:
        return [each.high_watermark for each in KafkaBroker(properties).partitions([topic.name])]

    def read(properties: dict[str, Any]) -> list[bytes]:
        all_logged = {**properties, "debug": "all"}
        batches = read_range(range_, all_logged, leader_epoch=None, timeout=READ_TIMEOUT)
        return [value for records in batches for value in records.values().to_pylist()]

    found: dict[tuple[str, str], Attempt] = {}
    log = folder / "librdkafka.log"
    with stderr_into(log), ThreadPoolExecutor(len(connections)) as pool:
        for client in CLIENTS:
            with pytest.MonkeyPatch.context() as patch:
                if client in READERS:
                    read_with(patch, client)
                get = plan if client == "planning" else read
                tries = pool.map(lambda each, get=get: Attempt.of(partial(get, each)), connections.values())
                found |= {(client, name): each for name, each in zip(connections, tries, strict=True)}
    return Attempts(found, log.read_text(errors="replace"))


@contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Write what this process writes to its standard error, libraries included, to a file."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", RIGHT)
def test_every_client_connects_with_what_is_right(attempts: Attempts, client: str, name: str) -> None:
    attempt = attempts.by_client[client, name]
    assert attempt.error is None
    assert attempt.got == ([6, 4] if client == "planning" else [record(n) for n in range(6)])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("name", "error", "said"), WRONG)
def test_every_client_says_in_time_what_is_wrong(
    attempts: Attempts, client: str, name: str, error: type[ExactbatchError], said: str
) -> None:
    attempt = attempts.by_client[client, name]
    assert attempt.seconds < LATEST
    if client == "planning":
        assert type(attempt.error) is error
        check_message(str(attempt.error), said)
        return
    assert type(attempt.error) is (ReadFailed if error is KafkaUnavailable else error)
    check_message(str(attempt.error), "brokers are down" if name == "a plain client" else said)
    assert "secure[0] 0..6: " in str(attempt.error)


@pytest.mark.parametrize(("name", "error"), [(name, error) for name, error, _ in WRONG])
def test_both_readers_say_the_same(attempts: Attempts, name: str, error: type[ExactbatchError]) -> None:
    first, second = (attempts.by_client[reader, name].error for reader in READERS)
    assert type(first) is type(second)
    assert first is not None
    assert second is not None
    assert vars(first) == vars(second)
    texts = [without_times(str(each)) for each in (first, second)]
    if error is KafkaUnavailable:
        # What librdkafka makes of a connection that is hung up on depends on when that happens.
        texts = [text.partition("; the last connection error was: ")[0] for text in texts]
    assert texts[0] == texts[1]


def without_times(message: str) -> str:
    """A message of librdkafka without what differs from one attempt to the next, such as the name of the broker, which
    has another one until a client knows its address."""
    message = re.sub(r"after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?", "after …", message)
    message = re.sub(r"\S+/(bootstrap|\d+): ", "broker: ", message)
    # What OpenSSL has found, without what librdkafka says before and after it, which depends on where it is found.
    return re.sub(
        r"broker: .*?(error:\w+:[\w ]*:[\w ]*:[\w ]*\w).*?( \(after …\))?\. Check", r"\1. Check", message
    )


def test_librdkafka_logs_no_secret(attempts: Attempts) -> None:
    """With all that it can log, whether it may connect or not."""
    for logged in (
        "|SASL|",
        "SCRAM-SHA-512",
        "SSL_HANDSHAKE",
        "Authentication failed",
        "sasl.password = [redacted]",
    ):
        assert logged in attempts.log
    for secret in (PASSWORD, WRONG_PASSWORD, KEY_PASSWORD):
        for written in (secret, json.dumps(secret)[1:-1], b64encode(secret.encode()).decode().rstrip("=")):
            assert written not in attempts.log


def check_message(message: str, said: str) -> None:
    assert said in message
    assert sum(message.count(fact) for fact in FACTS) == 1, message
    for secret in (PASSWORD, WRONG_PASSWORD, KEY_PASSWORD):
        assert secret not in message


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
