"""Compiled code stages the same rows, whatever it leaves to the strict decoder and wherever it is killed."""

import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from psycopg2 import sql

from exactbatch import Append, Json, Upsert
from exactbatch.batch.rows.copy import ArrowEncoder
from exactbatch.batch.staging import stage as stage_module
from exactbatch.batch.staging.stage import decode_range, stage, stage_rows
from exactbatch.compiled.availability import VARIABLE
from exactbatch.errors import StagedRowsDiffer
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner
from support.fuzzed_values import Fuzzer
from support.killed_workers import KilledWorkers
from support.plausible_values import PlausibleValues
from support.staged_attempts import staged_by_both, staging_task_of
from support.topics import Topic

_SCHEMA = (
    "i int, b bigint, s smallint, f float8, r real, d numeric(10,2), n numeric, t boolean, name text, v varchar(5), "
    "day date, at timestamptz, local timestamp, u uuid, j jsonb, raw bytea"
)

MOMENTS = ("read.after_records", "stage.before_copy_commit", "stage.after_copy_commit")


@pytest.fixture(scope="module")
def killed_workers(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> KilledWorkers:
    return KilledWorkers(spark, tmp_path_factory.mktemp("killed"), MOMENTS)


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    """Good and bad values, null values, and a record whose time Postgres cannot hold."""
    topic = make_topic()
    columns = Json(_SCHEMA).columns
    values = [*PlausibleValues(columns, {}, 1).values(1500), *Fuzzer(2).values(500, fuzzed=0.3, long=2)]
    topic.produce(*values, key=b'{"i":1}')
    topic.produce(b'{"i":1,"name":"no time"}', key=b'{"i":1}', timestamp=2**62)
    return topic


def differences(world: BatchRunner, table: str) -> int:
    """How many rows of one attempt the other one does not have, but for the attempt itself."""
    columns = [
        row[0]
        for row in world.rows(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 order by attnum",
            f'exactbatch_staging."{table}"',
        )
        if row[0] != "task_attempt"
    ]
    query = sql.SQL(
        "with a as (select {columns} from {table} where task_attempt = 1), "
        "b as (select {columns} from {table} where task_attempt = 2) "
        "select (select count(*) from (select * from a except all select * from b) x) "
        "+ (select count(*) from (select * from b except all select * from a) y)"
    ).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.Identifier("exactbatch_staging", table),
    )
    with transaction(world.connection) as cursor:
        cursor.execute(query)
        return int(cursor.fetchone()[0])


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["append", "upsert"])
def test_both_paths_stage_the_same_rows_and_rejects(world, topic, make_pipeline, monkeypatch, sink):
    changes: dict[str, Any] = {"sink": Append(f'public."{topic.name}"')}
    if sink == "upsert":
        changes = {"sink": Upsert(f'public."{topic.name}"', key=("i",)), "message_key": Json("i int")}
    pipeline = make_pipeline(topic, value=Json(_SCHEMA), max_reject_share=1.0, **changes)
    task = staging_task_of(world, pipeline)
    by_format, by_compiled = staged_by_both(task, monkeypatch)
    assert (by_format.records, by_format.rows, by_format.rejects, by_format.tombstones) == (
        by_compiled.records,
        by_compiled.rows,
        by_compiled.rejects,
        by_compiled.tombstones,
    )
    assert by_format.fast_count == 0
    assert 300 < by_compiled.fast_count < by_compiled.rows
    assert by_compiled.rejects > 50
    assert differences(world, task.tables.rows) == 0
    assert differences(world, task.tables.rejects) == 0


def test_both_paths_give_a_transform_the_same_records_and_stage_its_rows(
    world, topic, make_pipeline, monkeypatch
):
    pipeline = make_pipeline(topic, value=Json(_SCHEMA), max_reject_share=1.0)
    task, columns = staging_task_of(world, pipeline), pipeline.traits.staged_columns(pipeline.value.columns)
    decoded = []
    for attempt, value in ((1, "off"), (2, "0")):
        monkeypatch.setenv(VARIABLE, value)
        rejects: list[pa.RecordBatch] = []
        *batches, outcome = decode_range(task, 0, rejects.extend)
        table = pa.Table.from_batches(batches).combine_chunks()
        rows = ArrowEncoder(table.schema).encode(table.to_batches()[0]).data
        decoded.append((rows, pa.Table.from_batches(rejects), replace(outcome, fast_count=0)))
        assert (outcome.fast_count > 300) == (value == "0")
        assert stage_rows(batches, task.tables, task.postgres, columns, attempt) == outcome.rows
    assert decoded[0] == decoded[1]
    assert outcome.rejects > 50
    assert differences(world, task.tables.rows) == 0


def test_a_batch_of_spark_tasks_says_how_many_records_compiled_code_took(
    world, make_topic, make_pipeline, killed_workers, caplog
):
    topic = make_topic(2)
    topic.produce(*(b'{"id":%d,"name":"a"}' % number for number in range(300)))
    topic.produce(b'{"id":1,"na\\u006de":"b"}', b'{"id":"x"}', b'{"id":2}', partition=1)
    caplog.set_level(logging.INFO, "exactbatch")
    pipeline = make_pipeline(topic, max_rejects=1)
    with killed_workers.at(None):
        batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (303, 302, 1)
    assert f"batch {batch.batch_id}: compiled code took 301 of 303 records" in caplog.text
    assert world.is_exact(pipeline)


@pytest.mark.parametrize("sql", [None, "select * from records"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_worker_is_replaced(world, make_topic, make_pipeline, killed_workers, moment, sql):
    topic = make_topic()
    topic.produce(*(b'{"id":%d,"name":"a"}' % number for number in range(100)))
    pipeline = make_pipeline(topic, transform=sql)
    with killed_workers.at(moment):
        assert world.run(pipeline).batch.rows == 100
    assert world.is_exact(pipeline)


def test_a_copy_of_which_postgres_stores_less_is_an_error(world, make_topic, make_pipeline, monkeypatch):
    topic = make_topic()
    topic.produce(*(b'{"id":%d}' % number for number in range(10)))
    pipeline = make_pipeline(topic)
    task = staging_task_of(world, pipeline)
    _, by_compiled = staged_by_both(task, monkeypatch)
    assert by_compiled.rows == 10
    table = f"exactbatch_staging.{task.tables.rows}"
    world.execute(
        "create function one_less() returns trigger language plpgsql as "
        "$$ begin if new.id = 3 then return null; end if; return new; end $$"
    )
    world.execute(
        f"create trigger one_less before insert on {table} for each row execute function one_less()"
    )
    with pytest.raises(StagedRowsDiffer, match="10 rows were sent, and Postgres stored 9"):
        stage([task], 3)
    assert world.rows(f"select count(*) from {table} where task_attempt = 3") == [(0,)]


def test_an_error_of_reading_leaves_nothing_behind_and_keeps_its_class(
    world, make_topic, make_pipeline, monkeypatch
):
    topic = make_topic()
    topic.produce(*(b'{"id":%d}' % number for number in range(10)))
    task = staging_task_of(world, make_pipeline(topic))
    staged_by_both(task, monkeypatch)

    def broken(*_: Any, **__: Any) -> Any:
        raise StagedRowsDiffer("this reader is broken")

    monkeypatch.setattr(stage_module.RangeReader, "_read", broken)
    with pytest.raises(StagedRowsDiffer, match="^this reader is broken$"):
        stage([task], 3)
    table = f"exactbatch_staging.{task.tables.rows}"
    assert world.rows(f"select count(*) from {table} where task_attempt = 3") == [(0,)]
