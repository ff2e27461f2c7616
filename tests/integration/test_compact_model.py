"""However changes come, are replayed and are compacted: the target is what a plain program says that keeps all."""

import random
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from psycopg2 import sql
from psycopg2.extras import execute_values

from exactbatch import Upsert
from exactbatch.columns import parse_columns
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.staged_rows import StagedRows
from support.environment import LONG
from support.writers import writer_of

pytestmark = pytest.mark.slow

TOPIC, PARTITIONS, KEYS = "t", 3, 7
COLUMNS = parse_columns("id int, name text, version int, minor int")
HISTORIES = 50 if LONG else 8
FOREIGN = 1  # the batch of another pipeline, which writes into the same target


@dataclass(frozen=True)
class Change:
    """What the model knows of a change."""

    key: int
    version: tuple[int, int | None] | None
    name: str | None
    topic: str
    partition: int
    offset: int

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    @property
    def order(self) -> tuple[Any, ...]:
        """The latest is the greatest; a change without a name is a delete."""
        versions = self.version or ()
        return *((each is not None, each or 0) for each in versions), *self.place


@dataclass
class Model:
    """All changes there ever were that no replay has taken back; nothing is dropped."""

    chance: random.Random
    versioned: bool
    changes: list[Change] = field(default_factory=list)
    heads: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    horizons: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    batches: list[int] = field(default_factory=lambda: [FOREIGN])

    def target(self) -> dict[int, str]:
        latest = self.latest(self.changes)
        return {key: each.name for key, each in latest.items() if each.name is not None}

    def latest(self, changes: list[Change]) -> dict[int, Change]:
        return {each.key: each for each in sorted(changes, key=lambda each: each.order)}

    def write(self, partition: int, from_offset: int, until_offset: int) -> list[Change]:
        """What some program makes of a range: not every record gives a change, a part of a version may lack."""
        written = []
        for offset in range(from_offset, until_offset):
            if self.chance.random() < 0.15:
                continue
            key = self.chance.randrange(KEYS)
            if not self.versioned:  # then all changes of a key are in one partition
                key = key * PARTITIONS + partition
            version = self.version(partition) if self.versioned else None
            name = None if self.chance.random() < 0.3 else f"{self.chance.randrange(10**6)}"
            written.append(Change(key, version, name, TOPIC, partition, offset))
        gone = {(TOPIC, partition, offset) for offset in range(from_offset, until_offset)}
        self.changes = [each for each in self.changes if each.place not in gone] + written
        return written

    def version(self, log: int) -> tuple[int, int | None]:
        """A version that changes of one log share: nothing would order equal ones of two."""
        return self.chance.randrange(4) * (PARTITIONS + 2) + log, self.chance.choice([None, 0, 1])

    def is_below(self, each: Change) -> bool:
        return each.topic == TOPIC and each.offset < self.horizons[each.partition]

    def left(self) -> set[tuple[str, int, int]]:
        """What must be left: all above the horizons, and the latest of each key below them."""
        above = [each for each in self.changes if not self.is_below(each)]
        below = self.latest([each for each in self.changes if self.is_below(each)]).values()
        kept = [each for each in below if each.name is not None or self.versioned]
        return {each.place for each in (*above, *kept)}


class Target:
    """The real thing: an Upsert's tables in Postgres."""

    def __init__(self, connection: Any, model: Model) -> None:
        self.connection, self.model = connection, model
        self.writer = writer_of(
            Upsert("public.target", key=("id",), version=("version", "minor") if model.versioned else None)
        )
        with transaction(connection) as cursor:
            cursor.execute("drop table if exists public.target, public.target_change")
            self.writer.prepare(cursor, COLUMNS)

    def publish(self, written: list[Change], taken_back: OffsetRange | None = None) -> None:
        self.model.batches.append(self.model.batches[-1] + 1)
        with transaction(self.connection) as cursor:
            if taken_back is not None:
                self.writer.retract(cursor, [(taken_back, self.model.batches[1:])])
            self._stage(cursor, written)
            staged = StagedRows(sql.Identifier("staged"), self.model.batches[-1], {7: len(written)})
            self.writer.insert_staged(cursor, staged, COLUMNS)

    def write_foreign(self) -> None:
        """Changes of the same keys by another pipeline, of a topic before and of one behind this one's."""
        chance, model = self.model.chance, self.model
        written = [
            Change(key, model.version(log), chance.choice([None, "foreign"]), topic, 0, chance.randrange(9))
            for key in chance.sample(range(KEYS), 2)
            for log, topic in enumerate(("a", "z"), PARTITIONS)
        ]
        model.changes += written
        with transaction(self.connection) as cursor:
            self._stage(cursor, written)
            self.writer.insert_staged(
                cursor, StagedRows(sql.Identifier("staged"), FOREIGN, {7: len(written)}), COLUMNS
            )

    def _stage(self, cursor: Any, written: list[Change]) -> None:
        cursor.execute(
            "create temporary table staged on commit drop as select *, 7::bigint as task_attempt "
            "from public.target_change with no data"
        )
        execute_values(
            cursor,
            "insert into staged (id, name, version, minor, deleted, kafka_topic, kafka_partition, kafka_offset, "
            "task_attempt) values %s",
            [
                (each.key, each.name, *(each.version or (None, None)), each.name is None, *each.place, 7)
                for each in written
            ],
        )

    def compact(self) -> None:
        parts = [
            (OffsetRange(TOPIC, partition, 0, horizon, UUID(int=1)), self.model.batches[1:])
            for partition, horizon in enumerate(self.model.horizons)
            if horizon
        ]
        with transaction(self.connection) as cursor:
            before = len(self.places())
            preview = self.writer.compactor.preview(cursor, parts)
            assert self.writer.compactor.compact(cursor, parts) == preview
            assert before - len(self.places()) == sum(dropped for dropped, _ in preview.values())
            again = self.writer.compactor.compact(cursor, parts)
            assert {each: (0, kept) for each, (_, kept) in preview.items() if kept} == again

    def state(self) -> dict[int, str]:
        with transaction(self.connection) as cursor:
            cursor.execute("select id, name from public.target")
            return dict(map(tuple, cursor.fetchall()))

    def places(self) -> list[tuple[str, int, int]]:
        with self.connection.cursor() as cursor:
            cursor.execute("select kafka_topic, kafka_partition, kafka_offset from public.target_change")
            return list(map(tuple, cursor.fetchall()))


@pytest.mark.parametrize("versioned", [True, False])
def test_any_history_of_advances_replays_and_compactions(connection, versioned):
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        model = Model(chance, versioned)
        target = Target(connection, model)
        if versioned and seed % 2:
            target.write_foreign()
        for step in range(14):
            partition = chance.randrange(PARTITIONS)
            head, horizon = model.heads[partition], model.horizons[partition]
            if step % 4 == 3:
                model.horizons = [
                    chance.randint(low, high) for low, high in zip(model.horizons, model.heads, strict=True)
                ]
                target.compact()
                assert set(target.places()) == model.left(), seed
            elif chance.random() < 0.5 or horizon == head:
                until = head + chance.randint(1, 8)
                target.publish(model.write(partition, head, until))
                model.heads[partition] = until
            else:
                start, end = sorted(chance.sample(range(horizon, head + 1), 2))
                asked = OffsetRange(TOPIC, partition, start, end, UUID(int=1))
                target.publish(model.write(partition, start, end), asked)
            assert target.state() == model.target(), (seed, step)
