"""Topics with records, for `exactbatch local send`, the demo and the tests."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.local.errors import LocalStackError


def create_topic(properties: Mapping[str, Any], topic: str, partitions: int = 4) -> int:
    """Create a topic, unless it exists, and return how many partitions it has."""
    client = AdminClient(dict(properties))  # keep a reference: without the client, no answer arrives
    try:
        client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
    else:
        return partitions
    return len(client.list_topics(topic, timeout=30).topics[topic].partitions)


def send(properties: Mapping[str, Any], topic: str, values: Sequence[bytes], partitions: int = 4) -> None:
    """Append values to a topic, spread over its partitions. Raises LocalStackError if the broker did not store all."""
    producer = Producer(
        {**properties, "linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 1_000_000}
    )
    failed: list[Any] = []
    remaining = iter(enumerate(values))
    while chunk := list(islice(remaining, 50_000)):
        for index, value in chunk:
            producer.produce(topic, value, partition=index % partitions, on_delivery=_note_failure(failed))
        producer.flush(60)
    if failed:
        raise LocalStackError(f"the broker did not store {len(failed)} of {len(values)} records: {failed[0]}")


def _note_failure(failed: list[Any]) -> Any:
    return lambda error, _: failed.append(error) if error else None
