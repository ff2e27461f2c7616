"""Flattened events, and plain and binary keys, from Kafka into Postgres, with an audit of all values."""

import json
import struct

import pytest

from exactbatch import Append, Flattened, Json, Raw, Text, Upsert
from exactbatch.audit.run_audit import audit
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import decimal, typed, unscaled
from support.registry import registry_server

SCHEMA = {
    "type": "struct",
    "name": "shop.public.t.Value",
    "fields": [
        {**typed("int32"), "field": "id"},
        {**decimal(2), "field": "price"},
        {**typed("string"), "field": "body"},
        {**typed("string"), "field": "__deleted"},
    ],
}
HEARTBEAT = {
    "type": "struct",
    "name": "io.debezium.connector.common.Heartbeat",
    "fields": [{"type": "int64", "field": "ts_ms"}],
}


def row(number, price, body="b", deleted="false"):
    return {"id": number, "price": price, "body": body, "__deleted": deleted}


def written(value, schema):
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(
        {"schema": schema, "payload": value} if schema else value, separators=(",", ":")
    ).encode()


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["schema", "bare"])
def test_the_target_is_the_source_in_both_modes_of_deletes(world, make_topic, make_pipeline, schema, history):
    topic = make_topic()

    def send(value, number, of=schema):
        topic.produce(written(value, of), key=json.dumps({"id": number}).encode())

    def price(cents):
        return unscaled(cents) if schema else f"{cents / 100:.2f}"

    for number in range(1, 7):
        send(row(number, price(100 * number)), number)
    send(row(1, None, deleted="true"), 1)  # rewrite
    send(row(2, None, deleted="true"), 2)  # rewrite-with-tombstone
    send(None, 2)
    send(b'{"schema":{"type":"struct"},"payload":null}' if schema else b"null", 3)  # tombstone
    send({"ts_ms": 1}, 0, of=schema and HEARTBEAT)
    if history:
        send(row(4, price(450), body="__debezium_unavailable_value"), 4)
    form = "id int, price numeric(10,2), body text"
    pipeline = make_pipeline(
        topic,
        value=Flattened(form, decimals=None if schema else "string"),
        message_key=Flattened("id int"),
        sink=Upsert(f'public."{topic.name}"', key=("id",), history=history),
    )
    batch = world.run(pipeline).batch
    assert (batch.rejected, batch.tombstones) == (0, 1)
    send(row(1, price(10)), 1)
    send(None, 5)
    world.run(pipeline)
    found = world.rows(f'select id, price::text, body from public."{topic.name}" order by id')
    assert found == [(1, "0.10", "b"), (4, "4.50" if history else "4.00", "b"), (6, "6.00", "b")]
    for values in (False, True):
        report = audit(pipeline, world.settings, values=values)
        assert report.is_exact
        assert sum(each.tombstones for each in report.partitions) == 1
    world.execute(f'update public."{topic.name}" set price = 5 where id = 6')
    assert not audit(pipeline, world.settings, values=True).is_exact


def test_rows_of_an_append_are_audited_and_a_row_for_a_null_is_found(world, make_topic, make_pipeline):
    topic = make_topic()
    for value in (
        row(1, "1"),
        b"null",
        None,
        b'{"schema":null,"payload":null}',
        {"ts_ms": 1},
        row(1, "1", deleted="true"),
    ):
        topic.produce(written(value, None))
    table = f'public."{topic.name}"'
    pipeline = make_pipeline(topic, value=Flattened("id int, price text"), sink=Append(table))
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (6, 2, 0, 4)
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f"update {table} set kafka_offset = 1 where kafka_offset = 0")
    [found] = audit(pipeline, world.settings, values=True).partitions
    assert (found.missing.first, found.unexpected.first) == ([0], [1])


def test_avro_with_a_registry_is_loaded_and_audited(world, make_topic, make_pipeline):
    topic = make_topic()
    with registry_server() as registry:
        registry.has(1, avro_schema(SCHEMA))
        registry.has(2, avro_schema(HEARTBEAT))
        events = [
            (1, row(1, unscaled(100))),
            (1, row(2, unscaled(200))),
            (1, row(1, None, deleted="true")),
            (2, {"ts_ms": 1}),
        ]
        for schema_id, event in events:
            schema = SCHEMA if schema_id == 1 else HEARTBEAT
            topic.produce(b"\0" + schema_id.to_bytes(4, "big") + avro_body(schema, event), key=b"k")
        value = Flattened("id int, price numeric(10,2)", registry=registry.address)
        sink = Upsert(f'public."{topic.name}"', key=("id",))
        pipeline = make_pipeline(topic, value=value, sink=sink)
        batch = world.run(pipeline).batch
        assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (4, 3, 0, 1)
        assert world.rows(f'select id, price::text from public."{topic.name}"') == [(2, "2.00")]
        assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize(
    ("key", "write"),
    [
        (Text("id bigint"), lambda number: str(number).encode()),
        (Raw("id bigint"), lambda n: struct.pack(">q", n)),
    ],
    ids=["text", "binary"],
)
def test_tombstones_of_plain_keys_delete_rows(world, make_topic, make_pipeline, key, write):
    topic = make_topic()
    for number in (1, 2, 300):
        topic.produce(json.dumps({"id": number, "name": "a"}).encode(), key=write(number))
    topic.produce(None, key=write(300))
    topic.produce(None, key=b"1234567")
    table = f'public."{topic.name}"'
    pipeline = make_pipeline(
        topic,
        value=Json("id bigint, name text"),
        message_key=key,
        sink=Upsert(table, key=("id",)),
        max_rejects=1,
    )
    batch = world.run(pipeline).batch
    assert batch.rejected == (0 if isinstance(key, Text) else 1)
    assert world.rows(f"select id from {table} order by id") == [(1,), (2,)]
    assert audit(pipeline, world.settings, values=True).is_exact
