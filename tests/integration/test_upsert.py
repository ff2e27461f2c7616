"""The target of an Upsert is the latest of all changes, whatever came late, twice, or was taken back."""

import base64
import json
import random
import sys
from dataclasses import replace
from typing import Any

import pytest
from pyspark import cloudpickle

from exactbatch import Debezium, Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, TargetMismatch, TooManyRejects
from exactbatch.sinks.writers import find_writer
from support.upserts import change, changes, key_of, replayed, state, with_wrong_keys


def test_the_last_change_of_a_key_is_its_row(world, make_topic, make_upsert):
    topic = make_topic()
    topic.produce(change(1, "a"), change(2, "b"), change(1, "c"))
    pipeline = make_upsert(topic)
    published = world.run(pipeline)
    assert (published.batch.records, published.batch.rows) == (3, 3)
    assert state(world, pipeline) == {1: "c", 2: "b"}
    topic.produce(change(2, "d"), change(3, "e"))
    world.run(pipeline)
    assert state(world, pipeline) == {1: "c", 2: "d", 3: "e"}
    assert len(changes(world, pipeline)) == 5
    assert world.is_exact(pipeline)


def test_a_null_value_deletes_the_row_of_its_key(world, make_topic, make_upsert):
    topic = make_topic()
    topic.produce(change(1, "a"), change(2, "b"))
    topic.produce(None, key=key_of(1))
    topic.produce(change(3, "c"))
    pipeline = make_upsert(topic)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.tombstones) == (4, 4, 0)  # a delete is a change like any other
    assert state(world, pipeline) == {2: "b", 3: "c"}
    assert [each[:5] for each in changes(world, pipeline)] == [
        (1, "a", False, 0, 0),
        (2, "b", False, 0, 1),
        (1, None, True, 0, 2),
        (3, "c", False, 0, 3),
    ]
    assert world.is_exact(pipeline)
    # It comes back, and a delete of what is not there does no harm.
    topic.produce(None, None, key=key_of(9))
    topic.produce(change(1, "again"))
    world.run(pipeline)
    assert state(world, pipeline) == {1: "again", 2: "b", 3: "c"}
    # The row of an earlier batch goes.
    topic.produce(None, key=key_of(2))
    world.run(pipeline)
    assert state(world, pipeline) == {1: "again", 3: "c"}
    assert world.is_exact(pipeline)


# Executors cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_rows_under_wrong_keys_and_wrong_deletes_are_gone_after_replay(world, make_topic, make_upsert):
    topic = make_topic()
    topic.produce(change(101, "not to be deleted"), change(1, "a"), change(2, "b"))
    topic.produce(None, key=key_of(1))
    right = make_upsert(topic)
    wrong = replace(right, value=with_wrong_keys(right.value.schema), message_key=with_wrong_keys("id int"))
    first = world.plan(right)
    # The first record by the right program, so that there is something for the wrong delete to remove.
    world.process(right, first)
    assert state(world, right) == {101: "not to be deleted", 2: "b"}
    replayed(world, wrong, (1, 4))
    assert state(world, wrong) == {102: "b"}
    assert world.is_exact(wrong)
    topic.produce(change(3, "later"))
    world.run(right)
    replayed(world, right, (1, 4))
    assert state(world, right) == {101: "not to be deleted", 2: "b", 3: "later"}
    assert world.is_exact(right)
    # Only the delete: what it had removed is there again.
    replayed(world, wrong, (3, 4))
    assert state(world, wrong) == {1: "a", 2: "b", 3: "later"}


def test_late_and_repeated_changes_do_not_overwrite_newer_ones(world, make_topic, make_upsert):
    topic = make_topic(2)
    pipeline = make_upsert(topic, version="version")
    topic.produce(change(1, "v5", 5), change(2, "v1", 1))
    topic.produce(change(1, "v4", 4), change(1, "v5", 5), partition=1)
    world.run(pipeline)
    assert state(world, pipeline) == {1: "v5", 2: "v1"}
    topic.produce(change(1, "v3", 3), change(2, "v2", 2), change(3, "none"), partition=1)
    world.run(pipeline)
    assert state(world, pipeline) == {1: "v5", 2: "v2", 3: "none"}
    topic.produce(change(3, "v0", 0))
    world.run(pipeline)
    assert state(world, pipeline)[3] == "v0"  # no version is older than any
    assert world.is_exact(pipeline)


def test_key_on_two_partitions_without_version_is_error_that_says_so(world, make_topic, make_upsert):
    topic = make_topic(2)
    topic.produce(change(1, "a"), change(2, "b"))
    topic.produce(change(3, "c"), partition=1)
    pipeline = make_upsert(topic)
    world.run(pipeline)
    topic.produce(change(2, "x"), partition=1)
    batch_id = world.plan(pipeline)
    with pytest.raises(KeyOnTwoPartitions) as caught:
        world.process(pipeline, batch_id)
    assert f"(id) = (2) in {topic.name}[0] and {topic.name}[1]" in str(caught.value)
    assert "version=" in str(caught.value)
    assert state(world, pipeline) == {1: "a", 2: "b", 3: "c"}
    assert len(changes(world, pipeline)) == 3


def test_a_key_that_is_not_known_is_a_reject(world, make_topic, make_upsert):
    topic = make_topic()
    topic.produce(change(1, "a"), change(None, "nobody"))
    topic.produce(None)
    topic.produce(None, key=b"no json")
    topic.produce(None, key=b'{"id": null}')
    pipeline = make_upsert(topic, max_rejects=9)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (5, 1, 4)
    reasons = dict(world.rows('select "offset", reason from exactbatch.rejected_record'))
    assert reasons[1] == reasons[4] == "column 'id': the key is null"
    assert reasons[2] == "key: expected a key, found null"
    assert reasons[3].startswith("key: ")
    assert world.is_exact(pipeline)
    without = make_upsert(
        topic, message_key=None, name=f"{topic.name}.2", sink=Upsert(f'public."{topic.name}2"', ("id",))
    )
    with pytest.raises(TooManyRejects, match=r"does not say what the key is: give Pipeline\(…\) key=Json"):
        world.run(without)


def test_a_target_without_the_key_as_a_constraint_is_refused(world, make_topic, make_upsert):
    topic = make_topic()
    topic.produce(change(1, "a"))
    table = f'public."{topic.name}"'
    world.execute(f"create table {table} (id int, name text, version int, unique (id, name))")
    pipeline = make_upsert(topic)
    batch_id = world.plan(pipeline)
    with pytest.raises(TargetMismatch, match=r"primary key or unique constraint on exactly \(id\)"):
        world.process(pipeline, batch_id)
    world.execute(f"alter table {table} add unique (id)")
    world.process(pipeline, batch_id)
    assert state(world, pipeline) == {1: "a"}


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (lambda: Upsert("t", key=()), "expected the key of t as a column or as several"),
        (lambda: Upsert("t", key="nix"), "expected the key of t among the pipeline's columns"),
        (lambda: Upsert("t", key=("id",), version="nix"), "expected the version of t among"),
        (lambda: Upsert("t", key=("id",), version="id"), "is a version and part of the key"),
    ],
)
def test_a_key_that_cannot_be_one_is_told(sink, said):
    with pytest.raises(ConfigurationError) as caught:
        Pipeline(name="p", topics=("t",), value=Json("id int, name text"), sink=sink())
    assert said in str(caught.value)


def test_the_auditor_finds_a_row_that_is_not_the_latest(world, make_topic, make_upsert):
    topic = make_topic()
    topic.produce(change(1, "a"), change(2, "b"), change(1, "c"))
    pipeline = make_upsert(topic)
    world.run(pipeline)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    for spoil in ("set name = 'a' where id = 1", "set id = 7 where id = 2"):
        world.execute(f"update {table} {spoil}")
        found = audit(pipeline, world.settings)
        assert found.target.stale > 0
        assert not found.is_exact
        world.execute(f"truncate {table}")
        world.execute(f"insert into {table} values (1, 'c'), (2, 'b')")
        assert world.is_exact(pipeline)


@pytest.mark.slow
def test_any_history_of_changes_and_replays_ends_as_plain_program_has_it(world, make_topic, make_upsert):
    """Two partitions, versions out of order, deletes, bad records, batches of any size, replays in between."""
    chance = random.Random(11)
    topic = make_topic(2)
    pipeline = make_upsert(topic, version="version", max_rejects=1000)
    log: list[tuple[tuple[Any, ...], int, str | None]] = []
    counts = [0, 0]
    for step in range(12):
        for _ in range(chance.randint(1, 60)):
            partition, number = chance.randint(0, 1), chance.randint(1, 15)
            offset = counts[partition]
            counts[partition] += 1
            version = 2 * chance.randint(1, 20) + partition  # no two of different partitions are equal
            kind = chance.random()
            if kind < 0.15:
                topic.produce(None, key=key_of(number), partition=partition)  # a reject: it has no version
            elif kind < 0.2:
                topic.produce(b"bad", partition=partition)
            else:
                name = f"{step}.{partition}.{offset}"
                topic.produce(change(number, name, version), partition=partition)
                log.append(((version, partition, offset), number, name))
        world.run(pipeline)
        if step % 3 == 2:
            partition = chance.randint(0, 1)
            cut = sorted(chance.sample(range(counts[partition] + 1), 2))
            replayed(world, pipeline, (cut[0], cut[1]), partition=partition)
        expected: dict[int, str | None] = {}
        for _, number, name in sorted(log, key=lambda each: each[0]):
            expected[number] = name
        assert state(world, pipeline) == {k: v for k, v in expected.items() if v is not None}
    assert world.is_exact(pipeline)


def test_debezium_in_one_line(world, make_topic, make_pipeline):
    """Events of a key over two partitions, in no order between them: their positions tell."""
    topic = make_topic(2)

    def event(op: str, number: int, name: str, lsn: int, partition: int = 0) -> None:
        row = {"id": number, "name": name, "photo": base64.b64encode(name.encode()).decode()}
        before, after = (row, None) if op == "d" else (None, row)
        value = {
            "before": before,
            "after": after,
            "op": op,
            "source": {"lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]'},
        }
        topic.produce(json.dumps(value).encode(), partition=partition)

    event("c", 1, "one", 10)
    event("c", 2, "two", 11)
    event("d", 1, "one", 30)
    topic.produce(None, key=key_of(1))
    event("u", 1, "late", 20, partition=1)
    event("u", 2, "newer", 12, partition=1)
    event("u", 2, "__debezium_unavailable_value", 13)
    event("t", 0, "", 14)
    for nothing in (
        {"op": "m", "message": {"prefix": "p", "content": "Yg=="}},
        {"ts_ms": 1},
        {"status": "END", "id": "571", "ts_ms": 1},
        {"source": {}, "ddl": "create table t (id int)"},
    ):
        topic.produce(json.dumps(nothing).encode(), partition=1)
    event("u", 9, "__debezium_unavailable_value", 15)
    sink = Upsert(f'public."{topic.name}"', key="id", version=("commit_lsn", "lsn"))
    value = Debezium("id int, name text, photo bytea", version="postgres")
    pipeline = make_pipeline(topic, value=value, sink=sink, max_rejects=2)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (13, 6, 2, 5)
    assert state(world, pipeline) == {2: "newer"}
    assert world.rows(f"select convert_from(photo, 'UTF8') from public.\"{topic.name}\"") == [("newer",)]
    truncated, left_out = world.rows('select reason from exactbatch.rejected_record order by "offset"')
    assert left_out[0].startswith("column 'name': the source left the value out because it had not changed")
    assert truncated[0].startswith("op 't': the table was truncated at its source")
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f'update public."{topic.name}_change" set unchanged_columns = null where kafka_offset = 4')
    found = audit(pipeline, world.settings, values=True)
    assert (found.target.stale, found.findings["changed"]) == (1, 1)
    event("c", 9, "nine", 14, partition=1)
    world.run(pipeline)
    replayed(world, pipeline, (4, 5), (6, 7))
    assert state(world, pipeline) == {2: "newer", 9: "nine"}
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("history", [True, False], ids=["with history", "without history"])
@pytest.mark.parametrize("bad", [0, 5, 6, 10])
def test_two_changes_of_a_key_in_a_record_are_refused_however_many_rejects_there_are(
    world, make_topic, make_pipeline, history, bad
):
    topic = make_topic()
    topic.produce(*[b"no JSON"] * bad, b'{"items": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}')
    sink = Upsert(f'public."{topic.name}"', key="id", history=history)
    value = Json("id int from 'items[].id', name text from 'items[].name'")
    pipeline = make_pipeline(topic, value=value, sink=sink, max_rejects=10)
    with pytest.raises(TargetMismatch, match=rf"several changes of one key.*offset {bad}: \(1\)"):
        world.run(pipeline)
