"""Checks reject records with a reason; an audit knows them, and finds rows that they would have rejected."""

import pytest

from exactbatch import Aggregate, Append, Count, Json, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError, TooManyRejects
from support.writers import table_of

CHECKS = (
    "amount >= 0",
    "token is distinct from '00000000-0000-0000-0000-000000000000'",
    "12 / divisor > 3 -- strict",
)
VALUE = Json("id int, amount numeric, token uuid, divisor int")
RECORDS = (
    b'{"id": 1, "amount": 1.50}',
    b'{"id": 2, "amount": -3}',
    b'{"id": 3, "token": "00000000-0000-0000-0000-000000000000"}',
    b'{"id": 4, "token": "none"}',
    b'{"id": 5, "divisor": 0}',
    b'{"id": 6, "divisor": 6}',
    b'{"id": 7, "amount": 0, "divisor": 2, "token": "10000000-0000-0000-0000-000000000000"}',
    b"{",
)


def findings(world, pipeline):
    report = audit(pipeline, world.settings, values=not pipeline.is_transformed)
    return {kind: count for kind, count in report.findings.items() if count}


def reasons(world):
    return world.rows('select "offset", reason from exactbatch.rejected_record order by 1')


@pytest.mark.parametrize("kind", ["append", "by_batch", "sql", "text target"])
def test_a_record_for_which_a_check_is_false_is_a_reject(world, make_topic, make_pipeline, kind):
    topic = make_topic(1)
    layout = {"layout": "by_batch", "min_offsets": 1} if kind == "by_batch" else {}
    query = "select * from records where id > 0" if kind == "sql" else None
    sink = Append(f'public."{topic.name}"', **layout)
    pipeline = make_pipeline(topic, value=VALUE, sink=sink, checks=CHECKS, max_rejects=7, transform=query)
    if kind == "text target":
        world.execute(
            f'create table public."{topic.name}" (id int, amount text, token text, divisor bigint, kafka_topic text, '
            "kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint)"
        )
    topic.produce(*RECORDS)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (8, 2, 6)
    assert [row[0] for row in world.target(pipeline, "id")] == [1, 7]
    found = dict(reasons(world))
    assert found[1] == 'check "amount >= 0" failed: amount = -3'
    assert found[2] == (f'check "{CHECKS[1]}" failed: token = 00000000-0000-0000-0000-000000000000')
    assert found[3].startswith("column 'token', uuid: invalid input syntax for type uuid: \"none\"")
    assert found[4] == 'check "12 / divisor > 3 -- strict" failed: division by zero'
    assert found[5] == 'check "12 / divisor > 3 -- strict" failed: divisor = 6'
    assert set(found) == {1, 2, 3, 4, 5, 7}
    assert findings(world, pipeline) == {}


def test_rows_that_could_be_copied_into_a_partition_are_checked(world, make_topic, make_pipeline):
    topic = make_topic(1)
    sink = Append(f'public."{topic.name}"', layout="by_batch", min_offsets=1)
    value = Json("id int, amount bigint")
    pipeline = make_pipeline(topic, value=value, sink=sink, checks=("amount >= 0",), max_rejects=1)
    topic.produce(b'{"id": 1, "amount": 1}', b'{"id": 2, "amount": -3}')
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (1, 1)
    assert reasons(world) == [(1, 'check "amount >= 0" failed: amount = -3')]
    assert findings(world, pipeline) == {}


@pytest.mark.parametrize("is_upsert", [False, True])
def test_an_audit_finds_a_row_that_a_check_would_have_rejected(world, make_topic, make_pipeline, is_upsert):
    topic = make_topic(1)
    name = f'public."{topic.name}"'
    sink = Upsert(name, key=("id",)) if is_upsert else Append(name)
    value = Json("id int, amount int")
    pipeline = make_pipeline(topic, value=value, sink=sink, message_key=Json("id int") if is_upsert else None)
    topic.produce(b'{"id": 1, "amount": 1}', b'{"id": 2, "amount": -3}')
    world.run(pipeline)
    assert findings(world, pipeline) == {}
    strict = make_pipeline(
        topic, value=value, sink=sink, message_key=pipeline.message_key, checks=("amount >= 0",)
    )
    assert findings(world, strict) == {"changed": 1}


def test_a_deleting_change_is_not_checked(world, make_topic, make_pipeline):
    topic = make_topic(1)
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    value = Json("id int, amount int")
    pipeline = make_pipeline(
        topic, value=value, sink=sink, message_key=Json("id int"), checks=("amount is not null",)
    )
    topic.produce(b'{"id": 1, "amount": 1}', key=b'{"id": 1}')
    topic.produce(None, key=b'{"id": 1}')
    assert world.run(pipeline).batch.rejected == 0
    assert world.rows(f"select id from {table_of(sink, world.connection)}") == []
    assert findings(world, pipeline) == {}


def test_an_aggregate_leaves_out_rejected_records(world, make_topic, make_pipeline):
    topic = make_topic(1)
    sink = Aggregate(f'public."{topic.name}"', group_by=("id",), aggregates={"n": Count()})
    pipeline = make_pipeline(
        topic, value=Json("id int, amount int"), sink=sink, checks=("amount >= 0",), max_rejects=1
    )
    topic.produce(b'{"id": 1, "amount": 1}', b'{"id": 1, "amount": -1}')
    world.run(pipeline)
    assert world.rows(f"select id, n from {table_of(sink, world.connection)}") == [(1, 1)]
    assert findings(world, pipeline) == {}


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ("amount >", "syntax error"),
        ("price > 0", 'column "price" does not exist'),
        ("amount", "it has to be of type boolean but is of type integer"),
        ("(select count(*) from pg_class) > 0", "cannot use subquery in column generation expression"),
        ("random() > 0.5", "generation expression is not immutable"),
        ("now() > '2020-01-01'", "generation expression is not immutable"),
        ("sum(amount) > 0", "aggregate functions are not allowed"),
        ("kafka_offset > 0", 'column "kafka_offset" does not exist'),
    ],
)
def test_a_check_that_cannot_be_evaluated_is_refused(world, make_topic, make_pipeline, check, why):
    topic = make_topic(1)
    sink = Append(f'public."{topic.name}"')
    pipeline = make_pipeline(topic, value=Json("amount int"), sink=sink, checks=(check,))
    topic.produce(b'{"amount": 1}')
    message = world.refused(ConfigurationError, pipeline)
    assert f"check {check!r}" in message
    assert why in message


def test_too_many_rejects_show_the_check(world, make_topic, make_pipeline):
    topic = make_topic(1)
    sink = Append(f'public."{topic.name}"')
    pipeline = make_pipeline(topic, value=Json("amount int"), sink=sink, checks=("amount >= 0",))
    topic.produce(b'{"amount": -1}')
    assert 'check "amount >= 0" failed: amount = -1' in world.refused(TooManyRejects, pipeline)
