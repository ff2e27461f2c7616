"""The consumer that one would write by hand: confluent-kafka, orjson, text COPY, offsets in the same transaction.

One process for each core reads some of the partitions. It is tuned, and does no more than it must: it checks neither
types nor lengths nor whether the log was truncated, and malformed records go into a table without a reason.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from io import BytesIO
from operator import itemgetter, methodcaller
from typing import Any

import orjson
import psycopg2
from confluent_kafka import Consumer, KafkaError, TopicPartition

TRANSACTION = 100_000  # records
MESSAGES = 10_000  # of one consume()
_READER = {
    "group.id": "hand-written",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 64 * 1024,
    "check.crcs": False,
}
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def create_offsets(dsn: str, target: str) -> None:
    """Create the tables of offsets and of malformed records, both empty."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"drop table if exists {target}_offset, {target}_bad")
        cursor.execute(
            f"create table {target}_offset (partition int primary key, next_offset bigint not null)"
        )
        cursor.execute(f"create table {target}_bad (partition int, kafka_offset bigint, value bytea)")


def load(
    properties: Mapping[str, Any],
    dsn: str,
    topic: str,
    target: str,
    columns: Sequence[str],
    part: int,
    parts: int,
) -> None:
    """Load every `parts`-th partition, from the stored offsets to the end of the log, transaction by transaction."""
    names = ", ".join(f'"{name}"' for name in columns)
    copy = f"copy {target} ({names}, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, batch_id) from stdin"
    with (
        closing(psycopg2.connect(dsn)) as connection,
        closing(Consumer({**properties, **_READER})) as consumer,
        connection.cursor() as cursor,
    ):
        cursor.execute("set timezone to 'UTC'")
        cursor.execute(f"select partition, next_offset from {target}_offset")
        stored = dict(cursor.fetchall())
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)[part::parts]
        consumer.assign([TopicPartition(topic, each, stored.get(each, 0)) for each in partitions])
        encode, remaining = _encoder(topic, columns), set(partitions)
        while remaining:
            lines: list[str] = []
            bad: list[tuple[int, int, bytes]] = []
            heads: dict[int, int] = {}
            while remaining and len(lines) < TRANSACTION:
                messages = consumer.consume(MESSAGES, 0.1)
                if any(map(methodcaller("error"), messages)):
                    for message in messages:
                        if (error := message.error()) is not None:
                            if error.code() != KafkaError._PARTITION_EOF:
                                raise RuntimeError(error)
                            remaining.discard(message.partition())
                    messages = [message for message in messages if message.error() is None]
                encode(messages, lines, bad, heads)
            cursor.copy_expert(copy, BytesIO("".join(lines).encode()), 1 << 20)
            if cursor.rowcount != len(lines):
                raise RuntimeError(f"sent {len(lines)} rows, and Postgres took {cursor.rowcount}")
            if bad:
                cursor.executemany(f"insert into {target}_bad values (%s, %s, %s)", bad)
            for partition, head in heads.items():
                cursor.execute(
                    f"insert into {target}_offset values (%s, %s) "
                    "on conflict (partition) do update set next_offset = excluded.next_offset",
                    (partition, head),
                )
            connection.commit()


def _encoder(topic: str, columns: Sequence[str]) -> Callable[..., None]:
    """Return a function that appends records as lines of text COPY to a list, and malformed ones to another."""
    fields = itemgetter(*columns)
    loads, head = orjson.loads, f"\t{topic}\t"

    def text(value: Any) -> str:
        if value is None:
            return "\\N"
        if isinstance(value, str):
            return value.translate(_ESCAPES)
        if isinstance(value, dict | list):
            return orjson.dumps(value).decode().translate(_ESCAPES)
        return str(value)

    def encode(
        messages: Sequence[Any], lines: list[str], bad: list[tuple[int, int, bytes]], heads: dict[int, int]
    ) -> None:
        for message in messages:
            value, partition, offset = message.value(), message.partition(), message.offset()
            heads[partition] = offset + 1
            try:
                record = loads(value)
            except ValueError:
                bad.append((partition, offset, value))
                continue
            try:
                values = fields(record)
            except KeyError:
                values = [record.get(name) for name in columns]
            if b"\\" in value or b"{" in value[1:]:
                line = "\t".join(map(text, values))
            else:  # without a backslash in the JSON, no text has a character to escape
                line = "\t".join(["\\N" if each is None else str(each) for each in values])
            _, milliseconds = message.timestamp()
            lines.append(f"{line}{head}{partition}\t{offset}\t{_time(milliseconds)}\t0\n")

    return encode


_seconds: dict[int, str] = {}


def _time(milliseconds: int) -> str:
    """Return a time as text; records come in the order of time, so that seconds repeat."""
    second, rest = divmod(milliseconds, 1000)
    if (text := _seconds.get(second)) is None:
        from datetime import UTC, datetime

        text = _seconds[second] = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{rest:03}+00"
