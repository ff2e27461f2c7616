"""Events of each connector, over partitions and batches, give the table that they were captured from."""

import random
from typing import Any, Final

import pyarrow as pa
import pytest

from exactbatch import Debezium, Pipeline, Upsert
from exactbatch.formats.debezium.commit_positions import CONNECTORS
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.upsert_changes import as_changes
from support.captured_table import COLUMNS, TRUNCATES, CapturedTable
from support.environment import LONG, draw_seed
from support.staged_batches import Batches, Row, differences_that_the_audit_finds

ROUNDS: Final = 60 if LONG else 6
KEY: Final = ("id",)
PARTITIONS: Final = 3
VERSIONED: Final = ("postgres", "mysql", "sqlserver", "oracle")


def describe_batches(connection: Any, connector: str) -> Batches:
    truncate: Any = "apply" if connector in TRUNCATES else "reject"
    value = Debezium(COLUMNS, version=connector, truncate=truncate)
    sink = Upsert("public.t", key=KEY, version=tuple(CONNECTORS[connector].columns))
    return Batches(connection, Pipeline(name="p", topics=("t",), value=value, sink=sink))


def changes_in(form: Any, values: list[bytes | None]) -> list[tuple[int, Row]]:
    """The changes of values as a batch stages them, with their indexes; whatever else there is tells of no row."""
    events = pa.array(values, pa.binary())
    decoded = as_changes(
        find_decoder(form).decode_with_unavailable(events),
        events,
        events,
        None,
        KEY,
        tombstones_delete=False,
        keeps_unavailable=True,
    )
    assert decoded.rejects == ()
    assert len(decoded.kept) + decoded.tombstones == len(values)
    rows = [tuple(row.values()) for row in decoded.rows.to_pylist()]
    return list(zip(decoded.kept.to_pylist(), rows, strict=True))


def sent(chance: random.Random, changes: list[tuple[int, Row]]) -> list[list[Row]]:
    """What each partition gets of changes and the numbers of their transactions.

    The events of a key go to one partition, until a topic with more partitions moves it to another. A connector that
    starts again sends the last events once more.
    """
    at: dict[Any, int] = {}
    everything: list[tuple[int, Row]] = []
    for (transaction, row), (before, _) in zip(changes, [(-1, ()), *changes], strict=False):
        if transaction != before and at and chance.random() < 0.3:
            at[chance.choice([*at])] = chance.randrange(PARTITIONS)
        key = row[0]
        partition = (
            chance.randrange(PARTITIONS) if key is None else at.setdefault(key, chance.randrange(PARTITIONS))
        )
        everything.append((partition, row))
        if chance.random() < 0.05:
            everything += everything[-chance.randint(1, 12) :]
    return [[row for each, row in everything if each == partition] for partition in range(PARTITIONS)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("connector", VERSIONED)
def test_events_over_partitions_batches_and_replays_give_the_source(connection, db, connector, number):
    """With transactions that overlap each other and the snapshot, inserts that were logged before the delete that they
    waited for, rotated binlogs, truncates, deletes, updates of keys, values that were left out, keys that move to
    another partition, repeated events, and events that carry no row."""
    chance = random.Random(f"{connector} {number} {draw_seed()}")
    source = CapturedTable(connector, chance)
    steps = chance.randint(20, 60)
    snapshot = chance.randrange(steps)
    for step in range(steps):
        source.work()
        if step == snapshot:
            source.snapshot()
    source.finish()
    made, events = describe_batches(connection, connector), source.take_events()
    changes = changes_in(made.pipeline.value, [value for value, _ in events])
    logs = sent(chance, [(events[at][1], row) for at, row in changes])
    while left := [partition for partition, log in enumerate(logs) if log]:
        count, partition = chance.randint(1, 25), chance.choice(left)
        made.run(*logs[partition][:count], partition=partition)
        del logs[partition][:count]
        if chance.random() < 0.3:
            until = len(made.log[partition])
            made.replay((partition, chance.randrange(until), until))
        assert differences_that_the_audit_finds(made) == 0
    made.replay()
    assert db.rows("select id, name, body from t order by id") == [
        (key, *row) for key, row in sorted(source.rows.items())
    ]
    assert db.rows("select count(*) from exactbatch.rejected_record") == [(0,)]
    assert differences_that_the_audit_finds(made) == 0
