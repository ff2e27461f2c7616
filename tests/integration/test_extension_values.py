"""Values for types of extensions: arrays become pgvector's vectors, and JSON becomes hstore, as Postgres reads them."""

import json

import pytest

from exactbatch import Append, Debezium, Json, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import TargetMismatch
from support.debezium_types import array, data, envelope, typed


def change(row):
    return {"op": "c", "before": None, "after": row, "source": {}}


def reasons(world):
    return dict(world.rows('select "offset", reason from exactbatch.rejected_record'))


# Each is written with more digits than the types hold, or in another way than Postgres prints it.
NUMBERS = [
    "-0.006929283495992422", "0.1", "1", "-0.0", "1234567", "1e-7", "16777217", "3.4028234e38", "1e-60",
    "0.30000001192092896", "8388608.5", "9007199254740993", "33554432", "5e-324", "123456789.123456789",
]  # fmt: skip
SMALL = ["0.1", "-65504", "1e-8", "65519.99", "2049", "0.33325195", "5.9604645e-08", "1", "2.98e-8"]


@pytest.mark.parametrize("history", [None, True, False])
def test_an_array_becomes_the_vector_that_postgres_reads_from_it(world, make_topic, make_pipeline, history):
    world.execute("create extension vector")
    topic = make_topic()
    vectors = [NUMBERS[at:] + NUMBERS[:at] for at in range(len(NUMBERS))]
    halves = [SMALL[at:] + SMALL[:at] for at in range(len(SMALL))]
    for at, vector in enumerate(vectors):
        half = halves[at % len(halves)]
        topic.produce(f'{{"id":{at},"v":[{",".join(vector)}],"h":[{" , ".join(half)}]}}'.encode())
    target = f'public."{topic.name}"'
    sink = Append(target) if history is None else Upsert(target, key=("id",), history=history)
    if history is True:
        types = f"v vector({len(NUMBERS)}), h halfvec({len(SMALL)})"
        world.execute(f"create table {target} (id int primary key, {types})")
    form = Json("id int, v public.vector, h public.halfvec")
    pipeline = make_pipeline(topic, value=form, sink=sink)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (len(vectors),) * 2 + (0,)
    for at, vector in enumerate(vectors):
        [same] = world.rows(
            f"select v::text = (%s::vector)::text as v, "
            f"h::text = (%s::halfvec)::text as h from {target} where id = %s",
            f"[{','.join(vector)}]",
            f"[{','.join(halves[at % len(halves)])}]",
            at,
        )
        assert same == (True, True), vector
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f"update {target} set v = v + (select v from {target} where id = 1) where id = 3")
    assert not audit(pipeline, world.settings, values=True).is_exact


def test_what_is_no_vector_of_the_column_is_a_reject_that_says_so(world, make_topic, make_pipeline):
    world.execute("create extension vector")
    topic = make_topic()
    cases = [
        ("[1,2]", None),
        ('"[1,2]"', None),
        ("null", None),
        ("[1,2,3]", "expected 2 dimensions, not 3"),
        ("[]", "at least 1 dimension"),
        ("[1,null]", "expected an array of numbers, found null in it"),
        ("[1,[2]]", "expected an array of numbers, found array in it"),
        ('[1,"2"]', "expected an array of numbers, found string in it"),
        ("[1,1e39]", "expected numbers in the range of the type, found 1e39"),
        ('{"0":1}', "expected an array of numbers, found object"),
        ("[1,NaN]", "JSON is malformed"),
        ('"[0.1,0.30000000000000004]"', "expected it as Postgres writes it, [0.1,0.3], found"),
        ('"[0x10,1]"', "expected it as Postgres writes it"),
    ]
    topic.produce(*(f'{{"id":{at},"v":{value}}}'.encode() for at, (value, _) in enumerate(cases)))
    pipeline = make_pipeline(topic, value=Json("id int, v public.vector"), max_rejects=len(cases))
    lineage = "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz"
    world.execute(f"create table {pipeline.traits.target} (id int, v vector(2), {lineage}, batch_id bigint)")
    world.run(pipeline)
    assert world.target(pipeline, "id, v::text") == [(0, "[1,2]"), (1, "[1,2]"), (2, None)]
    found = reasons(world)
    assert sorted(found) == [at for at, (_, reason) in enumerate(cases) if reason]
    for at, reason in found.items():
        assert cases[at][1] in reason, reason
        assert "column 'v'" in reason
    assert audit(pipeline, world.settings, values=True).is_exact


def test_an_array_of_real_into_a_vector_is_refused_with_the_recipe(world, make_topic, make_pipeline):
    world.execute("create extension vector")
    topic = make_topic()
    topic.produce(b'{"id":1,"v":[1,2]}')
    pipeline = make_pipeline(topic, value=Json("id int, v real[]"))
    lineage = "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz"
    world.execute(f"create table {pipeline.traits.target} (id int, v vector(2), {lineage}, batch_id bigint)")
    said = world.refused(TargetMismatch, pipeline)
    assert 'Declare it in the pipeline as "v public.vector"' in said
    recipe = make_pipeline(topic, value=Json("id int, v public.vector"))
    world.run(recipe)
    assert world.target(recipe, "v::text") == [("[1,2]",)]


HSTORES = [
    ('{"a":"1"}', "a=>1"),
    ('{"a":null,"NULL":"NULL"}', 'a=>NULL, "NULL"=>"NULL"'),
    (r'{"q\"\\":"\\ \" , =>","ü":"é"}', r'"q\"\\"=>"\\ \" , =>", "ü"=>"é"'),
    ("{}", ""),
    ('{"bb":"","a":"x","":"\\n"}', 'bb=>"", a=>x, ""=>"\n"'),
    (None, None),
]


@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("history", [None, True, False])
def test_hstore_that_the_connector_writes_as_json_is_hstore(
    world, make_topic, make_pipeline, with_schema, history
):
    world.execute("create extension hstore")
    topic = make_topic()
    schema = envelope({"id": typed("int32"), "h": data("string", "Json")}, {})
    bad = ['{"a":{"b":"1"}}', '{"a":1}', '["a"]', '{"a":"1"', '{"a":"1","a":"2"}', r'{"a":"\u0000"}']
    for at, value in enumerate([text for text, _ in HSTORES] + bad):
        event = change({"id": at, "h": value})
        topic.produce(json.dumps({"schema": schema, "payload": event} if with_schema else event).encode())
    target = f'public."{topic.name}"'
    sink = Append(target) if history is None else Upsert(target, key=("id",), history=history)
    pipeline = make_pipeline(topic, value=Debezium("id int, h public.hstore"), sink=sink, max_rejects=9)
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (len(HSTORES), len(bad))
    for at, (_, written) in enumerate(HSTORES):
        [same] = world.rows(
            f"select h is not distinct from %s::hstore from {target} where id = %s", written, at
        )
        assert same == (True,), HSTORES[at]
    found = [reason for _, reason in sorted(reasons(world).items())]
    assert (
        "'a' is neither text nor null, which is all that hstore holds: declare the column as jsonb"
        in found[0]
    )
    assert found[1].endswith(found[0].partition("hstore: ")[2])
    assert "syntax error in hstore" in found[2]
    assert "expected hstore's text, or a JSON object" in found[3]
    assert "a key occurs twice" in found[4]
    assert "U+0000" in found[5]
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("type_", ["vector", "halfvec"])
def test_arrays_of_debezium_are_vectors(world, make_topic, make_pipeline, type_):
    world.execute("create extension vector")
    topic = make_topic()
    for kind in ("float", "double"):
        schema = envelope({"id": typed("int32"), "v": array(typed(kind))}, {})
        for at, value in enumerate([[0.5, 1.0], [1000000, 0.1] if type_ == "vector" else [0.25, 0.1]]):
            event = change({"id": at, "v": value})
            topic.produce(
                json.dumps({"schema": schema, "payload": event}).encode(), json.dumps(event).encode()
            )
    topic.produce(json.dumps(change({"id": 9, "v": ["NaN", 1]})).encode())
    pipeline = make_pipeline(topic, value=Debezium(f"id int, v public.{type_}"), max_rejects=1)
    assert world.run(pipeline).batch.rows == 8
    expected = [("[0.5,1]",)] * 2 + [("[1e+06,0.1]" if type_ == "vector" else "[0.25,0.099975586]",)] * 2
    assert world.target(pipeline, "v::text") == expected * 2
    assert "found string in it" in reasons(world)[8]
    assert audit(pipeline, world.settings, values=True).is_exact
