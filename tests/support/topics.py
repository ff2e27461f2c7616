"""Topics of the tests, and records for them."""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from exactbatch.kafka.broker import KafkaBroker


@dataclass(frozen=True)
class Topic:
    """A topic of one test."""

    name: str
    properties: dict[str, Any]

    @cached_property
    def _producer(self) -> Producer:
        """One request at a time keeps the order, and starts half a second sooner than an idempotent producer."""
        return Producer(
            {
                **self.properties,
                "linger.ms": 0,
                "log_level": 2,  # tests stop brokers: a producer would log each attempt to reconnect
                "message.max.bytes": 10_485_760,
                "max.in.flight.requests.per.connection": 1,
            }
        )

    def produce(self, *values: bytes | None, partition: int = 0, **message: Any) -> None:
        """Append one record for each value, in order."""
        for value in values:
            self._producer.produce(self.name, value, partition=partition, **message)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def produce_records(self, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Append records (key, value, partition), each after the earlier ones of its partition."""
        for key, value, partition in records:
            self._producer.produce(self.name, value, key=key, partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def transaction(self, *values: bytes, partition: int = 0, end: str = "commit") -> Producer:
        """Append records in a transaction that commits, aborts or, with any other `end`, stays open."""
        producer = Producer({**self.properties, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        producer.flush(30)
        if end in ("commit", "abort"):
            self.end_transaction(producer, end, partition)
        return producer

    def end_transaction(self, producer: Producer, end: str, partition: int = 0) -> None:
        """Commit or abort, and wait for the marker, which the broker writes after its answer."""
        log = KafkaBroker(self.properties)
        before = log.partitions([self.name])[partition].high_watermark
        if end == "commit":
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        deadline = time.monotonic() + 30
        while log.partitions([self.name])[partition].high_watermark == before:
            assert time.monotonic() < deadline, "the broker has written no marker"
            time.sleep(0.02)


def await_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait for the broker, which learns of a new topic, and that it leads its partitions, after the controller."""
    deadline = time.monotonic() + 30
    while topic not in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline, f"the broker does not know {topic}"
        time.sleep(0.05)
    asked = {
        TopicPartition(topic, each): OffsetSpec.latest()  # type: ignore[no-untyped-call] # its stubs lack it
        for each in range(partitions)
    }
    while True:
        try:
            for each in admin.list_offsets(asked, request_timeout=2).values():
                each.result()
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def topic_maker(admin: AdminClient, properties: Mapping[str, Any]) -> Callable[..., Topic]:
    """Return a function that creates a topic, with a unique name if it has none: make(4, retention_ms="1000")."""

    def make(partitions: int = 1, name: str | None = None, **config: str) -> Topic:
        name = name or f"t{uuid.uuid4().hex[:12]}"
        new = NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
        admin.create_topics([new])[name].result(30)
        await_leaders(admin, name, partitions)
        return Topic(name, dict(properties))

    return make


def record(number: int, name: str | None = "x") -> bytes:
    """Return a JSON value for the pipelines of make_pipeline."""
    return json.dumps({"id": number, "name": name}).encode()


def an_hour_ago() -> int:
    """Return the time an hour before the call, as a record's timestamp: ms since 1970."""
    return round((time.time() - 3600) * 1000)


class NoUtf8(str):
    """A header's name that encodes as no UTF-8: kafka-python encodes what it is given."""

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"\xff\xfe"


def producer_properties(properties: dict[str, Any]) -> dict[str, Any]:
    """Return client properties under the names of kafka-python's producer."""
    names = {"sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password"}
    return {names.get(name, name.replace(".", "_")): value for name, value in properties.items()}
