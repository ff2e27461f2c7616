"""A ledger with everything that the Pipelines page can show, over a real topic, filled by SQL."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg2 import sql

from exactbatch import Pipeline
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.local import LocalStack
from exactbatch.model import Plan, StoredOffset
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.topics import Topic

SIZE: Final = 50  # offsets of each partition in one batch
_UNCHECKED: Final = "set local session_replication_role = replica;"


def tell_story(
    stack: LocalStack, connection: Any, make_topic: Callable[..., Topic], pipeline: Pipeline
) -> None:
    """Create a pipeline's topic of three partitions, with the records of the history that fill_story() writes."""
    topic = make_topic(partitions=3, name=pipeline.name, retention_ms=str(7 * 86_400_000))
    for partition in range(3):
        topic.produce(*[b'{"id": 1}'] * (41 * SIZE + 20), partition=partition)
    fill_story(connection, pipeline, KafkaBroker(stack.kafka_properties).topic_ids([topic.name])[topic.name])


def fill_story(
    connection: Any,
    pipeline: Pipeline,
    topic_id: UUID,
    *,
    partitions: int = 3,
    batches: int = 40,
    until: datetime | None = None,
    size: int = SIZE,
) -> None:
    """Register a pipeline and write its history: advances, a replay, a backfill, a loss, rejects, and one in flight.

    Advance n covers [n * size, (n + 1) * size) of each partition. Of partition 0, batch 4 was lost; batches 10 and 11
    were replayed; half of batch 20 was processed again by a backfill. Batches 5, 15 and 25 rejected records. The next
    batch is in flight, and rows of the target carry their lineage.
    """
    name, topic = pipeline.name, pipeline.known_topics(())[0]
    now = until or datetime.now(UTC)
    with transaction(connection) as cursor:
        Ledger(connection).registry.register(pipeline)
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
        seeds = tuple(
            StoredOffset(topic=topic, partition=each, next_offset=0, leader_epoch=0, topic_id=topic_id)
            for each in range(partitions)
        )
        Ledger(connection).plans.write_advance(
            pipeline, Plan(seeds=seeds, losses=(), ranges=()), origin="cli", run=None
        )
        cursor.execute(_UNCHECKED)
        ids = []
        for n in range(batches):
            at = now - timedelta(minutes=5) * (batches - n)
            ids.append(
                _batch(
                    cursor,
                    name,
                    "advance",
                    "schedule",
                    f"scheduled__{at:%Y-%m-%dT%H:%M}",
                    at,
                    size * partitions,
                )
            )
        replayed = _batch(
            cursor, name, "replay", "manual", "manual__replay", now - timedelta(minutes=20), 2 * size
        )
        backfilled = _batch(
            cursor, name, "replay", "backfill", "backfill__1", now - timedelta(minutes=12), size // 2
        )
        for partition in range(partitions):
            for n, batch_id in enumerate(ids):
                first, end = n * size, (n + 1) * size
                _range(cursor, batch_id, topic, topic_id, partition, first, end, size)
                if partition == 0 and n == 4:
                    _cover(cursor, name, topic, topic_id, partition, first, end, "loss", None)
                elif partition == 0 and n in (10, 11):
                    _cover(cursor, name, topic, topic_id, partition, first, end, "batch", replayed)
                elif partition == 0 and n == 20:
                    _cover(
                        cursor, name, topic, topic_id, partition, first, first + size // 2, "batch", batch_id
                    )
                    _cover(
                        cursor, name, topic, topic_id, partition, first + size // 2, end, "batch", backfilled
                    )
                else:
                    _cover(cursor, name, topic, topic_id, partition, first, end, "batch", batch_id)
        _range(cursor, replayed, topic, topic_id, 0, 10 * size, 12 * size, 2 * size)
        _range(cursor, backfilled, topic, topic_id, 0, 20 * size + size // 2, 21 * size, size // 2)
        for n, reason in enumerate(
            ("column id: 'x{}' is not an int", "not a JSON object: '<b>{}</b>'", "column name: missing")
        ):
            for offset in range(5 * size + 10 * size * n, 5 * size + 10 * size * n + 4):
                cursor.execute(
                    "insert into exactbatch.rejected_record values (%s, %s, 0, %s, %s, %s, %s, %s, %s, %s)",
                    (
                        *(name, str(topic_id), offset, topic, b"key", b"<script>alert(1)</script>"),
                        json.dumps([["trace", "YWJj"], ["null", None]]),
                        reason.format(offset),
                        ids[5 + 10 * n],
                    ),
                )
        in_flight = _batch(cursor, name, "advance", "schedule", "scheduled__now", now, None)
        for partition in range(partitions):
            end = batches * size
            _range(cursor, in_flight, topic, topic_id, partition, end, end + size, None)
        cursor.execute(
            "update exactbatch.stored_offset set next_offset = %s, updated_at = %s where pipeline = %s",
            (batches * size, now - timedelta(minutes=5), name),
        )
        cursor.execute(_rows_of(pipeline, topic, partitions, batches * size))


def _rows_of(pipeline: Pipeline, topic: str, partitions: int, end: int) -> Any:
    return sql.SQL(
        "insert into {} (id, name, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, batch_id) "
        "select r.o, 'n', {}, r.p, r.o, now(), c.batch_id from (select p, o from generate_series(0, {}) p, "
        "generate_series(0, {}) o) r join exactbatch.coverage c on c.pipeline = {} and c.partition = r.p "
        "and c.offsets @> r.o::bigint and c.batch_id is not null"
    ).format(
        find_writer(pipeline.traits).tables[-1].identifier,
        *map(sql.Literal, (topic, partitions - 1, end - 1, pipeline.name)),
    )


def fail_newest(connection: Any, pipeline: str, message: str, *, retryable: bool) -> None:
    """Let the batch that is in flight have failed."""
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.batch_failure (batch_id, error, message, retryable) "
            "select max(batch_id), 'TargetMismatch', %s, %s from exactbatch.batch "
            "where pipeline = %s and status = 'planned'",
            (message, retryable, pipeline),
        )


def _batch(
    cursor: Any, name: str, kind: str, origin: str, run_id: str, at: datetime, records: int | None
) -> int:
    status = "planned" if records is None else "committed"
    committed = None if records is None else at + timedelta(seconds=8)
    cursor.execute(
        "insert into exactbatch.batch (pipeline, kind, origin, dag_id, run_id, status, records, rows, rejected, "
        "tombstones, dropped, planned_at, committed_at, announced_at) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, "
        "%s, %s, %s, %s) returning batch_id",
        (
            *(name, kind, origin, name, run_id, status, records, records),
            *((None,) * 3 if records is None else (0, 0, 0)),
            *(at, committed, committed),
        ),
    )
    batch_id: int = cursor.fetchone()[0]
    return batch_id


def _range(
    cursor: Any,
    batch_id: int,
    topic: str,
    topic_id: UUID,
    partition: int,
    first: int,
    until: int,
    records: int | None,
) -> None:
    cursor.execute(
        "insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id, "
        "leader_epoch, records) values (%s, %s, %s, %s, %s, %s, 0, %s)",
        (batch_id, topic, partition, first, until, str(topic_id), records),
    )


def _cover(
    cursor: Any,
    name: str,
    topic: str,
    topic_id: UUID,
    partition: int,
    first: int,
    until: int,
    kind: str,
    batch_id: int | None,
) -> None:
    cursor.execute(
        "insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id) "
        "values (%s, %s, %s, %s, int8range(%s, %s), %s, %s)",
        (name, topic, str(topic_id), partition, first, until, kind, batch_id),
    )
