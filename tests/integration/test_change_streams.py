"""Events of each connector, in any order, give the table that they were captured from."""

import random
from typing import Any, Final

import pyarrow as pa
import pytest

from exactbatch import Debezium, Pipeline, Upsert
from exactbatch.formats import as_changes
from exactbatch.formats.debezium_versions import CONNECTORS
from support.captured_table import COLUMNS, TRUNCATES, CapturedTable
from support.environment import LONG, draw_seed
from support.staged_batches import Batches, Row, differences_that_the_audit_finds

ROUNDS: Final = 60 if LONG else 6
KEY: Final = ("id",)
VERSIONED: Final = ("postgres", "mysql", "sqlserver", "oracle")


def batches_of(connection: Any, connector: str) -> Batches:
    truncate: Any = "apply" if connector in TRUNCATES else "reject"
    value = Debezium(COLUMNS, version=connector, truncate=truncate)
    sink = Upsert("public.t", key=KEY, version=CONNECTORS[connector])
    return Batches(connection, Pipeline(name="p", topics=("t",), value=value, sink=sink))


def changes_in(form: Any, values: list[bytes | None]) -> list[Row]:
    """The changes of values as a batch stages them; whatever else there is tells of no row."""
    events = pa.array(values, pa.binary())
    decoded = as_changes(
        form.decode_with_unchanged(events),
        events,
        events,
        None,
        KEY,
        tombstones_delete=False,
        keeps_unchanged=True,
    )
    assert decoded.rejects == ()
    assert len(decoded.kept) + decoded.tombstones == len(values)
    return [tuple(row.values()) for row in decoded.rows.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("connector", VERSIONED)
def test_events_in_any_order_over_partitions_batches_and_replays_give_the_source(
    connection, db, connector, number
):
    """With transactions that overlap each other and the snapshot, rotated binlogs, truncates, deletes, updates of keys,
    values that were left out, repeated events, and events that carry no row."""
    chance = random.Random(f"{connector} {number} {draw_seed()}")
    source = CapturedTable(connector, chance)
    steps = chance.randint(20, 60)
    snapshot = chance.randrange(steps)
    for step in range(steps):
        source.work()
        if step == snapshot:
            source.snapshot()
    source.finish()
    made, events = batches_of(connection, connector), source.take_events()
    pool = changes_in(made.pipeline.value, [*events, *chance.choices(events, k=10)])
    chance.shuffle(pool)
    while pool:
        count, partition = chance.randint(1, 25), chance.randrange(3)
        made.run(*pool[:count], partition=partition)
        del pool[:count]
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
