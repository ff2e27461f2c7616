"""A ledger with the history of years: filled by SQL, over a log that exists only as numbers."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg2 import sql

from exactbatch import Pipeline
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.model import FoundRecord, LogPartition, Plan, StoredOffset
from exactbatch.offsets import TopicPartition
from exactbatch.postgres.connection import transaction

ID: Final = UUID(int=1)
BEGAN: Final = datetime(2020, 1, 1, tzinfo=UTC)
EVERY: Final = timedelta(minutes=5)
# Only a superuser can do it: triggers and foreign keys would check each of millions of rows.
_UNCHECKED: Final = "set local session_replication_role = replica;"
_FILLED: Final = ("batch", "batch_range", "coverage", "rejected_record")


@dataclass(frozen=True)
class History:
    """Committed advances of a pipeline, every five minutes: batch n has `size` offsets of each partition.

    Batch n, counted from 0, covers [n * size, (n + 1) * size). Every tenth batch rejected its first record.
    """

    pipeline: Pipeline
    batches: int
    partitions: int = 10
    size: int = 10

    @property
    def topic(self) -> str:
        """The only topic of the pipeline."""
        return self.pipeline.known_topics(())[0]

    @property
    def end(self) -> int:
        """The stored offset of every partition."""
        return self.batches * self.size

    def convert_time(self, offset: int) -> datetime:
        """Return the timestamp of a record."""
        return BEGAN + EVERY * (offset // self.size)

    def log(self, ahead: int = 10) -> "StillLog":
        """Return the log, which goes `ahead` offsets beyond what was processed."""
        return StillLog(self, ahead)


class StillLog(KafkaBroker):
    """A broker whose partitions all have the same offsets."""

    def __init__(self, history: History, ahead: int) -> None:
        super().__init__({})
        self._history, self._end = history, history.end + ahead

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        """Return the same state each time."""
        return tuple(
            LogPartition(
                topic=self._history.topic,
                partition=partition,
                topic_id=ID,
                leader_epoch=0,
                earliest=0,
                last_stable=self._end,
                high_watermark=self._end,
            )
            for partition in range(self._history.partitions)
        )

    def records_at(
        self, partitions: Sequence[LogPartition], at: datetime
    ) -> dict[TopicPartition, FoundRecord]:
        """Return the first record of the batch that began at or after a time."""
        batch = max(0, -((BEGAN - at) // EVERY))
        record = FoundRecord(batch * self._history.size, round((BEGAN + EVERY * batch).timestamp() * 1000))
        return {partition.topic_partition: record for partition in partitions if record.offset < self._end}

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """Return no topic."""
        return set()


def fill(connection: Any, history: History) -> None:
    """Register the pipeline and write its history, without the rows of its target."""
    pipeline, values = history.pipeline, {**vars(history), "topic": history.topic, "id": str(ID)}
    values |= {"pipeline": pipeline.name, "end": history.end, "began": BEGAN, "every": EVERY}
    with transaction(connection) as cursor:
        Ledger(connection).registry.register(pipeline)
        cursor.execute(_UNCHECKED)
        cursor.execute("select coalesce(max(batch_id), 0) from exactbatch.batch")
        values["before"] = cursor.fetchone()[0]
        with _without_indexes(cursor):
            for statement in _STATEMENTS:
                cursor.execute(statement, values)
        cursor.execute(
            "select setval(pg_get_serial_sequence('exactbatch.batch', 'batch_id'), max(batch_id)) "
            "from exactbatch.batch"
        )
        seeds = tuple(
            StoredOffset(topic=history.topic, partition=each, next_offset=0, leader_epoch=0, topic_id=ID)
            for each in range(history.partitions)
        )
        plan = Plan(seeds=seeds, losses=(), ranges=())
        Ledger(connection).plans.write_advance(pipeline, plan, origin="cli", run=None)
        cursor.execute(
            "update exactbatch.stored_offset set next_offset = %s where pipeline = %s",
            (history.end, pipeline.name),
        )
    analyze(connection)


def analyze(connection: Any) -> None:
    """Give the planner the statistics that autovacuum would collect."""
    connection.rollback()
    connection.autocommit = True
    with connection.cursor() as cursor:
        for table in (*_FILLED, "stored_offset", "pipeline"):
            cursor.execute(f"vacuum analyze exactbatch.{table}")
    connection.autocommit = False


_STATEMENTS: Final = (
    """
    insert into exactbatch.batch (batch_id, pipeline, kind, origin, dag_id, run_id, status, records, rows, rejected,
                                  tombstones, dropped, planned_at, committed_at, announced_at)
    overriding system value
    select %(before)s + n + 1, %(pipeline)s, 'advance', 'schedule', %(pipeline)s, 'scheduled__' || n, 'committed',
           %(partitions)s * %(size)s, %(partitions)s * %(size)s, 0, 0, 0, %(began)s + n * %(every)s,
           %(began)s + n * %(every)s + interval '10 s', '-infinity'
    from generate_series(0, %(batches)s - 1) n
    """,
    """
    insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id, leader_epoch,
                                        records)
    select %(before)s + n + 1, %(topic)s, p, n * %(size)s::bigint, (n + 1) * %(size)s::bigint, %(id)s, 0, %(size)s
    from generate_series(0, %(batches)s - 1) n, generate_series(0, %(partitions)s - 1) p
    """,
    """
    insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
    select %(pipeline)s, %(topic)s, %(id)s, p, int8range(n * %(size)s::bigint, (n + 1) * %(size)s::bigint), 'batch',
           %(before)s + n + 1
    from generate_series(0, %(batches)s - 1) n, generate_series(0, %(partitions)s - 1) p
    """,
    """
    insert into exactbatch.rejected_record (pipeline, topic_id, partition, "offset", topic, headers, reason, batch_id)
    select %(pipeline)s, %(id)s, 0, n * %(size)s::bigint, %(topic)s, '[]', 'not a JSON object', %(before)s + n + 1
    from generate_series(0, %(batches)s - 1, 10) n
    """,
)


@contextmanager
def _without_indexes(cursor: Any) -> Iterator[None]:
    """Drop the indexes that nothing depends on, and create them again at the end: faster for millions of rows.

    The exclusion constraint becomes an index without one: to check millions of rows would take minutes.
    """
    cursor.execute(
        "select conrelid::regclass::text as tab, conname as name, pg_get_constraintdef(oid) as definition "
        "from pg_constraint where contype in ('p', 'x') and conrelid = any(%s::regclass[]) "
        "and not exists (select from pg_constraint f where f.confrelid = pg_constraint.conrelid)",
        ([f"exactbatch.{table}" for table in _FILLED],),
    )
    constraints = cursor.fetchall()
    for row in constraints:
        cursor.execute(
            sql.SQL("alter table {} drop constraint {}").format(sql.SQL(row.tab), sql.Identifier(row.name))
        )
    yield
    for row in constraints:
        table, name = sql.SQL(row.tab), sql.Identifier(row.name)
        if row.definition.startswith("EXCLUDE"):
            keys = sql.SQL(re.sub(r" WITH (=|&&)", "", row.definition.removeprefix("EXCLUDE ")))
            cursor.execute(sql.SQL("create index {} on {} {}").format(name, table, keys))
        else:
            definition = sql.SQL(row.definition)
            cursor.execute(sql.SQL("alter table {} add constraint {} {}").format(table, name, definition))
