"""An audit of values compares rejects with their records."""

from typing import Any, Final

import pytest

from exactbatch import Aggregate, Append, Count, Json, Upsert
from exactbatch.audit.run_audit import audit
from support.batch_runner import BatchRunner
from support.writers import table_of

SINKS: Final = {
    "append": lambda name: Append(name),
    "upsert": lambda name: Upsert(name, key=("id",)),
    "latest": lambda name: Upsert(name, key=("id",), history=False),
    "aggregate": lambda name: Aggregate(name, group_by=("word",), aggregates={"n": Count()}),
}
REASON: Final = "expected a JSON object"
# What is changed in the reject of a record that does not decode, and how the note ends.
CHANGED: Final = (
    ("value = 'x'", "value"),
    ("value = null", "value"),
    ("key = 'x'", "key"),
    ("key = null", "key"),
    ("headers = '[]'", "headers"),
    ("""headers = '[["source", "YQ=="], ["empty", ""]]'""", "headers"),
    ("reason = 'none'", "reason, which is 'none', and decoding says "),
    ("key = 'x', headers = '[]', value = 'y'", "key, value, headers"),
)


@pytest.mark.parametrize("kind", SINKS)
def test_a_reject_that_differs_from_its_record_is_found(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, kind: str
) -> None:
    topic = make_topic(2)
    headers = [("source", b"a"), ("empty", None)]
    good = b'{"id": 1, "word": "b"}'
    topic.produce(good, b"{", good, key=b"k\0", headers=headers)
    others = (b'{"id": 2, "word": 3}', b'{"id": 3, "word": "b"}', b'{"id": 4, "word": "b", "at": "never"}')
    topic.produce(*others, partition=1)
    value = Json("id int, word text, at interval" if kind != "aggregate" else "id int, word text")
    pipeline = make_pipeline(topic, sink=SINKS[kind](f'public."{topic.name}"'), value=value, max_rejects=10)
    world.run(pipeline)
    rejected = 2 if kind == "aggregate" else 3
    report = audit(pipeline, world.settings, values=True)
    assert report.is_exact, report
    assert report.rejected == rejected
    world.execute(
        "create table public.kept as table exactbatch.rejected_record; alter table public.kept drop column kind"
    )
    for change, ends in CHANGED:
        where = f"topic = '{topic.name}' and partition = 0"
        world.execute(f"update exactbatch.rejected_record set {change} where {where}")
        report = audit(pipeline, world.settings, values=True)
        assert {each: count for each, count in report.findings.items() if count} == {"changed": 1}, change
        [note] = report.target.notes
        assert note.startswith(f"{topic.name}[0] offset 1: the reject does not have the record's {ends}"), (
            note
        )
        [first, _] = report.partitions
        assert first.changed.first == [1]
        assert audit(pipeline, world.settings).is_exact  # without values, only offsets are compared
        world.execute(
            "delete from exactbatch.rejected_record; insert into exactbatch.rejected_record table public.kept"
        )
    # Of the target's reasons, only the target knows: key, value and headers are compared all the same.
    world.execute("update exactbatch.rejected_record set value = 'x' where partition = 1")
    assert audit(pipeline, world.settings, values=True).findings["changed"] == rejected - 1


def test_rejects_that_are_added_or_removed_are_found(
    world: BatchRunner, make_topic: Any, make_pipeline: Any
) -> None:
    topic = make_topic(1)
    topic.produce(b'{"id": 1, "name": "a"}', b"{", b'{"id": 2, "name": "b"}')
    pipeline = make_pipeline(topic, max_rejects=1)
    world.run(pipeline)
    assert audit(pipeline, world.settings, values=True).is_exact
    added = (
        "insert into exactbatch.rejected_record select pipeline, topic_id, partition, {offset}, topic, key, value, "
        "headers, reason, batch_id from exactbatch.rejected_record"
    )
    for offset, kind in ((0, "duplicated"), (3, "unexpected")):
        world.execute(added.format(offset=offset))
        assert audit(pipeline, world.settings, values=True).findings[kind] == 1
        world.execute(f'delete from exactbatch.rejected_record where "offset" = {offset}')
    world.execute("delete from exactbatch.rejected_record")
    assert audit(pipeline, world.settings, values=True).findings["missing"] == 1


@pytest.mark.parametrize("since", [0, 1])
def test_a_row_without_lineage_is_not_exact_if_the_log_has_every_change(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, since: int
) -> None:
    """Otherwise it may be from before the pipeline."""
    topic = make_topic(1)
    topic.produce(b'{"id": 0}', b'{"id": 1}', b'{"id": 2}')
    sink = Upsert(f'public."{topic.name}"', key=("id",), history=False)
    pipeline = make_pipeline(topic, sink=sink, value=Json("id int"), start={topic.name: {0: since}})
    world.run(pipeline)
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f"insert into {table_of(sink, world.connection)} (id) values (99)")
    report = audit(pipeline, world.settings, values=True)
    assert report.target.not_ours == 1
    assert (report.is_exact, report.target.stale, report.target.undecided) == (
        (False, 1, 0) if since == 0 else (True, 0, 1)
    )
    notes = (
        "1 rows have no lineage, and the log holds every change since offset 0: exactbatch did not write them"
    )
    assert (notes in report.target.notes) == (since == 0)
