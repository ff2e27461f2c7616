"""Several targets in one transaction: each has every record, or none has it."""

import json
from dataclasses import replace

import pytest

from exactbatch import Aggregate, Append, Count, Debezium, Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError, IdentityChanged, TargetMismatch, TooManyRejects
from exactbatch.ledger import Ledger
from exactbatch.operations.compact import compact_changes
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from support.topics import Topic, record


def sinks(topic: Topic) -> list[Append | Upsert]:
    return [Append(f'public."{topic.name}_raw"'), Upsert(f'public."{topic.name}"', key=("id",))]


@pytest.fixture
def topic(make_topic):
    return make_topic()


@pytest.fixture
def pipeline(topic, make_pipeline):
    return make_pipeline(topic, sink=sinks(topic), message_key=Json("id int"))


def raw(world, topic: Topic) -> list[tuple[object, ...]]:
    return world.rows(f'select id, name, deleted from public."{topic.name}_raw" order by kafka_offset')


def current(world, topic: Topic) -> list[tuple[object, ...]]:
    return world.rows(f'select id, name from public."{topic.name}" order by id')


def test_a_batch_writes_both_targets_deletes_included(world, topic, pipeline):
    topic.produce(record(1, "a"), key=b'{"id": 1}')
    topic.produce(record(2, "b"), key=b'{"id": 2}')
    topic.produce(record(1, "c"), key=b'{"id": 1}')
    topic.produce(None, key=b'{"id": 2}')
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows) == (4, 4)
    assert raw(world, topic) == [(1, "a", False), (2, "b", False), (1, "c", False), (2, None, True)]
    assert current(world, topic) == [(1, "c")]
    report = audit(pipeline, world.settings, values=True)
    assert report.is_exact, report
    assert [partition.records for partition in report.partitions] == [4, 4]


def test_a_replay_retracts_from_both_targets(world, topic, pipeline):
    topic.produce(record(1, "a"), record(2, "b"), record(1, "c"), key=b'{"id": 1}')
    world.run(pipeline)
    for table in (f"{topic.name}_raw", f"{topic.name}_change"):
        world.execute(f"update public.\"{table}\" set name = 'x' where kafka_offset = 2")
    request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 1, 3),))
    assert preview_replay(world.connection, world.log, pipeline, request).rows == 2
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    world.process(pipeline, batch_id)
    assert raw(world, topic) == [(1, "a", False), (2, "b", False), (1, "c", False)]
    assert current(world, topic) == [(1, "c"), (2, "b")]
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("update public.\"{}_raw\" set name = 'x' where kafka_offset = 0", "changed"),
        ('delete from public."{}_raw" where kafka_offset = 0', "missing"),
        ("update public.\"{}\" set name = 'x' where id = 1", "stale"),
        ("update public.\"{}_change\" set name = 'x' where kafka_offset = 0", "changed"),
        ('delete from public."{}" where id = 1', "stale"),
    ],
)
def test_an_audit_finds_a_planted_difference_in_either_target(world, topic, pipeline, statement, kind):
    topic.produce(record(1, "a"), record(2, "b"), key=b'{"id": 1}')
    world.run(pipeline)
    world.execute(statement.format(topic.name))
    report = audit(pipeline, world.settings, values=True)
    assert report.findings[kind] > 0
    assert any(kind in note for note in report.target.notes)


@pytest.mark.parametrize("narrow", ["_raw", ""])
def test_a_value_that_one_target_cannot_hold_rejects_the_record_for_both(
    world, topic, make_pipeline, connection, narrow
):
    pipeline = make_pipeline(
        topic,
        sink=sinks(topic),
        value=Json("id int, number bigint"),
        message_key=Json("id int"),
        max_rejects=1,
    )
    topic.produce(b'{"id": 1, "number": 1}', key=b'{"id": 1}')
    world.run(pipeline)
    world.execute(f'alter table public."{topic.name}{narrow}" alter column number type int')
    topic.produce(b'{"id": 2, "number": 3000000000}', b'{"id": 3, "number": 3}', key=b'{"id": 1}')
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (1, 1)
    for table in (f"{topic.name}_raw", topic.name):
        assert world.rows(f'select id from public."{table}" order by id') == [(1,), (3,)]
    assert audit(pipeline, world.settings).is_exact
    strict = replace(pipeline, max_rejects=0)
    topic.produce(b'{"id": 4, "number": 3000000000}', key=b'{"id": 4}')
    world.refused(TooManyRejects, strict)


def test_rows_that_a_trigger_keeps_out_of_one_target_are_in_neither(world, topic, pipeline):
    topic.produce(record(1, "a"), key=b'{"id": 1}')
    world.run(pipeline)
    world.execute(
        "create function public.skip() returns trigger language plpgsql as $$ begin return null; end $$; "
        f'create trigger skip before insert on public."{topic.name}_raw" for each row execute function public.skip()'
    )
    topic.produce(record(2, "b"), key=b'{"id": 2}')
    with pytest.raises(TargetMismatch):
        world.run(pipeline)
    assert len(raw(world, topic)) == len(current(world, topic)) == 1


def test_compacting_the_upsert_leaves_the_append_and_its_audit(world, topic, pipeline):
    topic.produce(record(1, "a"), record(1, "b"), key=b'{"id": 1}')
    world.run(pipeline)
    compact_changes(world.connection, world.log, pipeline, before=None)
    assert len(raw(world, topic)) == 2
    assert audit(pipeline, world.settings).is_exact
    world.execute(f'delete from public."{topic.name}_raw" where kafka_offset = 0')
    assert audit(pipeline, world.settings).findings["missing"] == 1


def test_two_appends_and_debezium_work_too(world, topic, make_topic, make_pipeline):
    two = [Append(f'public."{topic.name}_a"'), Append(f'public."{topic.name}_b"')]
    pipeline = make_pipeline(topic, sink=two)
    topic.produce(record(1), None, record(2))
    assert world.run(pipeline).batch.tombstones == 1
    assert audit(pipeline, world.settings, values=True).is_exact
    assert world.rows(f'select count(*) from public."{topic.name}_b"') == [(2,)]
    other = make_topic()
    changes = make_pipeline(other, sink=sinks(other), value=Debezium("id int, name text"))
    for event in (
        {"op": "c", "before": None, "after": {"id": 1, "name": "a"}},
        {"op": "d", "before": {"id": 1, "name": "a"}, "after": None},
    ):
        other.produce(json.dumps(event).encode())
    other.produce(None)
    world.run(changes)
    assert [row[2] for row in raw(world, other)] == [False, True]
    assert current(world, other) == []
    assert audit(changes, world.settings, values=True).is_exact


def test_the_ledger_knows_all_targets(world, topic, pipeline, make_topic, make_pipeline):
    other = make_topic()
    with transaction(world.connection):
        ledger = Ledger(world.connection)
        assert ledger.registry.read(pipeline.name).tables == {
            ("public", f"{topic.name}{suffix}") for suffix in ("", "_change", "_raw")
        }
    with pytest.raises(IdentityChanged, match="expected other_targets"), transaction(world.connection):
        Ledger(world.connection).registry.check(replace(pipeline, sink=pipeline.sink[1]))
    for table in (f'public."{topic.name}_raw"', f'public."{topic.name}_change"'):
        with pytest.raises(ConfigurationError, match=r"both write to the table .* other_targets differs"):
            make_pipeline(other, sink=Append(table))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "expected a sink or several of them, found none"),
        ((Append("a"), Append("public.a")), "two of the sinks write to one table"),
        ((Append("a_change"), Upsert("a", key=("id",))), "two of the sinks write to one table"),
        ((Upsert("a", key=("id",)), Upsert("b", key=("id",))), "more than one of the sinks is an Upsert"),
        ((Append("a"), Append("b", lineage="batch")), "b needs lineage='record'"),
        ((Append("a"), Append("b", layout="by_batch")), "layout='plain'"),
        (
            (Append("a"), Aggregate("b", ("id",), {"n": Count()})),
            "Aggregate does not work next to other sinks",
        ),
        ((Append("a"), 5), "expected sink to be Sink or a list of Sink"),
    ],
)
def test_sinks_that_cannot_work_together_are_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        Pipeline(name="p", topics=("t",), value=Json("id int"), sink=given)


def test_ranges_are_not_committed_one_by_one(topic):
    with pytest.raises(ConfigurationError, match="several targets, which one transaction writes"):
        Pipeline(
            name="p",
            topics=("t",),
            value=Json("id int"),
            sink=[Append("a"), Append("b")],
            commit="partition",
        )
