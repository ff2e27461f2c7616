"""The soak's producers, and their account of the log, which everything else is compared with.

Two producers never stop, through every death of the broker: an idempotent one, and a transactional one that
now and then aborts, or leaves its transaction open for a while.
"""

import json
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from soak.pipelines import PARTITIONS, SHORT_TOPIC, TOPIC
from support.reference import LogRecord, is_rejected

_log = logging.getLogger("rdkafka")

NOON: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
_TICK_S: Final = 0.1
_IDS: Final = 200
_FORGOTTEN: Final = (
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
_PROPERTIES: Final = {
    "enable.idempotence": True,
    "linger.ms": 20,
    # A record is sent until the broker has it, however long that is down.
    "message.timeout.ms": 0,
    "reconnect.backoff.max.ms": 500,
}


@dataclass(frozen=True)
class Sent:
    """A record that the broker has taken, and where."""

    topic: str
    record: LogRecord


@dataclass
class Account:
    """The produced records, by outcome. Only the log can tell the outcome of `unknown` ones."""

    committed: list[Sent] = field(default_factory=list)
    aborted: int = 0
    unknown: list[tuple[str, bytes | None, bytes | None]] = field(default_factory=list)
    transactions: Counter[str] = field(default_factory=Counter)
    made: int = 0

    def of(self, topic: str) -> list[LogRecord]:
        """The committed records of a topic, in the order of the log."""
        records = [each.record for each in self.committed if each.topic == topic]
        return sorted(records, key=lambda each: (each.partition, each.offset))

    @property
    def kinds(self) -> Counter[str]:
        """Count the committed records of each kind."""
        return Counter(
            "tombstones" if r.value is None else "bad records" if is_rejected(r) else "events"
            for r in (each.record for each in self.committed)
        )


class Writer:
    """Two threads that produce until stop()."""

    def __init__(
        self, properties: Mapping[str, Any], seed: int, rate: int, failed: Callable[[BaseException], None]
    ) -> None:
        self.account = Account()
        self._properties, self._rate, self._failed = {**properties, **_PROPERTIES}, rate, failed
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._seed, self._version = seed, 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
            for target, name in ((self._produce, "producer"), (self._transact, "transactions"))
        ]

    def start(self) -> None:
        """Begin to produce."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """Produce no more, and wait until the broker has everything."""
        self._stopping.set()
        for each in self._threads:
            each.join(120)
            assert not each.is_alive(), f"expected the {each.name} thread to end"

    def _guarded(self, run: Callable[[random.Random], None]) -> None:
        try:
            run(random.Random(f"{self._seed} {run.__name__}"))
        except BaseException as error:
            self._failed(error)

    def _produce(self, chance: random.Random) -> None:
        producer = Producer(self._properties, logger=_log)
        waiting: deque[list[Any]] = deque()
        again: deque[Callable[[], None]] = deque()
        while not self._stopping.is_set():
            begun = time.monotonic()
            for _ in range(round(self._rate * _TICK_S)):
                waiting.append([])
                topic = SHORT_TOPIC if chance.random() < 0.15 else TOPIC
                self._send(producer, chance, topic, waiting[-1], again)
            producer.poll(0)
            while again:
                again.popleft()()
            self._account(waiting)
            self._stopping.wait(max(0.0, begun + _TICK_S - time.monotonic()))
        deadline = time.monotonic() + 110
        while producer.flush(10) or again:
            assert time.monotonic() < deadline, "expected the broker to take every record"
            while again:
                again.popleft()()
        self._account(waiting)
        assert not waiting, f"expected the broker to take every record, found {len(waiting)} that it did not"

    def _account(self, waiting: deque[list[Any]]) -> None:
        """Take what the broker has by now into the account."""
        for _ in range(len(waiting)):
            sent = waiting.popleft()
            if sent[3] is None:
                waiting.append(sent)
            else:
                self._taken(*sent)

    def _taken(self, topic: str, key: bytes | None, value: bytes | None, message: Message | None) -> None:
        with self._lock:
            if message is None:
                self.account.unknown.append((topic, key, value))
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                where = LogRecord(partition, offset, key, value)
                self.account.committed.append(Sent(topic, where))

    def _transact(self, chance: random.Random) -> None:
        producer = self._transactional()
        while not self._stopping.is_set():
            sent: list[list[Any]] = []
            outcome = self._transaction(producer, chance, sent)
            if outcome == "unknown":
                # A successor under the same id ends what the other one left.
                producer = self._transactional()
            for topic, key, value, message in sent:
                assert outcome != "committed" or message is not None, "committed, but not delivered"
                if outcome != "aborted":
                    self._taken(topic, key, value, message if outcome == "committed" else None)
            with self._lock:
                self.account.transactions[outcome] += 1
                self.account.aborted += len(sent) if outcome == "aborted" else 0
            self._stopping.wait(chance.uniform(0.2, 1.5))

    def _transactional(self) -> Producer:
        while True:
            producer = Producer({**self._properties, "transactional.id": f"soak-{self._seed}"}, logger=_log)
            try:
                producer.init_transactions(60)
                return producer
            except KafkaException as error:
                if not _retriable(error):
                    raise

    def _transaction(self, producer: Producer, chance: random.Random, sent: list[list[Any]]) -> str:
        """Produce a few records in a transaction. `sent` gets each, and the message that the broker took."""
        try:
            producer.begin_transaction()
            for _ in range(chance.randrange(1, 40)):
                sent.append([])
                self._send(producer, chance, TOPIC, sent[-1])
            if chance.random() < 0.2:
                producer.flush(10)
                self._stopping.wait(chance.uniform(1, 4))
            if chance.random() < 0.25:
                _insist(producer.abort_transaction)
                return "aborted"
            producer.flush()
            _insist(producer.commit_transaction)
            return "committed"
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                return "unknown"
        try:
            _insist(producer.abort_transaction)
            return "aborted"
        except KafkaException:
            return "unknown"

    def _send(
        self,
        producer: Producer,
        chance: random.Random,
        topic: str,
        sent: list[Any],
        again: deque[Callable[[], None]] | None = None,
    ) -> None:
        """Send one record; `sent` becomes [topic, key, value, message], the message once the broker took it.

        A broker with ZooKeeper knows no topic for a moment after its start, and librdkafka gives up: `again` gets
        what sends the record again. Without it, as in a transaction, that is an error.
        """
        with self._lock:
            self._version = version = self._version + 1
            self.account.made += 1
        id_ = chance.randrange(_IDS)
        key, value, at = _record(chance, id_, version)
        sent[:] = [topic, key, value, None]

        def told(error: KafkaError | None, message: Message) -> None:
            sent[3] = None if error is not None else message
            if error is not None and error.code() in _FORGOTTEN and again is not None:
                again.append(produce)

        when: dict[str, Any] = {} if at is None else {"timestamp": at}

        def produce() -> None:
            while True:
                try:
                    producer.produce(topic, value, key, id_ % PARTITIONS, on_delivery=told, **when)
                    return
                except BufferError:
                    producer.poll(0.1)  # the broker is down, and the queue full
                except KafkaException as error:
                    if error.args[0].code() not in _FORGOTTEN or again is None:
                        raise
                    producer.poll(0.1)

        produce()


def _record(chance: random.Random, id_: int, version: int) -> tuple[bytes, bytes | None, int | None]:
    """Key, value and, where it lies in the past, Kafka's timestamp in ms of one record."""
    key = json.dumps({"id": id_}).encode()
    kind = chance.random()
    if kind < 0.03:
        return key, None, None
    if kind < 0.05:
        return key, f"bad {version}".encode(), None
    late = kind < 0.10
    event = {
        "id": id_,
        "carrier": ("AA", "UA", None)[id_ % 3],
        "at": (NOON + timedelta(minutes=version % 6_000, days=-3 if late else 0)).isoformat(),
        "delay": None if version % 5 == 0 else version * 7 % 100 - 30,
        "version": version,
    }
    return key, json.dumps(event).encode(), round((time.time() - 20) * 1000) if late else None


def _insist(end: Callable[[float], None]) -> None:
    """Commit or abort, however long the broker is down."""
    while True:
        try:
            end(30)
            return
        except KafkaException as error:
            if not _retriable(error):
                raise


def _retriable(error: KafkaException) -> bool:
    return bool(error.args[0].retriable())
