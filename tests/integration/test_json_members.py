"""Columns by paths, defaults and rows of elements: counted, replayed, rejected as a whole record, and audited."""

from typing import Any

import pytest

from exactbatch import Append, Json, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.sinks.writers import find_writer
from support.replays import ranges

ORDERS = Json(
    "order_id int from 'id', sku text from 'items[].sku', quantity int from 'items[].quantity' default 1, "
    "token uuid from 'items[].token', place text from 'address.city'"
)
RECORDS = (
    b'{"id": 1, "items": [{"sku": "a", "quantity": 3}, {"sku": "b"}], "address": {"city": "Ulm"}}',
    b'{"id": 2, "items": []}',
    b'{"id": 3}',
    b'{"id": 4, "items": [{"sku": "c"}, {"sku": 5}]}',
    b'{"id": 5, "items": [{"sku": "d"}, {"sku": "e", "token": "none"}]}',
    b'{"id": 6, "items": [{"sku": "f", "quantity": null}, {"sku": "f2"}], "address": null}',
    b'{"id": 7, "items": [{"sku": "g"}, {"sku": "g"}]}',
)
EXPECTED = [
    (1, "a", 3, "Ulm", 0),
    (1, "b", 1, "Ulm", 0),
    (6, "f", None, None, 5),
    (6, "f2", 1, None, 5),
    (7, "g", 1, None, 6),
    (7, "g", 1, None, 6),
]
COLUMNS = "order_id, sku, quantity, place, kafka_offset"


def stored(world: Any, pipeline: Any) -> list[tuple[Any, ...]]:
    table = find_writer(pipeline.traits).lineage_table.identifier.as_string(world.connection)
    return world.rows(f"select {COLUMNS} from {table} order by kafka_offset, sku")


def changed(world: Any, pipeline: Any) -> dict[str, int]:
    report = audit(pipeline, world.settings, values=not pipeline.is_transformed)
    return {kind: count for kind, count in report.findings.items() if count}


@pytest.mark.parametrize("layout", ["plain", "by_batch"])
def test_elements_become_rows_that_name_their_record(world, replays, make_topic, make_pipeline, layout):
    topic = make_topic(1)
    sink = Append(
        f'public."{topic.name}"', **({} if layout == "plain" else {"layout": layout, "min_offsets": 1})
    )
    pipeline = make_pipeline(topic, value=ORDERS, sink=sink, max_rejects=2)
    topic.produce(*RECORDS, None)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones, batch.dropped) == (8, 6, 2, 1, 2)
    assert stored(world, pipeline) == EXPECTED
    reasons = world.rows('select "offset", reason from exactbatch.rejected_record order by 1')
    assert [offset for offset, _ in reasons] == [3, 4]
    assert "items/[]/sku: expected string, found number" in reasons[0][1]
    assert "column 'token', uuid: invalid input syntax" in reasons[1][1]
    assert changed(world, pipeline) == {}
    replays.run(pipeline, ranges((0, 6), topic=topic))
    assert stored(world, pipeline) == EXPECTED
    assert changed(world, pipeline) == {}


@pytest.mark.parametrize(
    "fault",
    [
        "update {t} set quantity = 4 where sku = 'a'",
        "update {t} set sku = 'b' where sku = 'a'",
        "update {t} set quantity = 1 where order_id = 6 and quantity is null",
        "update {t} set place = 'Bonn' where order_id = 1 and sku = 'b'",
        "update {t} set kafka_offset = 1 where ctid in (select ctid from {t} where order_id = 7 limit 1)",
        "update {t} x set sku = y.sku, quantity = y.quantity, order_id = y.order_id, place = y.place "
        "from {t} y where x.sku = 'b' and y.sku = 'f2'",
        "update {t} set kafka_offset = 4 where sku = 'b'",
    ],
)
def test_an_audit_finds_a_wrong_row_among_those_of_a_record(world, make_topic, make_pipeline, fault):
    topic = make_topic(1)
    pipeline = make_pipeline(topic, value=ORDERS, sink=Append(f'public."{topic.name}"'), max_rejects=2)
    topic.produce(*RECORDS)
    world.run(pipeline)
    assert changed(world, pipeline) == {}
    world.execute(
        fault.replace("{t}", find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection))
    )
    assert changed(world, pipeline)["changed"] >= 1


def test_an_upsert_takes_several_changes_of_a_record(world, make_topic, make_pipeline):
    topic = make_topic(1)
    sink = Upsert(f'public."{topic.name}"', key=("order_id", "sku"))
    pipeline = make_pipeline(topic, value=ORDERS, sink=sink, max_rejects=2)
    topic.produce(*RECORDS[:6])
    topic.produce(b'{"id": 1, "items": [{"sku": "a", "quantity": 9}]}')
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (7, 5, 2, 2)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    assert world.rows(f"select order_id, sku, quantity from {table} order by 1, 2") == [
        (1, "a", 9),
        (1, "b", 1),
        (6, "f", None),
        (6, "f2", 1),
    ]
    assert changed(world, pipeline) == {}
    world.execute(
        f"update {table.replace(topic.name, topic.name + '_change')} set quantity = 8 where quantity = 9"
    )
    assert changed(world, pipeline)["changed"] == 1


@pytest.mark.parametrize(
    "sql",
    [
        "select * from records where sku <> 'b'",
        "select order_id, upper(sku) as sku, quantity, token, place, kafka_topic, kafka_partition, kafka_offset, "
        "kafka_timestamp from records where sku <> 'b'",
    ],
)
def test_a_transform_gets_a_row_for_each_element(world, make_topic, make_pipeline, sql):
    topic = make_topic(1)
    pipeline = make_pipeline(
        topic, value=ORDERS, sink=Append(f'public."{topic.name}"'), max_rejects=2, transform=sql
    )
    topic.produce(*RECORDS)
    batch = world.run(pipeline).batch
    kept = [row for row in EXPECTED if row[1] != "b"]
    assert [(row[0], row[1].lower(), *row[2:]) for row in stored(world, pipeline)] == kept
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (7, 5, 2, 2)
    assert changed(world, pipeline) == {}
