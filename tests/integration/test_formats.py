"""Records of every format arrive in Postgres exactly as they were written."""

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from exactbatch import Avro, Csv, Custom, Json, Pipeline, Raw, Text, Upsert, WithKeyAndHeaders
from exactbatch.errors import ConfigurationError, TasksFailed
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.registry import registry_server

# Executors cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "unit", "type": {"type": "enum", "name": "Unit", "symbols": ["C", "F"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
AT = datetime(2024, 2, 29, 10, 0, 0, 123000, UTC)


def reading(number: int) -> dict[str, Any]:
    note = None if number % 2 else f"é{number}"
    amount = Decimal(number).scaleb(-2)
    return {"id": number, "at": AT, "amount": amount, "unit": "F", "tags": ["x", None], "note": note}


def body(number: int) -> bytes:
    fastavro.schemaless_writer(stream := io.BytesIO(), fastavro.parse_schema(SCHEMA), reading(number))
    return stream.getvalue()


@pytest.fixture
def registry():
    """A schema registry with one schema, id 7, for those who know the secret."""

    with registry_server() as served:
        served.has(7, SCHEMA)
        served.authorization = "Basic bWU6c2VjcmV0"
        yield served.address


def target(world: BatchRunner, pipeline: Pipeline, order: str = "kafka_offset") -> list[tuple[Any, ...]]:
    """The pipeline's own columns, in the order of the records."""
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    names = ", ".join(f'"{column.name}"' for column in pipeline.value.columns)
    return world.rows(f"select {names} from {table} order by {order}")


def reasons(world: BatchRunner, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    return world.rows(
        f"select \"offset\", reason from exactbatch.rejected_record where pipeline = '{pipeline.name}' order by 1"
    )


@pytest.mark.slow
def test_avro_bodies_are_loaded_exactly(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*map(body, range(500)), b"\x02", *map(body, range(500, 510)))
    pipeline = make_pipeline(topic, value=Avro(json.dumps(SCHEMA)), max_rejects=1)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (511, 510, 1)
    assert target(world, pipeline) == [tuple(reading(number).values()) for number in range(510)]
    [(offset, reason)] = reasons(world, pipeline)
    assert offset == 500
    assert reason == "column 'at', timestamp with time zone: the body ends before this field does"
    assert world.is_exact(pipeline)


@pytest.mark.slow
def test_avro_with_a_registry_is_loaded_exactly(world, make_topic, make_pipeline, registry):
    topic = make_topic()
    topic.produce(*(b"\0\0\0\0\7" + body(number) for number in range(100)), b"\0\0\0\0\10", b"{}")
    value = Avro(registry=registry, fields="id bigint, note text, amount numeric(10,2)")
    pipeline = make_pipeline(topic, value=value, max_rejects=2)
    batch_id = world.plan(pipeline)
    # Without the secret, and without the registry, the batch fails, and nothing is a reject.
    assert "answered HTTP status 401" in world.refused(ConfigurationError, pipeline, batch_id)
    gone = replace(pipeline, value=replace(value, registry="http://127.0.0.1:1"))
    assert "cannot be reached for schema 7: ConnectError" in world.refused(TasksFailed, gone, batch_id)
    world.settings.kafka["schema.registry.basic.auth.user.info"] = "me:secret"  # type: ignore[index]
    batch = world.process(pipeline, batch_id).batch
    assert (batch.records, batch.rows, batch.rejected) == (102, 100, 2)
    assert target(world, pipeline) == [
        (each["id"], each["note"], each["amount"]) for each in map(reading, range(100))
    ]
    assert [offset for offset, _ in reasons(world, pipeline)] == [100, 101]
    assert world.is_exact(pipeline)


def test_csv_is_loaded_exactly(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*(f'{number},"a ""b""\n{number}",\n'.encode() for number in range(300)))
    topic.produce(b"1,2", b'1,"x', b"300,,2024-02-29")
    pipeline = make_pipeline(topic, value=Csv("id int, name text, day date"), max_rejects=2)
    world.run(pipeline)
    assert target(world, pipeline) == [
        *((number, f'a "b"\n{number}', None) for number in range(300)),
        (300, None, datetime(2024, 2, 29).date()),
    ]
    assert [offset for offset, _ in reasons(world, pipeline)] == [300, 301]
    assert world.is_exact(pipeline)


def halves(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
    """Values are "number/text"; others are refused."""
    text = batch.column("value").cast(pa.string())
    good = pc.match_substring_regex(text, r"^\d+/")
    parts = pc.extract_regex(text.filter(good), r"^(?P<n>\d+)/(?P<s>(?s).*)")
    n, s = (pc.struct_field(parts, [name]) for name in "ns")
    index = batch.column("value_index")
    rows = pa.record_batch({"value_index": index.filter(good), "name": s, "id": n.cast(pa.int32())})
    return rows, dict.fromkeys(index.filter(pc.invert(good)).to_pylist(), "expected number/text")


def test_a_function_of_the_users_own_is_loaded_exactly(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*(f"{number}/x{number}".encode() for number in range(200)), b"x", None, b"200/")
    pipeline = make_pipeline(topic, value=Custom(halves, "id int, name text"), max_rejects=1)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (203, 201, 1, 1)
    assert target(world, pipeline) == [*((number, f"x{number}") for number in range(200)), (200, "")]
    assert reasons(world, pipeline) == [(200, "expected number/text")]
    assert world.is_exact(pipeline)


def test_a_mistake_in_a_function_ends_the_batch(world, make_topic, make_pipeline):
    def loses_one(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        rows, rejects = halves(batch)
        return rows.slice(1), rejects

    topic = make_topic()
    topic.produce(b"1/x", b"2/y")
    pipeline = make_pipeline(topic, value=Custom(loses_one, "id int, name text"))
    with pytest.raises(
        ConfigurationError, match="loses_one of the format Custom: expected one row or reject"
    ):
        world.run(pipeline)
    assert target(world, pipeline) == []


def test_key_and_headers_are_loaded_exactly(world, make_topic, make_pipeline):
    topic = make_topic()
    for number in range(50):
        headers = [("trace", b"old"), ("trace", f"t{number}".encode()), ("raw", b"\xff\0"), ("none", None)]
        topic.produce(b'{"id":%d}' % number, key=b"k%d" % number, headers=headers)
    topic.produce(b'{"id":50}')
    topic.produce(b'{"id":51}', key=b"\xff")
    topic.produce(None, key=b"\xff")
    value = WithKeyAndHeaders(
        Json("id int"),
        key=Text("kafka_key"),
        headers={"trace": Text("trace"), "raw": Raw("raw"), "none": Raw("none")},
    )
    pipeline = make_pipeline(topic, value=value, max_rejects=1)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (53, 51, 1, 1)
    found = [
        tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in target(world, pipeline)
    ]
    assert found == [
        *((number, f"k{number}", f"t{number}", b"\xff\0", None) for number in range(50)),
        (50, None, None, None, None),
    ]
    assert reasons(world, pipeline) == [(51, "key: found byte FF at position 0, which is not UTF-8")]
    assert world.is_exact(pipeline)


def test_an_upsert_takes_its_key_from_the_message(world, make_topic, make_pipeline):
    topic = make_topic()
    for number, name in ((1, "a"), (2, "b"), (1, "c"), (3, "d")):
        topic.produce(
            json.dumps({"name": name}).encode(), key=b'{"id":%d}' % number, headers=[("h", name.encode())]
        )
    topic.produce(None, key=b'{"id":2}')
    pipeline = make_pipeline(
        topic,
        value=WithKeyAndHeaders(Json("name text"), key=Json("id int"), headers={"h": Text("h")}),
        sink=Upsert(f'public."{topic.name}"', key=("id",)),
        message_key=Json("id int"),
    )
    world.run(pipeline)
    assert target(world, pipeline, order="id") == [("c", 1, "c"), ("d", 3, "d")]
    assert world.is_exact(pipeline)


def test_arrays_and_moments_as_numbers_are_loaded_exactly(world, make_topic, make_pipeline):
    topic = make_topic()
    values = [
        {
            "a": [1, None, number],
            "t": ['x,{}"', None, ""],
            "m": [],
            "n": None,
            "at": 1_709_200_800_123 + number,
        }
        for number in range(100)
    ]
    topic.produce(*(json.dumps(value).encode() for value in values))
    value = Json(
        "a int[], t text[], m timestamptz[], n numeric(10,2)[], at timestamptz, d date[]", epoch={"at": "ms"}
    )
    pipeline = make_pipeline(topic, value=value)
    world.run(pipeline)
    assert target(world, pipeline) == [
        (v["a"], v["t"], [], None, datetime.fromtimestamp(v["at"] / 1000, UTC), None) for v in values
    ]
    assert world.is_exact(pipeline)


def test_function_that_does_not_reach_what_it_asks_is_named_with_what_it_raised(
    world, make_topic, make_pipeline
):
    def asks(_: Any) -> Any:
        raise OSError("net.example is away")

    topic = make_topic()
    topic.produce(b"1")
    pipeline = make_pipeline(topic, value=Custom(asks, "id int"))
    message = world.refused(TasksFailed, pipeline)
    assert "asks of the format Custom raised OSError: net.example is away. Nothing was written" in message


def test_a_mistake_of_ours_is_told_with_its_type_and_text(world, make_topic, make_pipeline):
    class Broken(Raw):
        @property
        def reads_schema_ids(self) -> bool:
            raise LookupError("no such thing. " + "x" * 2000)

    topic = make_topic()
    topic.produce(b"1")
    message = world.refused(TasksFailed, make_pipeline(topic, value=Broken()))
    assert "LookupError: no such thing. xxx" in message
