"""The audit of an Upsert without history: it folds the log again, and finds each planted difference."""

import json
from collections import Counter
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition
from psycopg2 import sql

from exactbatch import Debezium, Json, Upsert
from exactbatch.audit import run_audit as audit_module
from exactbatch.audit.audit_result import AuditReport
from exactbatch.audit.latest_values import LatestValues
from exactbatch.audit.run_audit import audit
from exactbatch.operations.compact import compact_changes
from support.batch_runner import BatchRunner
from support.writers import table_of, writer_of

# What is planted, and how many keys are wrong then. {t} is the target, {d} the table of markers.
PLANTED: Final = (
    ("update {t} set name = 'x' where id = 1", {"stale": 1}),
    ("update {t} set version = version + 1 where id = 1", {"stale": 1}),
    ("update {t} set kafka_timestamp = kafka_timestamp + interval '1 ms' where id = 1", {"stale": 1}),
    ("delete from {t} where id = 1", {"stale": 1}),
    ("delete from {d} where id = 3", {"stale": 1}),
    ("update {d} set version = 4 where id = 3", {"stale": 1}),
    # The change before the latest one: a later change was not applied, or an older one was.
    ("update {t} set name = 'first', version = 1, kafka_offset = 0 where id = 1", {"stale": 1}),
    # Another record's place, which two rows claim then.
    ("insert into {t} select 99, name, version, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, batch_id "
     "from {t} where id = 1", {"stale": 1}),
    ("insert into {t} select id, 'x', version, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, batch_id "
     "from {d} where id = 3", {"stale": 1}),
    ("update {t} set batch_id = 900 where id = 1", {"stale": 1, "unexpected": 1, "misplaced": 0}),
    ("update {t} set kafka_offset = 500 where id = 1", {"unexpected": 1}),
    ("delete from exactbatch.rejected_record", {"changed": 1, "miscounted": 1}),
)  # fmt: skip


def event(number: int, name: str | None, version: int) -> bytes:
    return json.dumps({"id": number, "name": name, "version": version}).encode()


def change(number: int, name: str | None, version: int) -> bytes:
    """A change of a source with positions; a delete if there is no name."""
    before, after = ({"id": number}, None) if name is None else (None, {"id": number, "name": name})
    op = "d" if name is None else "c"
    return json.dumps({"op": op, "before": before, "after": after, "source": {"version": version}}).encode()


def found(report: AuditReport) -> Counter[str]:
    return +Counter(report.findings)


def test_the_audit_finds_every_row_that_is_not_the_latest_change_in_the_log(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, admin: Any
) -> None:
    topic = make_topic(2)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version="version", history=False)
    value = Debezium("id int, name text", version="version")
    pipeline = make_pipeline(topic, sink=sink, value=value, max_rejects=10)
    topic.produce(change(1, "first", 1), change(2, "a", 1), change(3, "a", 1), b"{")
    world.run(pipeline)
    topic.produce(change(1, "second", 2), change(2, "late", 0), partition=1)
    topic.produce(change(3, None, 2), change(4, "d", 1))
    world.run(pipeline)

    target, markers = (
        table.identifier.as_string(world.connection) for table in reversed(writer_of(sink).tables)
    )
    names = {"t": target, "d": markers}

    def audited() -> AuditReport:
        return audit(pipeline, world.settings, values=True)

    report = audited()
    assert report.is_exact, report
    assert (report.target.undecided, report.records) == (0, 8)
    assert audit(pipeline, world.settings).is_exact
    assert [row[0] for row in world.rows(f"select id from {target} order by id")] == [1, 2, 4]
    for table, copy in ((target, "public.t_copy"), (markers, "public.d_copy")):
        world.execute(f"create table {copy} as select * from {table}")
    world.execute(
        "create table public.r_copy as table exactbatch.rejected_record; alter table public.r_copy drop column kind"
    )
    for statement, expected in PLANTED:
        world.execute(statement.format(**names))
        report = audited()
        assert not report.is_exact, statement
        for kind, number in expected.items():
            assert number <= found(report)[kind] <= max(number, 1), (statement, report)
        world.execute(
            f"delete from {target}; insert into {target} select * from public.t_copy; delete from {markers}; "
            f"insert into {markers} select * from public.d_copy; delete from exactbatch.rejected_record; "
            f"insert into exactbatch.rejected_record select * from public.r_copy"
        )
    assert audited().is_exact

    # The log no longer holds the records of two of the rows: one cannot be decided, the other is not the latest.
    for future in admin.delete_records([TopicPartition(topic.name, 0, 4)]).values():
        future.result()
    topic.produce(change(5, "e", 1))  # the log is not empty
    world.run(pipeline)
    world.execute(f"drop table public.t_copy; create table public.t_copy as select * from {target}")
    report = audited()
    assert report.is_exact, report
    assert report.target.undecided == 1
    assert report.target.notes == [
        "1 keys: the log no longer holds the record of their row, so that nothing proves or disproves it"
    ]
    world.execute(
        f"update {target} set name = 'first', version = 1, kafka_partition = 0, kafka_offset = 0, "
        f"batch_id = (select min(batch_id) from exactbatch.batch) where id = 1"
    )
    assert found(audited()) == {"stale": 1}
    world.execute(
        f"delete from {target} where id = 1; insert into {target} select * from public.t_copy where id = 1"
    )

    # A marker below the horizon may be gone; a late change then brings the row back.
    compacted = compact_changes(world.connection, world.log, pipeline, before=None)
    assert compacted.dropped == 1
    assert audited().is_exact


def test_a_row_that_another_pipeline_over_the_topic_wrote_last_is_right(
    world: BatchRunner, make_topic: Any, make_pipeline: Any
) -> None:
    """Of one record, both give the same row; that of the pipeline which processed it last is in the target."""
    topic = make_topic(1)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version="version", history=False)
    value = Json("id int, name text, version int")
    base, other = (
        make_pipeline(topic, name=name, sink=sink, value=value) for name in (topic.name, f"{topic.name}_v2")
    )
    topic.produce(event(1, "a", 1), event(2, "b", 1))
    world.run(base)
    last = world.run(other).batch.batch_id
    assert world.rows(f"select distinct batch_id from {table_of(sink, world.connection)}") == [(last,)]
    for pipeline in (base, other):
        report = audit(pipeline, world.settings, values=True)
        assert report.is_exact, report
    world.execute(f"update {table_of(sink, world.connection)} set name = 'x' where id = 1")
    assert found(audit(base, world.settings, values=True)) == {"stale": 1}


def test_the_fold_of_many_changes_of_few_keys_stays_small(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window replaces the rows of its keys, and no vacuum runs within a transaction."""
    topic = make_topic(1)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version="version", history=False)
    pipeline = make_pipeline(topic, sink=sink, value=Json("id int, name text, version int"))
    topic.produce(*(event(number % 10, "a", number) for number in range(2_000)))
    world.run(pipeline)
    pages = []
    compare = LatestValues.compare

    def measured(values: LatestValues, *arguments: Any) -> tuple[int, int]:
        size = "select pg_relation_size('pg_temp.exactbatch_fold') / current_setting('block_size')::int"
        pages.append(values._snapshot.rows(sql.SQL(size))[0][0])
        return compare(values, *arguments)

    monkeypatch.setattr(LatestValues, "compare", measured)
    monkeypatch.setattr(audit_module, "_WINDOW", 20)
    report = audit(pipeline, world.settings, values=True)
    assert report.is_exact, report
    assert pages == [1]
