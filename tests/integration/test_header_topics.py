"""Topics whose records name their schemas in headers: loaded, audited, tried, and recognized."""

import io
from typing import Any
from uuid import UUID

import fastavro
import pytest

from exactbatch import Append, Avro, Debezium, JsonSchema, Protobuf, Upsert, WithKeyAndHeaders
from exactbatch.audit.run_audit import audit
from exactbatch.kafka.sample import Bounds
from exactbatch.operations.try_records import try_records
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import envelope, typed
from support.protobuf_schema import shop_class, shop_proto
from support.registry import registry_server

pytestmark = pytest.mark.usefixtures("reader")

VALUE, KEY = "__value_schema_id", "__key_schema_id"
SIX = {
    "type": "record",
    "name": "Six",
    "fields": [{"name": name, "type": "long"} for name in ("id", *"abcde")],
}
ONE = {"type": "record", "name": "One", "fields": [{"name": "id", "type": "long"}]}
ENVELOPE = envelope({"id": typed("int64")}, {"lsn": typed("int64")})
HEARTBEAT = {"type": "struct", "name": "h.Heartbeat", "fields": [{"type": "int64", "field": "ts_ms"}]}
COUNT = 40


def guid(schema_id: int) -> UUID:
    return UUID(int=schema_id << 64 | schema_id)


def header(schema_id: int, indexes: bytes = b"") -> bytes:
    return b"\1" + guid(schema_id).bytes + indexes


def prefix(schema_id: int, indexes: bytes = b"") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + indexes


@pytest.fixture(scope="module")
def registry():
    with registry_server() as served:
        for schema_id, schema in (
            (1, SIX),
            (2, ONE),
            (4, avro_schema(ENVELOPE)),
            (5, avro_schema(HEARTBEAT)),
        ):
            served.has(schema_id, schema, guid=guid(schema_id))
        served.has(3, {}, guid=guid(3), schemaType="JSON")
        served.has(7, shop_proto(), guid=guid(7), schemaType="PROTOBUF")
        yield served.address


def avro(schema: Any, **row: int) -> bytes:
    fastavro.schemaless_writer(stream := io.BytesIO(), schema, row)
    return stream.getvalue()


def six(number: int) -> bytes:
    return avro(SIX, id=number, **dict.fromkeys("abcde", 0))


def event(number: int, op: str = "c") -> bytes:
    row, source = {"id": number}, {"lsn": number}
    before, after = (row, None) if op == "d" else (None, row)
    value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
    return avro_body(ENVELOPE, value)


# For each format: how it is made, a value, the number of its schema, and the indexes of its message type.
FORMATS = {
    "Avro": (lambda at: Avro(registry=at, fields="id bigint"), six, 1, b""),
    "JsonSchema": (lambda at: JsonSchema("id bigint", registry=at), lambda n: b'{"id": %d}' % n, 3, b""),
    "JsonSchema by paths": (
        lambda at: JsonSchema("id bigint from 'a.id'", registry=at),
        lambda n: b'{"a": {"id": %d}}' % n,
        3,
        b"",
    ),
    "Protobuf": (
        lambda at: Protobuf("id bigint from 'f_int64'", registry=at),
        lambda n: shop_class("Order")(f_int64=n).SerializeToString(),
        7,
        b"\2\2",
    ),
    "Debezium": (lambda at: Debezium("id bigint", registry=at), event, 4, b""),
}


def test_the_bytes_of_an_id_in_a_bare_body_are_no_prefix(world, make_topic, make_pipeline, registry):
    body = avro(SIX, id=0, a=0, b=0, c=0, d=1, e=21)
    assert body.hex(" ") == "00 00 00 00 02 2a"
    topic = make_topic(1)
    topic.produce(body, headers=[(VALUE, header(1))])
    pipeline = make_pipeline(
        topic, value=Avro(registry=registry, fields="id bigint"), sink=Append(f'public."{topic.name}"')
    )
    world.run(pipeline)
    assert world.rows(f'select id from public."{topic.name}"') == [(0,)]
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f'update public."{topic.name}" set id = 21')
    report = audit(pipeline, world.settings, values=True)
    assert {kind: count for kind, count in report.findings.items() if count} == {"changed": 1}


@pytest.mark.parametrize("name", FORMATS)
def test_headers_and_prefixes_in_one_topic(world, make_topic, make_pipeline, registry, name):
    make, body, schema_id, indexes = FORMATS[name]
    topic = make_topic(1)
    of_header, of_prefix = header(schema_id, indexes), prefix(schema_id, indexes)
    for number in range(COUNT):
        if number % 2:
            topic.produce(of_prefix + body(number))
        else:
            topic.produce(body(number), headers=[("trace", b"x"), (VALUE, of_header)])
    topic.produce(None, headers=[(VALUE, of_header)])
    topic.produce(of_prefix + body(1), headers=[(VALUE, b"\3")])
    topic.produce(body(1), headers=[(VALUE, header(99, indexes))])
    sink = Append(f'public."{topic.name}"')
    pipeline = make_pipeline(topic, value=make(registry), sink=sink, max_rejects=2)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (COUNT + 3, COUNT, 2, 1)
    stored = world.rows(f'select id, kafka_offset from public."{topic.name}" order by 2')
    assert stored == [(number, number) for number in range(COUNT)]
    (bad, unknown) = world.rows(
        f"select reason from exactbatch.rejected_record where pipeline = '{pipeline.name}' order by \"offset\""
    )
    assert bad[0].startswith(f"header {VALUE!r}: expected byte 1 and the 16 bytes of a schema's GUID")
    assert unknown[0].endswith(f"with the GUID {guid(99)}")
    assert audit(pipeline, world.settings).is_exact
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f'update public."{topic.name}" set id = -1 where id = 6')
    report = audit(pipeline, world.settings, values=True)
    assert {kind: count for kind, count in report.findings.items() if count} == {"changed": 1}


def test_keys_and_tombstones(world, make_topic, make_pipeline, registry):
    topic = make_topic(1)
    both = [(KEY, header(2)), (VALUE, header(1))]
    for number in range(10):
        topic.produce(six(number), key=avro(ONE, id=number), headers=both)
    topic.produce(None, key=avro(ONE, id=3), headers=both[:1])
    topic.produce(None, key=prefix(2) + avro(ONE, id=4))
    topic.produce(None, key=avro(ONE, id=5), headers=[(KEY, b"bad")])
    value = Avro(registry=registry, fields="id bigint, a bigint")
    key = Avro(registry=registry, fields="id bigint")
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(topic, value=value, message_key=key, sink=sink, max_rejects=1)
    world.run(pipeline)
    assert [row for (row,) in world.rows(f'select id from public."{topic.name}" order by 1')] == [
        number for number in range(10) if number not in (3, 4)
    ]
    assert audit(pipeline, world.settings, values=True).is_exact
    with_key = make_pipeline(
        topic,
        name=f"{pipeline.name}_key",
        value=WithKeyAndHeaders(
            value, key=Avro(registry=registry, fields="key bigint"), all_headers="all_headers"
        ),
        sink=Append(f'public."{topic.name}_key"'),
    )
    assert try_records(with_key, world.settings, Bounds(100)).with_rows == 10


def test_events_without_a_row_are_known_to_an_audit(world, make_topic, make_pipeline, registry):
    topic = make_topic(1)
    topic.produce(*map(event, range(10)), headers=[(VALUE, header(4))])
    topic.produce(avro_body(HEARTBEAT, {"ts_ms": 1}), headers=[(VALUE, header(5))])
    topic.produce(prefix(5) + avro_body(HEARTBEAT, {"ts_ms": 1}))
    topic.produce(event(3, "d"), headers=[(VALUE, header(4))])
    form = Debezium("id bigint", registry=registry)
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(topic, value=form, sink=sink)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.tombstones) == (13, 11, 2)
    assert audit(pipeline, world.settings).is_exact
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f'delete from public."{topic.name}_change" where id = 7')
    assert audit(pipeline, world.settings).findings["missing"] == 1


def test_the_newest_records_are_tried_by_their_headers(world, make_topic, make_pipeline, registry):
    topic = make_topic(1)
    topic.produce(*map(six, range(5)), headers=[(VALUE, header(1))])
    value = Avro(registry=registry, fields="id bigint")
    trial = try_records(make_pipeline(topic, value=value), world.settings, Bounds(100))
    assert trial.rows.column("id").to_pylist() == [0, 1, 2, 3, 4]
