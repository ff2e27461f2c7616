"""Documents that compiled code has checked are staged as jsonb; targets and rejects are those of their text."""

import json
from typing import Any

import pytest

from exactbatch import Append, Json, ToTopic
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.fuzzed_values import Fuzzer
from support.killed_workers import KilledWorkers
from support.plausible_values import PlausibleValues
from support.staged_attempts import staged_by_both, staging_task_of
from support.topics import Topic

VALUE = Json("id int, doc jsonb, other jsonb")
LONG = {"text": "word " * 400, "numbers": list(range(500))}
GOOD = [
    "null", "1", "-0", "1.50", "1e100", "true", '"text"', "{}", "[]", '{"":1}', '{"b":1,"aa":2,"a":3}', '{"é":"ß"}',
    '{"a":{"a":[{"a":1},{"a":2}]}}', '{ "a" : [ 1 , 2 ] }', '{"\\u0061":"\\u00e9"}', '{"a\\n":1}', json.dumps(LONG),
    json.dumps({f"name {number}": {"a": number} for number in range(600)}), "[" * 60 + "]" * 60, "[" * 90 + "]" * 90,
]  # fmt: skip
BAD = ['{"a":1,"a":2}', '{"a":[{"b":1,"c":{},"b":1}]}', '"\\u0000"', '{"\\u0061":1,"a":2}', "1e200000"]


@pytest.fixture(scope="module")
def compiled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> KilledWorkers:
    """Executors that use compiled code."""
    return KilledWorkers(spark, tmp_path_factory.mktemp("killed"), ["stage.before_copy_commit"])


def value_of(number: int, document: str) -> bytes:
    return f'{{"id":{number},"doc":{document},"other":[{number}]}}'.encode()


def create_target(
    world: BatchRunner, topic: Topic, doc: str = "jsonb", more: str = "", options: str = ""
) -> None:
    """Create the target of VALUE, whose column `doc` has another definition."""
    world.execute(
        f'create table public."{topic.name}" (id int, doc {doc}, other jsonb, {more} kafka_topic text, '
        f"kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint) {options}"
    )


def test_postgres_takes_every_checked_document_and_as_what_its_text_is(
    world, make_topic, make_pipeline, monkeypatch
):
    """Documents from generators: what compiled code calls checked has different names, and is the same jsonb."""
    topic, value = make_topic(), Json("i int, a jsonb, b jsonb, c jsonb")
    values = PlausibleValues(value.columns, {}, 3).values(3000)
    topic.produce(*values, *Fuzzer(4).values(1000, fuzzed=0.3, long=2))
    topic.produce(*(b'{"i":%d,"a":%s}' % (at, each.encode()) for at, each in enumerate([*GOOD, *BAD])))
    pipeline = make_pipeline(topic, value=value, sink=Append(f'public."{topic.name}"'), max_reject_share=1.0)
    task = staging_task_of(world, pipeline, checks_documents=True)
    staged_by_both(task, monkeypatch)
    table = f"exactbatch_staging.{task.tables.rows}"
    checked = 0
    for number, column in enumerate("abc", 1):
        # 1: the text of ADBC's attempt. 2: either its own text, or the document.
        compared = world.rows(
            f'select count(*) as rows, count(two."checked {number}") as documents, '
            f"count(*) filter (where one.task_attempt is null or two.task_attempt is null) as alone, "
            f'count(*) filter (where one."{column}" is distinct from two."{column}" '
            f'and two."checked {number}" is null) as other_texts, '
            f'count(*) filter (where two."checked {number}" is not null and (two."{column}" is not null '
            f'or (one."{column}" is json with unique keys) is not true '
            f'or one."{column}"::jsonb::text is distinct from two."checked {number}"::text)) as other_documents '
            f"from (select * from {table} where task_attempt = 1) one "
            f"full join (select * from {table} where task_attempt = 2) two using (kafka_partition, kafka_offset)"
        )
        rows, with_document, alone, other_text, other_document = compared[0]
        assert (alone, other_text, other_document) == (0, 0, 0)
        assert rows > 1000
        checked += with_document
    assert checked > 1000


@pytest.mark.parametrize("layout", ["plain", "by_batch"])
def test_targets_and_rejects_are_those_of_the_text(
    world, make_topic, make_pipeline, compiled, monkeypatch, layout
):
    topic = make_topic(2)
    topic.produce(*(value_of(number, each) for number, each in enumerate([*BAD, "{}"])))
    topic.produce(*(value_of(number, each) for number, each in enumerate(GOOD)), partition=1)
    options: Any = {"layout": layout} if layout == "by_batch" else {}
    by_loop, strict = (
        make_pipeline(
            topic,
            name=f"{topic.name}_{name}",
            value=VALUE,
            sink=Append(f"public.{topic.name}_{name}", **options),
            max_rejects=len(BAD),
        )
        for name in ("compiled", "strict")
    )
    documents: list[int] = []

    def counting(table: LineageTable, cursor: Any, staged: StagedRows, columns: Any) -> int:
        (second,) = (each.name for each in staged.checked if each.column == "doc")
        cursor.execute(f'select count("{second}") from {staged.table.as_string(cursor)}')
        documents.append(cursor.fetchone()[0])
        return insert_staged(table, cursor, staged, columns)

    insert_staged = LineageTable.insert_staged
    with compiled.at(None), monkeypatch.context() as patch:
        patch.setattr(LineageTable, "insert_staged", counting)
        batch = world.run(by_loop).batch
    assert sum(documents) > len(GOOD) // 2
    assert len(documents) == 1
    other = world.run(strict).batch
    assert (batch.rows, batch.rejected) == (other.rows, other.rejected) == (len(GOOD) + 1, len(BAD))
    columns = "id, doc::text, other::text, kafka_partition, kafka_offset"
    assert world.target(by_loop, columns) == world.target(strict, columns)
    reasons = (
        'select batch_id = %s, partition, "offset", reason from exactbatch.rejected_record '
        "where batch_id in (%s, %s) order by 1, 2, 3"
    )
    found = world.rows(reasons, batch.batch_id, batch.batch_id, other.batch_id)
    assert [row[1:] for row in found if row[0]] == [row[1:] for row in found if not row[0]]
    assert world.is_exact(by_loop)


@pytest.mark.parametrize(
    ("storage", "stored"), [("external", None), ("extended compression pglz", "pglz"), ("main", "pglz")]
)
def test_documents_are_stored_as_the_target_says(world, make_topic, make_pipeline, compiled, storage, stored):
    topic = make_topic()
    topic.produce(value_of(1, json.dumps(LONG)))
    pipeline = make_pipeline(topic, value=VALUE, sink=Append(f'public."{topic.name}"'))
    create_target(world, topic, f"jsonb storage {storage}")
    with compiled.at(None):
        world.run(pipeline)
    assert world.target(pipeline, "pg_column_compression(doc), doc->>'text'") == [(stored, LONG["text"])]


def test_target_with_a_threshold_of_its_own_for_large_values_gets_the_text(
    world, make_topic, make_pipeline, compiled
):
    topic = make_topic()
    topic.produce(value_of(1, json.dumps(LONG)))
    pipeline = make_pipeline(topic, value=VALUE, sink=Append(f'public."{topic.name}"'))
    create_target(world, topic, options="with (toast_tuple_target = 8160)")
    with transaction(world.connection) as cursor:
        assert find_writer(pipeline.traits).checked_json(cursor, VALUE.columns) == ()
    with compiled.at(None):
        world.run(pipeline)
    assert world.target(pipeline, "doc->>'text'") == [(LONG["text"],)]


def test_a_table_gets_no_more_columns_than_postgres_allows(world, make_topic, make_pipeline, compiled):
    topic = make_topic()
    topic.produce(b'{"c0":{"a":1},"c1589":[2]}')
    value = Json(", ".join(f"c{number} jsonb" for number in range(1590)))
    pipeline = make_pipeline(topic, value=value, sink=Append(f'public."{topic.name}"'))
    with compiled.at(None):
        world.run(pipeline)
    assert world.target(pipeline, "c0::text, c1589::text") == [('{"a": 1}', "[2]")]


@pytest.mark.parametrize("type_", ["json", "text", "public.object", "jsonb storage plain"])
def test_another_type_gets_the_text(world, make_topic, make_pipeline, compiled, type_):
    topic = make_topic()
    topic.produce(value_of(1, '{ "b" : 1, "a":2 }'))
    world.execute("create domain public.object as jsonb check (jsonb_typeof(value) = 'object')")
    create_target(world, topic, type_)
    pipeline = make_pipeline(topic, value=VALUE, sink=Append(f'public."{topic.name}"'))
    with compiled.at(None):
        world.run(pipeline)
    text = '{ "b" : 1, "a":2 }' if type_ in ("json", "text") else '{"a": 2, "b": 1}'
    assert world.target(pipeline, "doc::text, other::text") == [(text, "[1]")]
    world.execute(f'drop table public."{topic.name}"')
    world.execute("drop domain public.object")


def test_checks_of_a_pipeline_see_documents(world, make_topic, make_pipeline, compiled):
    topic = make_topic()
    topic.produce(value_of(1, '{"a":1}'), value_of(2, '{"b":1}'))
    pipeline = make_pipeline(
        topic, value=VALUE, sink=Append(f'public."{topic.name}"'), checks=("doc ? 'a'",), max_rejects=1
    )
    with compiled.at(None):
        assert world.run(pipeline).batch.rejected == 1
    assert world.target(pipeline, "id") == [(1,)]


def test_forwarded_documents_are_those_of_the_target(world, make_topic, make_pipeline, compiled):
    topic, results = make_topic(), make_topic()
    topic.produce(value_of(1, '{ "b" : [1], "a":2 }'))
    pipeline = make_pipeline(
        topic,
        value=VALUE,
        sink=Append(f'public."{topic.name}"'),
        forward=ToTopic(results.name, value=("doc",)),
    )
    with compiled.at(None):
        world.run(pipeline)
    (message,) = world.rows("select convert_from(value, 'UTF8') as value from exactbatch.outbox")
    assert json.loads(message[0]) == {"doc": {"a": 2, "b": [1]}}


def test_a_trigger_that_leaves_documents_alone_is_allowed(world, make_topic, make_pipeline, compiled):
    topic = make_topic()
    topic.produce(*(value_of(number, each) for number, each in enumerate(GOOD)))
    pipeline = make_pipeline(topic, value=VALUE, sink=Append(f'public."{topic.name}"'))
    create_target(world, topic, more="seen boolean,")
    world.execute(
        "create function public.see() returns trigger language plpgsql as "
        "$$ begin new.seen := true; return new; end $$"
    )
    world.execute(
        f'create trigger see before insert on public."{topic.name}" for each row execute function public.see()'
    )
    with compiled.at(None):
        assert world.run(pipeline).batch.rows == len(GOOD)
    assert set(world.target(pipeline, "seen")) == {(True,)}
    world.execute(f'drop table public."{topic.name}"')
    world.execute("drop function public.see()")


def test_a_column_of_the_pipeline_may_have_the_name_of_a_second_one(
    world, make_topic, make_pipeline, compiled
):
    topic, value = make_topic(), Json('id int, "checked 1" jsonb, doc jsonb')
    topic.produce(b'{"id":1,"checked 1":{"a":1},"doc":{"b":1}}')
    pipeline = make_pipeline(topic, value=value, sink=Append(f'public."{topic.name}"'))
    with compiled.at(None):
        world.run(pipeline)
    assert world.target(pipeline, '"checked 1"::text, doc::text') == [('{"a": 1}', '{"b": 1}')]
