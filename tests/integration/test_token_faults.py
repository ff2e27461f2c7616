"""Tokens that expire in the middle of a batch, with a server of tokens that works and with one that does not.

The network to the broker is slow here, so that batches outlive their tokens.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import pytest

from exactbatch import Tuning
from exactbatch.audit import log_windows
from exactbatch.audit.log_windows import LogWindows
from exactbatch.errors import RetryableError, TokenUnavailable
from exactbatch.forwarding import sent
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.environment import LONG
from support.faults.proxy import Proxy, Refuse, Slow, Stall
from support.token_broker import TokenBroker
from support.token_proxy import TokenProxy
from support.token_server import TokenServer, forget_all_tokens
from support.topics import Topic, record
from support.waiting import wait_for

# How long a batch takes at least, and how long each token lives, in seconds.
SECONDS, LIFETIME = (600, 60) if LONG else (90, 12)
_RATE: Final = 20_000  # bytes a second that each connection to the broker gets
_AT_ONCE: Final = 100  # records of a batch of the log: what is fetched at once
_RECORD: Final = 220  # bytes: a record in the log, and the time of its requests


class Broken:
    """Ways in which a server of tokens fails, and what an error says of each."""

    said: Final = {
        "is killed": "/token does not answer: ",
        "answers 500": "/token answered HTTP status 500",
        "hangs": "/token does not answer: ReadTimeout",
        "makes tokens that the broker refuses": "does not accept the token of the provider",
        "makes tokens that have expired": "the provider '.*' returned a token that expired",
    }

    def __init__(self, server: TokenServer, network: Proxy) -> None:
        self._server, self._network = server, network
        self._before = vars(server).copy()

    def begin(self, how: str) -> None:
        """Let it fail."""
        match how:
            case "is killed":
                self._network.inject(Refuse())
            case "hangs":
                self._network.inject(Stall())
            case "answers 500":
                self._server.refusal = 500, b"<html>"
            case "makes tokens that the broker refuses":
                self._server.audience = "another"
            case "makes tokens that have expired":
                self._server.lifetime = -60

    def end(self) -> None:
        """Let it work again."""
        vars(self._server).update(self._before)
        self._network.heal()


@pytest.fixture
def short_lived(issuer: TokenServer, token_world: BatchRunner) -> TokenServer:
    """The server of tokens, whose tokens live for some seconds."""
    issuer.lifetime = 5
    forget_all_tokens()  # that of token_world's connection
    return issuer


@pytest.fixture
def broken(short_lived: TokenServer, issuer_network: Proxy) -> Broken:
    return Broken(short_lived, issuer_network)


@pytest.fixture
def slow_world(token_world: BatchRunner, token_kafka: TokenBroker) -> Iterator[BatchRunner]:
    """Servers that take tokens, and a slow network to the broker.

    Its answers are small: one that comes after a large one would come too late.
    """
    kafka = {**token_world.settings.kafka, "fetch.message.max.bytes": _RATE}
    settings = Settings(kafka=kafka, postgres=token_world.settings.postgres)
    token_kafka.network.inject(Slow(_RATE))
    yield BatchRunner(token_world.spark, token_world.connection, settings)
    token_kafka.network.heal()


def fill(topic: Topic, partitions: int, records: int) -> None:
    """Append this many records to each partition, with IDs from 0 on."""
    for partition in range(partitions):
        for first in range(0, records, _AT_ONCE):
            ids = range(partition * records + first, partition * records + min(first + _AT_ONCE, records))
            topic.produce(*(record(each, "x" * 100) for each in ids), partition=partition)


@contextmanager
def as_soon_as(condition: Callable[[], Any], act: Callable[[], Any]) -> Iterator[None]:
    """Act once a condition holds, while the block runs."""
    acting = threading.Thread(target=lambda: (wait_for(condition, timeout=60), act()))
    acting.start()
    yield
    acting.join()


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 600)
def test_a_batch_that_lasts_many_times_as_long_as_its_tokens_is_exact(
    slow_world: BatchRunner,
    issuer: TokenServer,
    token_kafka: TokenBroker,
    token_postgres: TokenProxy,
    make_token_topic: MakeTopic,
    make_pipeline: MakePipeline,
) -> None:
    """Ten minutes over tokens of one in the long form."""
    issuer.lifetime, issuer.leeway = LIFETIME, LIFETIME / 12
    partitions = 8  # in four rounds: Spark has two slots
    records = SECONDS // 4 * _RATE // _RECORD
    topic = make_token_topic(partitions)
    fill(topic, partitions, records)
    pipeline = make_pipeline(topic, tuning=Tuning(read_timeout="30 seconds"))
    forget_all_tokens()
    issuer.issued.clear()
    token_postgres.logins.clear()
    batch_id = slow_world.plan(pipeline)
    started = time.monotonic()
    batch = slow_world.process(pipeline, batch_id).batch
    seconds = time.monotonic() - started
    of_kafka = [form for form in issuer.issued if form["scope"] == ["topics"]]
    logins, tokens = len(token_postgres.logins), len(set(token_postgres.logins))
    token_kafka.network.heal()
    is_exact = slow_world.is_exact(pipeline)
    print(  # noqa: T201 - pytest shows it with -s
        f"{seconds:.0f} s, tokens of {LIFETIME} s: {len(of_kafka)} for Kafka, {len(issuer.issued) - len(of_kafka)} for "
        f"Postgres; {logins} logins to Postgres with {tokens} tokens; {batch.rows} rows, audit "
        f"{'exact' if is_exact else 'not exact'}"
    )
    assert (batch.records, batch.rows) == (partitions * records, partitions * records)
    assert is_exact
    assert seconds > 0.8 * SECONDS
    # Two workers renew theirs all the time.
    assert len(of_kafka) >= SECONDS / LIFETIME
    # Each round of tasks logs in, and so does the driver when it publishes.
    assert tokens >= 4
    assert token_postgres.refused == []


def read_in_a_batch(kafka: Mapping[str, Any], topic: str, until: int) -> Iterator[Any]:
    return read_range(OffsetRange(topic, 0, 0, until, ""), kafka, leader_epoch=None, timeout=4)


def read_in_an_audit(kafka: Mapping[str, Any], topic: str, until: int) -> Iterator[Any]:
    (partition,) = KafkaBroker(kafka).partitions([topic])
    with closing(LogWindows.open(kafka, partition, 0, until)) as log:
        yield from log.window(until)


def read_in_a_forwarder(kafka: Mapping[str, Any], topic: str, until: int) -> Iterator[Any]:
    return sent._committed(kafka, topic, {0: 0}, {0: until})


@pytest.mark.parametrize(
    ("read", "how"),
    [
        (read_in_a_batch, "is killed"),
        pytest.param(read_in_a_batch, "answers 500", marks=pytest.mark.slow),
        pytest.param(read_in_a_batch, "hangs", marks=pytest.mark.slow),
        (read_in_a_batch, "makes tokens that the broker refuses"),
        pytest.param(read_in_a_batch, "makes tokens that have expired", marks=pytest.mark.slow),
        (read_in_an_audit, "is killed"),
        (read_in_a_forwarder, "is killed"),
    ],
)
def test_a_read_whose_token_cannot_be_renewed_names_the_provider(
    issuer: TokenServer,
    issuer_network: Proxy,
    token_kafka: TokenBroker,
    make_token_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[..., Iterator[Any]],
    how: str,
) -> None:
    """Not the brokers, of which librdkafka says that they are down."""
    monkeypatch.setattr(log_windows, "_TIMEOUT", 4.0)
    monkeypatch.setattr(sent, "_PROGRESS_TIMEOUT", 4.0)
    topic = make_token_topic(1)
    fill(topic, 1, 4000)
    issuer.lifetime = 4
    broken = Broken(issuer, issuer_network)
    token_kafka.network.inject(Slow(_RATE))
    # Threads of an earlier test's client may still request tokens, for a client.id of their own.
    own = {"fetch.message.max.bytes": _RATE, "client.id": topic.name}
    kafka = {**token_kafka.by_token, **own}
    try:
        with closing(read(kafka, topic.name, 4000)) as reading:
            next(reading)
            broken.begin(how)
            with pytest.raises(TokenUnavailable, match=Broken.said[how]) as caught:
                list(reading)
        assert caught.value.retryable
    finally:
        token_kafka.network.heal()


@pytest.mark.slow
@pytest.mark.parametrize("how", list(Broken.said))
def test_a_batch_whose_server_of_tokens_fails_in_the_middle_is_committed_by_the_next_try(
    slow_world: BatchRunner,
    broken: Broken,
    short_lived: TokenServer,
    token_kafka: TokenBroker,
    make_token_topic: MakeTopic,
    make_pipeline: MakePipeline,
    how: str,
) -> None:
    topic = make_token_topic(4)
    fill(topic, 4, 1500)
    pipeline = make_pipeline(topic)
    batch_id = slow_world.plan(pipeline)
    short_lived.issued.clear()
    with (
        as_soon_as(lambda: len(short_lived.issued) >= 4, lambda: broken.begin(how)),
        pytest.raises(RetryableError, match=Broken.said[how]),
    ):
        slow_world.process(pipeline, batch_id)
    broken.end()
    left = slow_world.everything(pipeline)
    assert (list(left["coverage"]), left["rows"], left["rejects"]) == ([], [(0,)], [(0,)])
    token_kafka.network.heal()
    assert slow_world.process(pipeline, batch_id).batch.rows == 6000
    assert slow_world.is_exact(pipeline)
