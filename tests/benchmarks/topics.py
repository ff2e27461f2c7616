"""The records of a shape in a Kafka topic: its different values, over and over."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from shapes import FLIGHTS, Shape

PARTITIONS = 4
# Records are compared while they age: none may expire.
TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}


def ensure_topic(
    properties: Mapping[str, Any],
    topic: str,
    records: int,
    progress: Callable[[str], None],
    shape: Shape = FLIGHTS,
    partitions: int = PARTITIONS,
) -> int:
    """Create the topic with this number of records, spread evenly over its partitions, unless it is there already.

    Returns the bytes of all values. A topic with another number of records is made again.
    """
    values = list(islice(shape.values(), min(shape.different, records)))
    times, rest = divmod(records, len(values))
    size = times * sum(map(len, values)) + sum(map(len, values[:rest]))
    admin = AdminClient(dict(properties))
    if _count(admin, topic) == records:
        return size
    drop_topic(properties, topic)
    admin.create_topics([NewTopic(topic, partitions, 1, config=TOPIC_CONFIG)])[topic].result(30)
    _produce(
        {**properties, "compression.type": shape.compression}, topic, values, records, progress, partitions
    )
    if (found := _count(admin, topic)) != records:
        raise SystemExit(f"expected {records:,} records in topic {topic}, found {found:,}")
    return size


def drop_topic(properties: Mapping[str, Any], topic: str) -> None:
    """Delete the topic, when there is one, and wait until it is gone."""
    admin = AdminClient(dict(properties))
    if topic not in admin.list_topics(timeout=30).topics:
        return
    admin.delete_topics([topic])[topic].result(30)
    while topic in admin.list_topics(timeout=30).topics:
        pass


def _produce(
    properties: Mapping[str, Any],
    topic: str,
    values: list[bytes],
    records: int,
    progress: Callable[[str], None],
    partitions: int,
) -> None:
    producer = Producer(
        {
            **properties,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 500_000,
            "log_level": 3,  # errors: that a new broker is not ready yet is none
            "enable.idempotence": True,  # no record twice: the counts must be exact
        }
    )
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % len(values)], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 100_000 == 0:
            producer.poll(0)
        if number % 500_000 == 0:
            progress(f"producing records to {topic}: {number:,} of {records:,}")
    if left := producer.flush(120):
        raise SystemExit(f"expected the broker to take {records:,} records, {left:,} are left")


def _count(admin: AdminClient, topic: str) -> int:
    """How many offsets the topic spans, 0 when there is no such topic."""
    known = admin.list_topics(timeout=30).topics.get(topic)
    if known is None:
        return 0
    spans = []
    for spec in (OffsetSpec.latest(), OffsetSpec.earliest()):
        asked = {TopicPartition(topic, partition): spec for partition in known.partitions}
        spans.append(sum(each.result(30).offset for each in admin.list_offsets(asked).values()))
    return spans[0] - spans[1]
