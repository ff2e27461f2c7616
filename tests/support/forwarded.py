"""Forwarders as processes, what a read_committed consumer sees of their results, and a check that it is exact."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from exactbatch.kafka.broker import KafkaBroker


@dataclass(frozen=True)
class Message:
    """A message of a topic; `headers` are text, without the prefix `exactbatch-`."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]

    @property
    def sequence(self) -> int:
        return int(self.headers["sequence"])

    @property
    def change(self) -> str:
        return self.headers["change"]

    @property
    def row(self) -> Any:
        return None if self.value is None else json.loads(self.value)


def committed(properties: Mapping[str, Any], topic: str) -> list[Message]:
    """Return all messages of committed transactions, by partition and offset.

    A commit is answered before its markers are in the partitions: until then, consumers do not see the transaction.
    Waits for them for 5 s; a transaction may be open for longer.
    """
    log, deadline = KafkaBroker(properties), time.monotonic() + 5
    while (found := log.partitions([topic])) and time.monotonic() < deadline:
        if all(each.last_stable == each.high_watermark for each in found):
            break
        time.sleep(0.05)
    ends = {each.partition: each.last_stable for each in found}
    consumer = Consumer(
        {
            **properties,
            "group.id": "tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in ends])
    remaining, messages = {each for each, end in ends.items() if end}, []
    while remaining:
        for each in consumer.consume(1000, timeout=1):
            error = each.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                remaining.discard(each.partition())
                continue
            record: Any = each  # its fields are there
            headers = {
                name.removeprefix("exactbatch-"): (content or b"").decode()
                for name, content in record.headers() or ()
            }
            messages.append(
                Message(record.partition(), record.offset(), record.key(), record.value(), headers)
            )
    consumer.close()
    return sorted(messages, key=lambda each: (each.partition, each.offset))


def check_once_in_order(messages: Sequence[Message], results: int) -> None:
    """Check that there are this many results, each once, and that the results of each key are in order in one
    partition."""
    counts = Counter(each.sequence for each in messages)
    assert counts == Counter(range(1, results + 1)), "a result is missing, or is there twice"
    of_key: dict[bytes | None, list[Message]] = defaultdict(list)
    for message in messages:
        of_key[message.key].append(message)
    for key, of_one in of_key.items():
        if key is not None:
            assert len({each.partition for each in of_one}) == 1, key
            assert [each.sequence for each in of_one] == sorted(each.sequence for each in of_one), key


def standing_rows(messages: Sequence[Message]) -> Counter[tuple[bytes | None, bytes | None]]:
    """Return the rows that a consumer of an Append has after all messages: rows, less those that were retracted."""
    rows: Counter[tuple[bytes | None, bytes | None]] = Counter()
    for message in sorted(messages, key=lambda each: each.sequence):
        assert message.change in ("row", "retracted")
        rows[message.key, message.value] += 1 if message.change == "row" else -1
        assert rows[message.key, message.value] >= 0, "retracted before it was there"
    return +rows


def latest_by_key(messages: Sequence[Message]) -> dict[bytes | None, bytes]:
    """Return the value of each key after all messages, as a compacted topic keeps it."""
    latest: dict[bytes | None, bytes] = {}
    for message in messages:
        assert (message.value is None) == (message.change == "deleted")
        if message.value is None:
            latest.pop(message.key, None)
        else:
            latest[message.key] = message.value
    return latest
