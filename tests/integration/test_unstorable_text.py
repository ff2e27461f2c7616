"""Text that Postgres cannot hold, NaN, byte order marks and enveloped nulls, from the topic to the target."""

import json

import pytest

from exactbatch import Append, Csv, Debezium, Json, JsonSchema, Text, Upsert, WithKeyAndHeaders
from exactbatch.audit.run_audit import audit
from support.debezium_types import array, envelope, typed
from support.registry import registry_server

NULL = b'{"schema":null,"payload":null}'
MARK = b"\xef\xbb\xbf"


def is_exact(world, pipeline):
    report = audit(pipeline, world.settings, values=True)
    return bool(report.partitions) and report.is_exact


def reasons(world):
    return dict(world.rows('select "offset", reason from exactbatch.rejected_record'))


def sink_of(topic, history):
    target = f'public."{topic.name}"'
    return Append(target) if history is None else Upsert(target, key=("id",), history=history)


@pytest.mark.parametrize("history", [None, True, False])
def test_json_keeps_an_escaped_nul_that_jsonb_and_text_refuse(world, make_topic, make_pipeline, history):
    topic = make_topic()
    topic.produce(
        rb'{"id":1,"j":"\u0000","js":["\u0000",{"a":"x\u0000"}]}',
        rb'{"id":2,"j":{"\u0000":"\\u0000"}}',
        rb'{"id":3,"b":"\u0000"}',
        rb'{"id":4,"t":"\u0000"}',
        rb'{"id":5,"b":"\\u0000","other":"\u0000"}',
    )
    form = Json("id int, j json, js json[], b jsonb, t text")
    pipeline = make_pipeline(topic, value=form, sink=sink_of(topic, history), max_rejects=2)
    assert world.run(pipeline).batch.rejected == 2
    shown = f"select id, j::text, js::text[], b::text from {pipeline.traits.target} order by id"
    assert world.rows(shown) == [
        (1, r'"\u0000"', [r'"\u0000"', r'{"a":"x\u0000"}'], None),
        (2, r'{"\u0000":"\\u0000"}', None, None),
        (5, None, None, r'"\\u0000"'),
    ]
    found = reasons(world)
    assert "column 'b', jsonb: Postgres cannot store U+0000" in found[2]
    assert "column 't', text: Postgres cannot store U+0000" in found[3]
    assert is_exact(world, pipeline)


def test_structs_of_debezium_keep_an_escaped_nul_in_json(world, make_topic, make_pipeline):
    topic = make_topic()
    schema = envelope({"id": typed("int32"), **{name: {**typed("map"), "keys": typed("string"),
              "values": typed("string")} for name in ("j", "b")}}, {})  # fmt: skip
    for row in ({"id": 1, "j": {"a": "\0"}}, {"id": 2, "b": {"a": "\0"}}, {"id": 3, "b": {"a": r"\u0000"}}):
        event = {"op": "c", "before": None, "after": row}
        topic.produce(json.dumps({"schema": schema, "payload": event}).encode())
    pipeline = make_pipeline(topic, value=Debezium("id int, j json, b jsonb"), max_rejects=1)
    world.run(pipeline)
    assert world.target(pipeline, "id, j::text, b::text") == [
        (1, r'{"a": "\u0000"}', None),
        (3, None, r'{"a": "\\u0000"}'),
    ]
    assert "U+0000" in reasons(world)[1]
    assert is_exact(world, pipeline)


UNSTORABLE = [
    (rb'{"id":1,"t":"a\u0000b","b":{"\u0000":"\ud83d\ude00"}}', (1, "a�b", '{"�": "😀"}')),
    (rb'{"id":2,"t":"\\u0000","b":"\ud83d"}', (2, r"\u0000", '"�"')),
    (b'{"id":3,"t":"\xff","other":"\xfe"}', (3, "�", None)),
    (rb'{"id":4,"t":"x","other":"\udc00"}', (4, "x", None)),
    (b'{"id":5,"t":"x"}', (5, "x", None)),
    (rb'{"id":6,"t":"\ud800\u0041"}', (6, "�A", None)),
]


@pytest.mark.parametrize("commit", ["batch", "partition"])
def test_text_that_postgres_cannot_hold_is_replaced_and_counted(world, make_topic, make_pipeline, commit):
    topic = make_topic()
    topic.produce(*(value for value, _ in UNSTORABLE), rb'{"id":"x","t":"\u0000"}')
    # Rows with jsonb cannot be copied into the target as they are.
    columns, document = (
        ("id int, t text, b jsonb", "b::text") if commit == "batch" else ("id int, t text", "null")
    )
    pipeline = make_pipeline(
        topic, value=Json(columns), replace_unstorable="\ufffd", max_rejects=1, commit=commit
    )
    published = world.run(pipeline)
    assert (published.batch.rows, published.batch.rejected, published.batch.replaced) == (6, 1, 5)
    assert "5 with replaced text" in str(published)
    expected = [
        (id_, text, document_ if commit == "batch" else None) for _, (id_, text, document_) in UNSTORABLE
    ]
    assert world.target(pipeline, f"id, t, {document} as b") == expected
    assert is_exact(world, pipeline)
    world.execute(f"update {pipeline.traits.target} set t = 'a?b' where id = 1")
    assert not audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("layout", ["by_batch", "plain"])
def test_replaced_text_in_a_partition_and_by_a_transform_is_counted(world, make_topic, make_pipeline, layout):
    topic = make_topic()
    topic.produce(*(value for value, _ in UNSTORABLE))
    sink = Append(f'public."{topic.name}"', **({"layout": "by_batch"} if layout == "by_batch" else {}))
    more = {} if layout == "by_batch" else {"transform": "select id, t, kafka_topic, kafka_partition, kafka_offset, "
                                           "kafka_timestamp from records"}  # fmt: skip
    pipeline = make_pipeline(
        topic, value=Json("id int, t text"), sink=sink, replace_unstorable="\ufffd", **more
    )
    assert world.run(pipeline).batch.replaced == 5
    assert world.target(pipeline, "id, t") == [(id_, text) for _, (id_, text, _) in UNSTORABLE]
    assert world.is_exact(pipeline)


def test_without_a_replacement_such_records_are_rejects_that_name_the_field(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*(value for value, _ in UNSTORABLE))
    pipeline = make_pipeline(topic, value=Json("id int, t text, b jsonb"), max_rejects=9)
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected, batch.replaced) == (1, 5, 0)
    found = reasons(world)
    assert "U+0000" in found[0]
    assert found[1] == "field b: found half a surrogate pair"
    assert found[2] == "field t: found byte FF at position 13, which is not UTF-8"
    assert found[3] == "field other: found half a surrogate pair"


@pytest.mark.parametrize("history", [True, False])
def test_keys_and_headers_are_replaced_as_values_are(world, make_topic, make_pipeline, history):
    topic = make_topic()
    topic.produce(rb'{"id":"a\u0000","t":"x"}', key=rb'{"id":"a\u0000"}')
    topic.produce(rb'{"id":"b","t":"x"}', key=rb'{"id":"b"}')
    topic.produce(None, key=rb'{"id":"a\u0000"}')
    sink = sink_of(topic, history)
    form = Json("id text, t text")
    pipeline = make_pipeline(
        topic, value=form, message_key=Json("id text"), sink=sink, replace_unstorable="?"
    )
    assert world.run(pipeline).batch.replaced == 2
    assert world.rows(f"select id, t from {sink.target}") == [("b", "x")]
    assert is_exact(world, pipeline)
    other = make_topic()
    other.produce(b"1,a\0", key=b"k\xff", headers=[("h", b"\0h"), ("other", b"\0")])
    of_message = make_pipeline(
        other,
        value=WithKeyAndHeaders(Csv("id int, t text"), key=Text("k"), headers={"h": Text("h")}),
        replace_unstorable="",
    )
    assert world.run(of_message).batch.replaced == 1
    assert world.target(of_message, "id, t, k, h") == [(1, "a", "k", "h")]
    assert is_exact(world, of_message)


@pytest.mark.parametrize("history", [None, True, False])
def test_an_enveloped_null_is_a_tombstone(world, make_topic, make_pipeline, history):
    topic = make_topic()
    sink = sink_of(topic, history)
    for number in (1, 2):
        value = {"schema": {}, "payload": {"id": number, "name": "x"}}
        topic.produce(
            json.dumps(value).encode(), key=json.dumps({"schema": {}, "payload": {"id": number}}).encode()
        )
    topic.produce(NULL, key=b'{"schema":{},"payload":{"id":1}}')
    topic.produce(b'{"payload" : null, "schema":{"type":"struct"}}', key=b'{"payload":{"id":7}}')
    topic.produce(NULL, key=NULL)
    key = None if history is None else Json("id int from 'payload.id'")
    value = Json("id int from 'payload.id', name text from 'payload.name'")
    pipeline = make_pipeline(topic, value=value, message_key=key, sink=sink, max_rejects=1)
    batch = world.run(pipeline).batch
    if history is None:
        assert (batch.rows, batch.tombstones, batch.rejected) == (2, 3, 0)
        assert world.rows(f"select id, name from {sink.target} order by id") == [(1, "x"), (2, "x")]
    else:
        assert (batch.rows, batch.tombstones, batch.rejected) == (4, 0, 1)
        assert world.rows(f"select id, name from {sink.target}") == [(2, "x")]
        assert reasons(world) == {4: "key: expected a key, found null"}
    assert is_exact(world, pipeline)
    if history is None:
        world.execute(f"insert into {sink.target} select 3, 'x', kafka_topic, kafka_partition, 2, kafka_timestamp, "
                      f"batch_id from {sink.target} limit 1")  # fmt: skip
        assert not audit(pipeline, world.settings).is_exact


def test_an_enveloped_null_is_a_tombstone_of_debezium_too(world, make_topic, make_pipeline):
    topic = make_topic()
    event = {"op": "c", "before": None, "after": {"id": 1}, "source": {}}
    topic.produce(
        json.dumps(event).encode(), json.dumps({**event, "op": "d", "before": {"id": 1}}).encode(), NULL
    )
    topic.produce(json.dumps({"schema": envelope({"id": typed("int32")}, {}), "payload": None}).encode())
    pipeline = make_pipeline(topic, value=Debezium("id int"), sink=sink_of(topic, True))
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.tombstones) == (2, 2)
    assert is_exact(world, pipeline)


def test_a_byte_order_mark_before_a_value_is_ignored(world, make_topic, make_pipeline):
    cases = [
        (Json("id int, t text"), [MARK + b'{"id":1,"t":"\xef\xbb\xbfx"}', MARK + b' {"id":2}']),
        (Json("id int, t text from 'a.t'"), [MARK + b'{"id":1,"a":{"t":"\xef\xbb\xbfx"}}', MARK + b'{"id":2}']),
        (Json("id int, t text", documents="lines"), [MARK + b'{"id":1,"t":"\xef\xbb\xbfx"}\n{"id":2}']),
        (Json("id int, t text", documents="array"), [MARK + b'[{"id":1,"t":"\xef\xbb\xbfx"},{"id":2}]']),
        (Csv("id int, t text"), [MARK + b"1,\xef\xbb\xbfx", MARK + b"2,"]),
        (Debezium("id int, t text"), [MARK + b'{"op":"c","after":{"id":1,"t":"\xef\xbb\xbfx"}}',
                                      MARK + b'{"schema":{"type":"struct","fields":[{"field":"op","type":"string"},'
                                      b'{"field":"after","type":"struct","fields":[{"field":"id","type":"int32"}]}]},'
                                      b'"payload":{"op":"c","after":{"id":2}}}']),
    ]  # fmt: skip
    for form, values in cases:
        topic = make_topic()
        topic.produce(*values)
        pipeline = make_pipeline(topic, value=form)
        world.run(pipeline)
        assert world.target(pipeline, "id, t") == [(1, "\ufeffx"), (2, None)], form
        assert is_exact(world, pipeline)
    keyed = make_topic()
    keyed.produce(b'{"id":1,"t":"x"}', None, key=MARK + b'{"id":1}')
    pipeline = make_pipeline(
        keyed, value=Json("id int, t text"), message_key=Json("id int"), sink=sink_of(keyed, True)
    )
    world.run(pipeline)
    assert world.rows(f"select id from {pipeline.traits.target}") == []
    assert is_exact(world, pipeline)


@pytest.mark.parametrize("history", [None, True, False])
def test_nan_of_a_numeric_arrives_in_a_column_with_a_precision(world, make_topic, make_pipeline, history):
    topic = make_topic()
    values = ["NaN", "1.25", "-0.50", "Infinity", "-Infinity", "NAN", None, "1.255"]
    schema = envelope({"id": typed("int32"), "z": typed("string"), "zs": array(typed("string"))}, {})
    for at, value in enumerate(values):
        row = {"id": at, "z": value, "zs": [value, None] if at < 3 else None}
        topic.produce(json.dumps({"schema": schema, "payload": {"op": "c", "after": row}}).encode())
    sink = sink_of(topic, history)
    numeric = "numeric(12,2)" if history is not False else "numeric"
    lineage = "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
    if history is not False:
        more, key = (f", {lineage}", "") if history is None else ("", " primary key")
        world.execute(f"create table {sink.target} (id int{key}, z {numeric}, zs {numeric}[]{more})")
    pipeline = make_pipeline(
        topic, value=Debezium("id int, z numeric, zs numeric[]"), sink=sink, max_rejects=3
    )
    batch = world.run(pipeline).batch
    if history is False:
        assert batch.rejected == 0
    else:
        assert sorted(reasons(world)) == [3, 4, 7]
    found = dict(world.rows(f"select id, z::text from {sink.target}"))
    assert [found[at] for at in (0, 1, 2, 5, 6)] == ["NaN", "1.25", "-0.50", "NaN", None]
    [(zs,)] = world.rows(f"select zs::text from {sink.target} where id = 0")
    assert zs == "{NaN,NULL}"
    assert is_exact(world, pipeline)


def test_json_of_a_registry_keeps_and_replaces_as_json_does(world, make_topic, make_pipeline):
    topic = make_topic()
    head = b"\0\0\0\0\1"
    topic.produce(head + rb'{"id":1,"j":"\u0000"}', head + rb'{"id":2,"t":"\u0000"}')
    with registry_server() as registry:
        registry.has(1, {}, schemaType="JSON")
        form = JsonSchema("id int, j json, t text", registry=registry.address)
        pipeline = make_pipeline(topic, value=form, replace_unstorable="?")
        assert world.run(pipeline).batch.replaced == 1
        assert world.target(pipeline, "id, j::text, t") == [(1, r'"\u0000"', None), (2, None, "?")]
        assert is_exact(world, pipeline)
