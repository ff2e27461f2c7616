"""Topics with records, for `exactbatch local send`, the demo and the tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.local.kafka_server import MAX_BATCH_BYTES
from exactbatch.local.stack_error import LocalStackError

MAX_BYTES: Final = 10_000_000  # of a value; the broker takes it with what surrounds it


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
    """Append values of at most MAX_BYTES to a topic, spread over its partitions.

    Raises LocalStackError if the broker did not store all.
    """
    producer = Producer(
        {
            "linger.ms": 20,
            "compression.type": "lz4",
            "message.max.bytes": MAX_BATCH_BYTES,
            # Each record is delivered or has failed after this time. The queue is small enough not to wait that long.
            "message.timeout.ms": 60_000,
            "queue.buffering.max.kbytes": 64 * 1024,
            **properties,
        }
    )
    errors: list[KafkaError] = []
    delivered = 0

    def note(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1
        else:
            errors.append(error)

    for index, value in enumerate(values):
        while not errors:
            try:
                producer.produce(topic, value, partition=index % partitions, on_delivery=note)
                break
            except BufferError:  # the queue is full
                producer.poll(1)
        producer.poll(0)
    producer.flush()
    if delivered < len(values):
        raise LocalStackError(
            f"the broker confirmed {delivered:,} of {len(values):,} records for the topic {topic}: {errors[0].str()}. "
            f"`exactbatch local status` shows whether it is up. Then send all of them to a new topic: this one keeps "
            f"those that it has."
        )
