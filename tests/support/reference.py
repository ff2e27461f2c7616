"""Compute from the log what the targets must hold, without any code of the sinks."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

Row = tuple[Any, ...]


@dataclass(frozen=True)
class LogRecord:
    """One record, as Kafka has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def read_log(
    properties: dict[str, Any], topic: str, partitions: int, starts: Mapping[int, int] | None = None
) -> list[LogRecord]:
    """Every committed record of a topic, partition by partition, from the offsets where they start."""
    starts = starts or {}
    config = {
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "group.id": "reference",
        "enable.auto.commit": False,
    }
    consumer = Consumer({**properties, **config})
    consumer.assign(
        [TopicPartition(topic, partition, starts.get(partition, 0)) for partition in range(partitions)]
    )
    found, ended = [], 0
    try:
        while ended < partitions:
            for message in consumer.consume(10_000, 0.5):
                error = message.error()
                if error is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    found.append(LogRecord(partition, offset, message.key(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
                else:
                    raise AssertionError(error)
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


@dataclass(frozen=True)
class Event:
    """A decoded record."""

    record: LogRecord
    id: int
    carrier: str | None
    at: datetime
    delay: int | None
    version: int

    @property
    def row(self) -> Row:
        """Return its values as a target holds them."""
        return (self.id, self.carrier, self.at, self.delay, self.version)


def decode(record: LogRecord) -> Event | None:
    """An event; None for what is none."""
    assert record.value is not None
    try:
        found = json.loads(record.value)
        return Event(
            record,
            _integer(found["id"]),
            _text(found.get("carrier")),
            datetime.fromisoformat(found["at"]).astimezone(UTC),
            None if found.get("delay") is None else _integer(found["delay"]),
            _integer(found["version"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _text(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(value)
    return value


def is_rejected(record: LogRecord) -> bool:
    """True if the record is neither an event nor a null value."""
    return record.value is not None and decode(record) is None


def events(log: Iterable[LogRecord]) -> list[Event]:
    """The records that are events."""
    return [event for record in log if record.value is not None and (event := decode(record)) is not None]


def appended(log: list[LogRecord]) -> dict[Row, Row]:
    """By partition and offset: a row for each event."""
    return {(each.record.partition, each.record.offset): each.row for each in events(log)}


def latest(log: list[LogRecord]) -> dict[Row, Row]:
    """By id: the event with the greatest version; a null value is a reject."""
    newest: dict[int, Event] = {}
    for event in events(log):
        if event.id not in newest or newest[event.id].version <= event.version:
            newest[event.id] = event
    return {(id_,): event.row for id_, event in newest.items()}


def last(log: list[LogRecord]) -> dict[Row, Row]:
    """By id, all of whose records are in one partition: the last event, unless a null value came after it."""
    rows: dict[Row, Row] = {}
    for record in log:
        if record.value is not None:
            if (event := decode(record)) is not None:
                rows[(event.id,)] = event.row
        elif record.key is not None:
            rows.pop((json.loads(record.key)["id"],), None)
    return rows


def by_hour(log: list[LogRecord]) -> dict[Row, Row]:
    """By carrier and hour: number of events, sum, least and greatest delay."""
    groups: dict[Row, list[int | None]] = {}
    for event in events(log):
        hour = event.at.replace(minute=0, second=0, microsecond=0)
        groups.setdefault((event.carrier, hour), []).append(event.delay)
    measured = {}
    for group, delays in groups.items():
        known = [delay for delay in delays if delay is not None]
        extremes = (sum(known), min(known), max(known)) if known else (None, None, None)
        measured[group] = (len(delays), *extremes)
    return measured
