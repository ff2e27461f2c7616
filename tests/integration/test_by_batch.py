"""Append(layout="by_batch"): a batch is a partition of the target, written once and attached while it is published."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg2
import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.audit import run_audit as audit_module
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.publishing import publish as batch_publish
from exactbatch.batch.staging import stage_partition, staged_splits
from exactbatch.batch.staging.stage_partition import PartitionTask, stage_split
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, create_rejects
from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer, TargetMismatch, TooManyRejects
from exactbatch.ledger import Ledger
from exactbatch.planning.request import RequestedRange
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.by_batch import layout
from exactbatch.sinks.by_batch.layout import ByBatch
from exactbatch.sinks.by_batch.parent import check_parent
from exactbatch.sinks.writers import find_writer
from support.batch_runner import LINEAGE, BatchRunner
from support.partitions import bounds, by_batch, exact, owners, plan_replay
from support.staged_batches import trigger
from support.topics import record


@pytest.fixture
def topic(make_topic):
    """Two partitions: 5 records in the first and 3 in the second."""
    topic = make_topic(2, retention_ms="-1")
    topic.produce(*(record(number, "a") for number in range(5)))
    topic.produce(*(record(number, None) for number in range(5, 8)), partition=1)
    return topic


@pytest.fixture
def pipeline(topic, make_pipeline):
    """Each batch has a partition to itself."""
    return make_pipeline(topic, sink=by_batch(topic.name))


# Publish


def test_a_batch_becomes_a_partition_that_was_written_once(world, topic, pipeline, monkeypatch):
    copied: dict[str, Any] = {}
    original = batch_job.publish

    def publish(*arguments: Any, **named: Any) -> Any:
        table = f"exactbatch_staging.{named['tables'].partition}"
        copied["rows"] = world.rows(f"select xmin::text, ctid::text, kafka_offset from {table} order by 1, 2")
        copied["logged"] = world.rows(f"select relpersistence from pg_class where oid = '{table}'::regclass")
        return original(*arguments, **named)

    monkeypatch.setattr(batch_job, "publish", publish)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.status) == (8, 8, "committed")
    assert bounds(world, pipeline) == [(batch.batch_id, batch.batch_id + 1)]
    found = world.target(pipeline, "id, name, kafka_topic, kafka_partition, kafka_offset, batch_id")
    assert found[0] == (0, "a", topic.name, 0, 0, batch.batch_id)
    assert found[-1] == (7, None, topic.name, 1, 2, batch.batch_id)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    versions = world.rows(f"select xmin::text, ctid::text, kafka_offset from {table} order by 1, 2")
    assert versions == copied["rows"], "no row was written again"
    assert copied["logged"] == [("p",)]
    assert world.staging() == []
    assert exact(world, pipeline)
    topic.produce(record(8))
    world.run(pipeline)
    assert len(bounds(world, pipeline)) == 2
    assert exact(world, pipeline)


def test_attach_adopts_constraint_and_indexes_without_a_scan(world, topic, pipeline, monkeypatch):
    world.execute(
        f'create table "{topic.name}" (id int, name text, {LINEAGE}, seen timestamptz default now(), '
        f"twice bigint generated always as (id * 2) stored, check (id >= 0), "
        f"primary key (batch_id, kafka_partition, kafka_offset)) partition by range (batch_id); "
        f'create index "with %s {{}}" on "{topic.name}" (lower(name)) where id > 2; '
        f'create unique index on "{topic.name}" (id, batch_id) include (name)'
    )
    original = staged_splits.check_splits

    def check(cursor: Any, *arguments: Any) -> None:
        original(cursor, *arguments)
        cursor.execute("set local client_min_messages = debug1")

    monkeypatch.setattr(staged_splits, "check_splits", check)
    seen: list[str] = []
    failpoint = batch_publish.failpoint

    def note(name: Any) -> None:
        if name == "publish.after_insert":
            seen.extend(world.connection.notices)
        failpoint(name)

    monkeypatch.setattr(batch_publish, "failpoint", note)
    opened = batch_job.ledger_session

    def session(*arguments: Any, **named: Any) -> Any:
        return _Noting(opened(*arguments, **named), seen)

    monkeypatch.setattr(batch_job, "ledger_session", session)
    batch_id = world.run(pipeline).batch.batch_id
    assert any("is implied by existing constraints" in notice for notice in seen), seen
    assert not any("building index" in notice for notice in seen), seen
    [(partition,)] = world.rows("select inhrelid::regclass::text from pg_inherits where inhparent = %s::regclass",
                                f'"{topic.name}"')  # fmt: skip
    assert world.rows(
        "select count(*) from pg_index x join pg_inherits i on i.inhrelid = x.indexrelid "
        "where x.indrelid = %s::regclass and x.indisvalid", partition
    ) == [(3,)]  # fmt: skip
    constraints = world.rows(
        "select conname from pg_constraint where conrelid = %s::regclass and contype = 'c'", partition
    )
    assert len(constraints) == 1, "the target's, and no longer that of the bound"
    assert world.rows("select reloptions from pg_class where oid = %s::regclass", partition) == [(None,)]
    assert world.target(pipeline, "twice, seen is not null, batch_id")[3] == (6, True, batch_id)
    assert exact(world, pipeline)


class _Noting:
    """A context manager of a connection whose notices are kept."""

    def __init__(self, session: Any, notices: list[str]) -> None:
        self._session, self._notices = session, notices

    def __enter__(self) -> Any:
        connection = self._session.__enter__()
        self._connection = connection
        return connection

    def __exit__(self, *error: Any) -> Any:
        self._notices.extend(self._connection.notices)
        return self._session.__exit__(*error)


def test_rejects_count_and_too_many_write_nothing(world, topic, pipeline):
    topic.produce(b"bad", None, record(9))
    message = world.refused(TooManyRejects, pipeline)
    assert "Nothing was written" in message
    assert bounds(world, pipeline) == []
    batch = world.run(replace(pipeline, max_rejects=1)).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (11, 9, 1, 1)
    assert exact(world, pipeline)


def test_an_empty_batch_and_one_of_rejects_alone(world, make_topic, make_pipeline):
    topic = make_topic()
    pipeline = make_pipeline(topic, sink=by_batch(topic.name), max_rejects=5)
    topic.produce(b"bad", None)
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected, batch.tombstones) == (0, 1, 1)
    assert exact(world, pipeline)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("check (id <> 3)", r"\[0\] offset 3: the target refuses what the batch writes: .*check constraint"),
        ("check (name <> 'a' or id < 2)", r"\[0\] offset 2: the target refuses"),
        (
            "unique (name, batch_id)",
            r"name_batch_id_key refuses the rows of the batch: .*Key \(name, batch_id\)=",
        ),
    ],
)
def test_a_refusal_names_the_constraint_and_the_record(world, topic, pipeline, table, expected):
    world.execute(
        f'create table "{topic.name}" (id int, name text, {LINEAGE}, {table}) partition by range (batch_id)'
    )
    message = world.refused(TargetMismatch, pipeline)
    assert re.search(expected, message), message
    assert bounds(world, pipeline) == []


# Attempts


def split_of(world: BatchRunner, pipeline: Pipeline, batch_id: int) -> tuple[PartitionTask, StagingTables]:
    """The task of the first partition, and the tables of a launch, which exist."""
    tables = StagingTables(batch_id, 7)
    with transaction(world.connection) as cursor:
        ranges = Ledger(world.connection).batches.read_ranges(batch_id)
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
        staging = find_writer(pipeline.traits).partition_staging(
            cursor, pipeline.value.columns, batch_id=batch_id, offsets=8
        )
        assert staging is not None
        create_rejects(cursor, tables)
        staged_splits.create_partition(cursor, tables, staging)
    [task, *_] = stage_tasks(pipeline, pipeline.traits, ranges, {}, tables, world.settings, 2)
    return PartitionTask(task, staging.columns, pipeline), tables


@pytest.fixture(params=["off", "1"])
def path(request, monkeypatch):
    """Rows are encoded by ADBC, or by compiled code."""
    monkeypatch.setenv("EXACTBATCH_FAST_PATH", request.param)
    return request.param


def test_of_two_attempts_one_is_in_the_table_and_both_report_it(world, topic, pipeline, path):
    topic.produce(b"bad")
    pipeline = replace(pipeline, max_rejects=1)
    task, tables = split_of(world, pipeline, world.plan(pipeline))
    first, second = stage_split(task, 1), stage_split(task, 2)
    assert first == second
    assert (first.attempt, first.records, first.rows, first.rejects) == (1, 6, 5, 1)
    assert first.fast_count == (0 if path == "off" else 5)
    assert world.rows(
        f"select id, name, kafka_topic, kafka_partition, kafka_offset, batch_id from exactbatch_staging.{tables.rows}"
    ) == [(number, "a", topic.name, 0, number, tables.batch_id) for number in range(5)]
    assert world.rows(f"select count(*) from exactbatch_staging.{tables.rows}") == [(5,)]
    rejected = f"select count(*) from exactbatch_staging.{tables.rejects} where task_attempt <> {INTACT}"
    assert world.rows(rejected) == [(1,)]


def test_a_refusal_names_the_record_on_either_path(world, topic, pipeline, path):
    world.execute(
        f'create table "{topic.name}" (id int, name text, {LINEAGE}, check (id <> 3)) partition by range (batch_id)'
    )
    task, tables = split_of(world, pipeline, world.plan(pipeline))
    refused = stage_split(task, 1)
    assert isinstance(refused, TargetMismatch)
    assert f"{topic.name}[0] offset 3: the target refuses" in str(refused)
    assert world.rows(f"select count(*) from exactbatch_staging.{tables.splits}") == [(0,)]


def test_an_attempt_that_loses_the_race_rolls_its_rows_back(world, pipeline, monkeypatch, path):
    """Both have copied; the second waits for the first, which has entered the split and not committed."""
    task, tables = split_of(world, pipeline, world.plan(pipeline))
    reached, go, firsts = threading.Event(), threading.Event(), []

    def failpoint(name: str) -> None:
        if name == "stage.before_copy_commit" and not firsts:
            firsts.append(name)
            reached.set()
            assert go.wait(30)

    monkeypatch.setattr(stage_partition, "failpoint", failpoint)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(stage_split, task, 1)
        assert reached.wait(30)
        other = pool.submit(stage_split, task, 2)
        while world.rows("select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                         "and application_name = 'exactbatch task'") != [(1,)]:  # fmt: skip
            assert not other.done()
        go.set()
    assert one.result() == other.result()
    assert one.result().attempt == 1
    assert world.rows(f"select count(*) from exactbatch_staging.{tables.rows}") == [(5,)]


def test_an_attempt_that_spark_has_given_up_does_not_hold_up_publish(world, settings, pipeline, monkeypatch):
    """It is in the middle of its COPY when the batch is published; nothing of it may arrive later either."""
    zombies: list[Any] = []
    original = batch_job.close_partition

    def close(connection: Any, pipeline: Pipeline, tables: StagingTables) -> None:
        zombie = connect(settings.postgres, application="exactbatch task", timeout=60)
        with zombie.cursor() as cursor:
            cursor.execute(
                f"insert into exactbatch_staging.{tables.rows} "
                f"(id, kafka_topic, kafka_partition, kafka_offset, batch_id) values (99, 't', 0, 99, {tables.batch_id})"
            )
        zombies.append(zombie)
        original(connection, pipeline, tables)

    monkeypatch.setattr(batch_job, "close_partition", close)
    assert world.run(pipeline).batch.rows == 8
    with pytest.raises(psycopg2.OperationalError):
        zombies[0].commit()
    assert exact(world, pipeline)


def test_a_late_attempt_reads_nothing(world, pipeline, monkeypatch):
    task, _ = split_of(world, pipeline, world.plan(pipeline))
    first = stage_split(task, 1)

    def read(*arguments: Any) -> Any:
        raise AssertionError("the split is in the table")

    monkeypatch.setattr(stage_partition, "_copy", read)
    assert stage_split(task, 2) == first


def test_a_late_attempt_finds_no_table(world, pipeline):
    task, tables = split_of(world, pipeline, world.plan(pipeline))
    staged_splits.close_partition(world.connection, pipeline, tables)
    with pytest.raises(StagedRowsDiffer, match="does not exist"):
        stage_split(task, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "delete from {splits} where partition = 1",
        "update {splits} set rows = rows + 1 where partition = 1",
        "update {splits} set task_attempt = 77 where partition = 0",
        "insert into {splits} select topic, partition, 99, 100, 5, 1, 1, 0, 0 from {splits} limit 1",
    ],
)
def test_splits_that_are_not_those_reported_are_not_published(world, pipeline, monkeypatch, statement):
    """As after a failover to a replica that lacks the last commits."""
    original = batch_job.close_partition

    def close(connection: Any, pipeline: Pipeline, tables: StagingTables) -> None:
        world.execute(statement.replace("{splits}", f"exactbatch_staging.{tables.splits}"))
        original(connection, pipeline, tables)

    monkeypatch.setattr(batch_job, "close_partition", close)
    assert "splits as the tasks reported them" in world.refused(StagedRowsDiffer, pipeline)
    assert bounds(world, pipeline) == []


# Rows that are inserted


def test_small_batches_share_an_open_partition_until_a_large_one_comes(world, topic, make_pipeline):
    pipeline = make_pipeline(topic, sink=by_batch(topic.name, smallest=6))
    first = world.run(pipeline).batch.batch_id  # 8 offsets
    topic.produce(record(10))
    second = world.run(pipeline).batch.batch_id
    topic.produce(record(11))
    world.run(pipeline)
    assert bounds(world, pipeline) == [(first, first + 1), (second, second + 100)]
    topic.produce(*map(record, range(20, 30)))
    large = world.run(pipeline).batch.batch_id
    assert bounds(world, pipeline)[1:] == [(second, large), (large, large + 1)]
    assert exact(world, pipeline)
    topic.produce(record(31))
    last = world.run(pipeline).batch.batch_id
    assert bounds(world, pipeline)[2:] == [(large, large + 1), (last, last + 100)]
    again = plan_replay(world, pipeline, batch_ids=(large,))
    world.process(pipeline, again)
    assert bounds(world, pipeline)[1:] == [(second, large), (last, again), (again, again + 1)]
    assert exact(world, pipeline)


@pytest.mark.parametrize("cause", ["a reader", "later rows"])
def test_a_large_batch_is_inserted_into_an_open_partition_that_cannot_end(
    world, settings, topic, make_pipeline, caplog, cause
):
    pipeline = make_pipeline(topic, sink=by_batch(topic.name, smallest=9))
    first = world.run(pipeline).batch.batch_id
    topic.produce(*map(record, range(20, 30)))
    large = world.plan(pipeline)
    target = f'"{topic.name}"'
    reader = connect(settings.postgres, application="reader")
    caplog.set_level("INFO", "exactbatch")
    with reader.cursor() as cursor:
        if cause == "a reader":
            cursor.execute(f"select count(*) from {target}")
        else:
            world.execute(f"insert into {target} values (1, 'x', 'other', 0, 0, null, {large + 1})")
        world.process(pipeline, large)
    reader.close()
    assert "covers the batch already" in caplog.text
    assert bounds(world, pipeline) == [(first, first + 100)]
    world.execute(f"delete from {target} where batch_id = {large + 1}")
    assert exact(world, pipeline)


@pytest.mark.parametrize(
    ("columns", "then"),
    [
        ("id bigint, name text", ""),
        ("id int, name varchar(20)", ""),
        ("id int, name text", "create table log (id int);"
         + trigger("{t}", "after insert", "insert into log values (new.id); return null;")),
        ("id int, name text, foreign key (id) references other", ""),
        ("id int, name text", "create publication p for table {t} with (publish_via_partition_root = true)"),
        ("nr bigint generated by default as identity, id int, name text", ""),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_attached_are_inserted(world, topic, pipeline, caplog, columns, then):
    target = f'"{topic.name}"'
    world.execute("create table other (id int primary key); insert into other select generate_series(0, 20)")
    world.execute(
        f"create table {target} ({columns}, {LINEAGE}) partition by range (batch_id); "
        f"alter table {target} replica identity full"
    )
    if then:
        world.execute(then.replace("{t}", target))
    caplog.set_level("INFO", "exactbatch")
    batch_id = world.run(pipeline).batch.batch_id
    assert "its rows are staged and inserted, not attached, because" in caplog.text
    assert bounds(world, pipeline) == [(batch_id, batch_id + 1)]
    if "log" in then:
        assert world.rows("select count(*) from log") == [(8,)]
    assert exact(world, pipeline)
    world.process(pipeline, plan_replay(world, pipeline, batch_ids=(batch_id,)))
    assert exact(world, pipeline)


def test_rows_of_a_transform_are_inserted_into_a_partition(world, topic, make_pipeline):
    pipeline = make_pipeline(
        topic, sink=by_batch(topic.name), transform="select * from records where id <> 3"
    )
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.dropped) == (7, 1)
    assert bounds(world, pipeline) == [(batch.batch_id, batch.batch_id + 1)]
    again = plan_replay(world, pipeline, batch_ids=(batch.batch_id,))
    world.process(pipeline, again)
    assert bounds(world, pipeline) == [(again, again + 1)]
    assert world.is_exact(pipeline)


def test_rows_that_name_only_their_batch_become_partitions(world, topic, make_pipeline):
    pipeline = make_pipeline(topic, sink=by_batch(topic.name, lineage="batch"))
    world.run(pipeline)
    topic.produce(record(9))
    second = world.run(pipeline).batch.batch_id
    again = plan_replay(world, pipeline, ranges=(RequestedRange(topic.name, 0, 1, 2),))
    world.process(pipeline, again)
    assert bounds(world, pipeline) == [(second, second + 1), (again, again + 1)], "the replay was widened"
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    assert world.rows(f"select batch_id, count(*) as rows from {table} group by 1 order by 1") == [
        (second, 1),
        (again, 8),
    ]
    assert world.is_exact(pipeline)


# What a target must be


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", "is not partitioned"),
        ("partition by list (batch_id)", "is partitioned otherwise"),
        ("partition by range (batch_id, id)", "is partitioned otherwise"),
        (
            "partition by range (batch_id); create table d partition of {t} default",
            "default partition public.d",
        ),
        (
            "partition by range (batch_id); create publication p for table {t}",
            "publish_via_partition_root = true",
        ),
    ],
)
def test_a_table_of_another_layout_is_refused(world, topic, pipeline, table, expected):
    target = f'"{topic.name}"'
    world.execute(f"create table {target} (id int, name text, {LINEAGE}) " + table.replace("{t}", target))
    if "publication" in table:
        world.execute(f"alter table {target} replica identity full")
    assert expected in world.refused(TargetMismatch, pipeline)


def test_another_layout_of_an_existing_target_is_refused(world, topic, pipeline):
    world.run(pipeline)
    topic.produce(record(9))
    plain = replace(pipeline, sink=Append(pipeline.traits.target))
    assert "layout='by_batch'" in world.refused(TargetMismatch, plain)
    world.run(pipeline)
    assert exact(world, pipeline)


def test_a_table_that_has_the_name_of_the_partition_is_named(world, topic, pipeline):
    batch_id = world.plan(pipeline)
    world.execute(f'create table "{topic.name}_b{batch_id}" (id int)')
    message = world.refused(TargetMismatch, pipeline, batch_id)
    assert f"{topic.name}_b{batch_id}, but another object has that name" in message


def test_evolve_adds_columns_to_all_partitions_and_to_later_ones(world, topic, pipeline):
    world.run(pipeline)
    wider = replace(pipeline, value=Json("id int, name text, more int"), evolve="add")
    topic.produce(b'{"id": 9, "name": "x", "more": 5}')
    world.run(wider)
    assert world.target(wider, "id, more")[5] == (9, 5)
    assert len(bounds(world, wider)) == 2
    assert exact(world, wider)


def test_a_column_that_is_added_while_the_batch_runs_fails_the_try(world, topic, pipeline, monkeypatch):
    world.run(pipeline)
    topic.produce(record(9))
    original = batch_job.close_partition

    def close(*arguments: Any) -> None:
        world.execute(f'alter table "{topic.name}" add column more int')
        original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(batch_job, "close_partition", close)
        batch_id = world.plan(pipeline)
        assert "was changed while the batch ran" in world.refused(StagedRowsDiffer, pipeline, batch_id)
    world.process(pipeline, batch_id)
    assert exact(world, pipeline)


# Replays


def test_a_replay_of_a_batch_drops_its_partition(world, topic, pipeline):
    first = world.run(pipeline).batch.batch_id
    topic.produce(record(8), record(9))
    second = world.run(pipeline).batch.batch_id
    again = plan_replay(world, pipeline, batch_ids=(first,))
    world.process(pipeline, again)
    assert bounds(world, pipeline) == [(second, second + 1), (again, again + 1)]
    assert world.rows("select count(*) from pg_class where relname like %s", f"{topic.name}_b{first}%") == [
        (0,)
    ]
    assert exact(world, pipeline)


def test_a_replay_of_a_part_deletes_rows_and_the_rest_remains(world, topic, pipeline):
    first = world.run(pipeline).batch.batch_id
    part = plan_replay(world, pipeline, ranges=(RequestedRange(topic.name, 0, 1, 3),))
    world.process(pipeline, part)
    assert bounds(world, pipeline) == [(first, first + 1), (part, part + 1)]
    assert [row[0] for row in world.target(pipeline, "batch_id")] == [first, part, part, *[first] * 5]
    assert exact(world, pipeline)
    rest = plan_replay(
        world,
        pipeline,
        ranges=(RequestedRange(topic.name, 0, 0, 1), RequestedRange(topic.name, 0, 2, 5),
                RequestedRange(topic.name, 1, 0, 3)),
    )  # fmt: skip
    world.process(pipeline, rest)
    assert bounds(world, pipeline) == [(part, part + 1), (rest, rest + 1)], (
        "nothing of the first batch is left"
    )
    assert exact(world, pipeline)


def test_a_replay_deletes_where_a_reader_keeps_the_partition(world, settings, topic, pipeline):
    first = world.run(pipeline).batch.batch_id
    reader = connect(settings.postgres, application="reader", timeout=60)
    try:
        with reader.cursor() as cursor:
            cursor.execute(f'select count(*) from "{topic.name}"')
            again = plan_replay(world, pipeline, batch_ids=(first,))
            world.process(pipeline, again)
            cursor.execute(f'select count(*) from "{topic.name}"')
            assert cursor.fetchone()[0] == 8
    finally:
        reader.close()
    assert bounds(world, pipeline) == [(first, first + 1), (again, again + 1)]
    assert world.rows(f'select count(*) from "{topic.name}_b{first}"') == [(0,)]
    assert exact(world, pipeline)


def test_a_replay_drops_as_many_partitions_as_a_transaction_can_lock(world, topic, pipeline, monkeypatch):
    """It deletes the rows of the others, and does not fail after it has staged everything."""
    batch_ids = [world.run(pipeline).batch.batch_id]
    for number in range(8, 11):
        topic.produce(record(number))
        batch_ids.append(world.run(pipeline).batch.batch_id)
    monkeypatch.setattr(layout, "MOST_DROPPED", 2)
    again = plan_replay(world, pipeline, batch_ids=tuple(batch_ids))
    world.process(pipeline, again)
    assert bounds(world, pipeline) == [(each, each + 1) for each in (*batch_ids[2:], again)]
    assert exact(world, pipeline)


def test_a_replay_deletes_where_a_reader_keeps_what_the_target_refers_to(
    world, settings, topic, make_pipeline
):
    """To drop a partition with a foreign key waits for that reader, and the target's readers would wait as well."""
    world.execute(
        "create table other (id int primary key); insert into other select generate_series(0, 20); "
        f'create table "{topic.name}" (id int references other, name text, {LINEAGE}) partition by range (batch_id)'
    )
    pipeline = make_pipeline(topic, sink=by_batch(topic.name))
    first = world.run(pipeline).batch.batch_id
    again = plan_replay(world, pipeline, batch_ids=(first,))
    with closing(connect(settings.postgres, application="reader", timeout=60)) as reader:
        reader.cursor().execute("select count(*) from other")
        with (
            ThreadPoolExecutor(1) as pool,
            closing(connect(settings.postgres, application="tests")) as others,
        ):
            replay = pool.submit(world.process, pipeline, again)
            while not replay.done():
                with others, others.cursor() as cursor:
                    cursor.execute("set local lock_timeout to '10s'")
                    cursor.execute(f'select count(*) from "{topic.name}"')
                    assert cursor.fetchone()[0] == 8
            replay.result()
    assert bounds(world, pipeline) == [(first, first + 1), (again, again + 1)]
    assert exact(world, pipeline)


def test_two_pipelines_share_a_target(world, make_topic, make_pipeline):
    first, second = make_topic(), make_topic()
    pipelines = [make_pipeline(each, sink=by_batch("shared"), name=each.name) for each in (first, second)]
    for number in range(2):
        for topic, pipeline in zip((first, second), pipelines, strict=True):
            topic.produce(record(number))
            world.run(pipeline)
    assert len(bounds(world, pipelines[0])) == 4
    world.process(
        pipelines[0], plan_replay(world, pipelines[0], ranges=(RequestedRange(first.name, 0, 0, 2),))
    )
    assert len(bounds(world, pipelines[0])) == 3
    assert all(exact(world, each) for each in pipelines)


@pytest.mark.parametrize("smallest", [0, 100], ids=["attached", "inserted"])
def test_a_replay_that_drops_a_partition_and_another_pipeline_publish_one_after_the_other(
    world, settings, make_topic, make_pipeline, monkeypatch, smallest
):
    first, second = make_topic(), make_topic()
    first.produce(record(1))
    second.produce(record(2))
    replayed = make_pipeline(first, sink=by_batch("shared"), name="replayed")
    other = make_pipeline(second, sink=by_batch("shared", smallest=smallest), name="other")
    old = world.run(replayed).batch.batch_id
    replay, advance = plan_replay(world, replayed, batch_ids=(old,)), world.plan(other)
    drop = ByBatch.drop_batches
    with ThreadPoolExecutor(1) as pool:
        started: list[Any] = []

        def drop_while_the_other_waits(*arguments: Any) -> None:
            started.append(pool.submit(world.process, other, advance))
            watching = connect(settings.postgres, application="tests")
            with watching, watching.cursor() as cursor:
                waits = 0
                while not waits:
                    assert not started[0].done()
                    cursor.execute(
                        "select count(*) from pg_locks where not granted and locktype = 'relation'"
                    )
                    waits = cursor.fetchone()[0]
            watching.close()
            drop(*arguments)

        monkeypatch.setattr(ByBatch, "drop_batches", drop_while_the_other_waits)
        world.process(replayed, replay)
        started[0].result()
    assert old not in [lower for lower, _ in bounds(world, replayed)], "the partition is dropped"
    assert exact(world, replayed)
    assert exact(world, other)


def test_an_open_partition_of_another_pipeline_that_covers_the_batch_fails_the_try(
    world, make_topic, make_pipeline, monkeypatch
):
    large, small = make_topic(), make_topic()
    one = make_pipeline(large, sink=by_batch("shared"), name="large")
    other = make_pipeline(small, sink=by_batch("shared", smallest=100), name="small")
    small.produce(record(1))
    large.produce(record(1))
    first, batch_id = world.plan(other), world.plan(one)
    original = batch_job.close_partition

    def close(*arguments: Any) -> None:
        original(*arguments)
        with monkeypatch.context() as patched:
            patched.setattr(batch_job, "close_partition", original)
            world.process(other, first)

    with monkeypatch.context() as patched:
        patched.setattr(batch_job, "close_partition", close)
        with pytest.raises(StagedRowsDiffer, match=f"now covers batch {batch_id}"):
            world.process(one, batch_id)
    world.process(one, batch_id)
    assert bounds(world, one) == [(first, batch_id), (batch_id, batch_id + 1)], "the open partition ends"
    assert exact(world, one)
    assert exact(world, other)


def test_an_audit_that_began_before_a_batch_does_not_see_it(world, topic, pipeline, monkeypatch):
    """Rows are committed before they are attached: the snapshot of the audit has them, and not yet their batch."""
    world.run(pipeline)
    topic.produce(record(8))
    reports: list[Any] = []
    original = batch_job.publish
    inside: list[bool] = []

    def publish(*arguments: Any, **named: Any) -> Any:
        broker = audit_module.KafkaBroker

        class Broker(broker):  # type: ignore[misc, valid-type]
            """Publishes once the audit has its snapshot."""

            def processed_partitions(self, *args: Any) -> Any:
                if not inside:
                    inside.append(True)
                    reports.append(original(*arguments, **named))
                return super().processed_partitions(*args)

        with monkeypatch.context() as patched:
            patched.setattr(audit_module, "KafkaBroker", Broker)
            reports.append(audit(pipeline, world.settings, values=True))
        return reports[0]

    with monkeypatch.context() as patched:
        patched.setattr(batch_job, "publish", publish)
        world.run(pipeline)
    assert reports[1].is_exact, reports[1]
    assert exact(world, pipeline)


def test_the_login_must_own_the_target_and_create_tables_beside_it(world, topic, pipeline):
    world.run(pipeline)
    role = f"role_{topic.name}"
    target = find_writer(pipeline.traits).tables[-1]
    world.execute(f"create role {role}; create role member_{role} in role {role}")
    try:
        with transaction(world.connection) as cursor:
            cursor.execute(f"set local role {role}")
            with pytest.raises(
                TargetMismatch, match=f"the login {role} does not own it, .*grant .* to {role}"
            ):
                check_parent(cursor, target)
        world.execute(f'alter table "{topic.name}" owner to {role}')
        with transaction(world.connection) as cursor:
            cursor.execute(f"set local role {role}")
            with pytest.raises(TargetMismatch, match=f"grant create on schema public to {role}"):
                check_parent(cursor, target)
        world.execute(f"grant create on schema public to member_{role}")
        with transaction(world.connection) as cursor:
            cursor.execute(f"set local role member_{role}")
            with pytest.raises(
                TargetMismatch, match=f"its owner, {role}, may not create tables in the schema"
            ):
                check_parent(cursor, target)
        world.execute(f"grant create on schema public to {role}")
        topic.produce(record(9))
        world.run(pipeline)
        assert role in owners(world, topic.name), "a new partition belongs to the owner of the target"
        assert exact(world, pipeline)
    finally:
        world.execute(
            f"reassign owned by {role} to current_user; drop owned by {role}, member_{role}; "
            f"drop role {role}, member_{role}"
        )


def test_each_partition_belongs_to_the_owner_of_the_target(world, topic, make_pipeline):
    """Whoever ran the batch: another member of that role can then end, merge and alter the partition."""
    role = f"role_{topic.name}"
    world.execute(
        f"create role {role}; grant create on schema public to {role}; "
        f'create table "{topic.name}" (id int, name text, {LINEAGE}) partition by range (batch_id); '
        f'alter table "{topic.name}" owner to {role}'
    )
    try:
        pipeline = make_pipeline(topic, sink=by_batch(topic.name, smallest=6))
        large = world.run(pipeline).batch.batch_id
        topic.produce(record(9))
        small = world.run(pipeline).batch.batch_id
        assert bounds(world, pipeline) == [(large, large + 1), (small, small + 100)]
        assert owners(world, topic.name) == {role}
        with transaction(world.connection) as cursor:
            cursor.execute(f"grant usage on schema exactbatch to {role}")
            cursor.execute(f"grant execute on function exactbatch.take_lock(text) to {role}")
            cursor.execute(f"set local role {role}")
            columns = (*pipeline.value.columns, Column("note", "text"))
            find_writer(pipeline.traits).prepare(cursor, columns, evolve="add")
        assert exact(world, pipeline)
    finally:
        world.execute(f"reassign owned by {role} to current_user; drop owned by {role}; drop role {role}")
