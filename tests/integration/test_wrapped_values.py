"""Compressed values, several documents in a value, JSON Schema and Protobuf: from Kafka into Postgres, and audited."""

import base64
import gzip

import pytest

from exactbatch import Append, Json, JsonSchema, Protobuf
from exactbatch.audit.run_audit import audit
from support.protobuf_schema import shop_class, shop_file
from support.registry import registry_with
from support.writers import table_of

PROTOBUF = base64.b64encode(shop_file().SerializeToString()).decode()
ANSWERS = {
    "/schemas/ids/7?format=serialized": (200, {"schema": PROTOBUF, "schemaType": "PROTOBUF"}),
    "/schemas/ids/9": (200, {"schema": "{}", "schemaType": "JSON"}),
}
SCHEMA = (
    "id bigint from 'f_int64', sku text from 'items[].sku', quantity int from 'items[].quantity' default 1"
)
ORDERS = (
    {"f_int64": 1, "items": [{"sku": "a", "quantity": 3}, {"sku": "b"}]},
    {"f_int64": 2},
    {"f_int64": 3, "items": [{"sku": "c", "quantity": 0}]},
)
JSON = (
    b'{"f_int64": 1, "items": [{"sku": "a", "quantity": 3}, {"sku": "b"}]}',
    b'{"f_int64": 2}',
    b'{"f_int64": 3, "items": [{"sku": "c", "quantity": 0}]}',
)


def orders():
    return [shop_class("Order")(**each).SerializeToString() for each in ORDERS]


# For each kind, the format at the address of a registry, and its three values.
KINDS = {
    "base64 of gzip": (
        lambda _: Json(SCHEMA, encoding=("base64", "gzip")),
        lambda: [base64.b64encode(gzip.compress(each)) for each in JSON],
    ),
    "an array of documents": (
        lambda _: Json(SCHEMA, documents="array"),
        lambda: [b"[" + JSON[0] + b"]", b"[]", b"[" + JSON[1] + b"," + JSON[2] + b"]"],
    ),
    "JSON Schema": (
        lambda registry: JsonSchema(SCHEMA, registry=registry),
        lambda: [b"\0\0\0\0\x09" + each for each in JSON],
    ),
    "Protobuf": (
        lambda registry: Protobuf(SCHEMA, registry=registry),
        lambda: [b"\0\0\0\0\x07\x02\x02" + each for each in orders()],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_records_arrive_and_an_audit_finds_what_differs(world, make_topic, make_pipeline, kind):
    topic = make_topic(1)
    value_of, values_of = KINDS[kind]
    with registry_with(ANSWERS) as registry:
        sink = Append(f'public."{topic.name}"')
        pipeline = make_pipeline(topic, value=value_of(registry), sink=sink, max_rejects=1)
        topic.produce(*values_of(), b"{")
        batch = world.run(pipeline).batch
        assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (4, 3, 1, 1)
        table = table_of(sink, world.connection)
        stored = world.rows(f"select id, sku, quantity, kafka_offset from {table} order by 1, 2")
        assert stored == [(1, "a", 3, 0), (1, "b", 1, 0), (3, "c", 0, 2)]
        assert audit(pipeline, world.settings, values=True).is_exact
        world.execute(f"update {table} set quantity = quantity + 1 where sku = 'b'")
        report = audit(pipeline, world.settings, values=True)
        assert {kind: count for kind, count in report.findings.items() if count} == {"changed": 1}
