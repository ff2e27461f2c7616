"""A transform gives any number of rows for a record: none is lost, none is there twice, and a replay follows."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.batch import job as batch_job
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.batch.staging.transformed_rows import records_with_rows
from exactbatch.batch.transform.transform_plan import check_query
from exactbatch.batch.transform.transform_stager import TransformStager
from exactbatch.errors import (
    ConfigurationError,
    StagedRowsDiffer,
    TargetMismatch,
    TooManyRejects,
    TransformFailed,
    TransformRefused,
)
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner
from support.transform_queries import LINEAGE

MakeTransformed = Callable[..., Pipeline]


def record(number: int, **fields: Any) -> bytes:
    return json.dumps({"id": number, **fields}).encode()


@pytest.fixture
def topic(make_topic):
    """20 records in two partitions, with ids from 0 to 19."""
    topic = make_topic(2)
    for number in range(20):
        topic.produce(record(number, name="n" * (number % 4)), partition=number % 2)
    return topic


def replayed(world: BatchRunner, pipeline: Pipeline, partition: int, start: int, end: int) -> None:
    request = ReplayRequest(ranges=(RequestedRange(pipeline.topic_names[0], partition, start, end),))
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    world.process(pipeline, batch_id)


def even(records: DataFrame) -> DataFrame:
    return records.where("id % 2 = 0").withColumn("double", F.col("id") * 2).drop("name")


def test_records_that_a_transform_drops_are_counted(world, topic, make_pipeline):
    topic.produce(b"no json", None)
    pipeline = make_pipeline(topic, transform=even, max_rejects=1)
    published = world.run(pipeline)
    batch = published.batch
    counts = (batch.records, batch.rows, batch.rejected, batch.tombstones, batch.dropped)
    assert counts == (22, 10, 1, 1, 10)
    assert "10 dropped" in str(published)
    assert world.target(pipeline, "id, double") == [(n, 2 * n) for n in range(0, 20, 2)]
    assert world.rows("select kafka_partition, min(kafka_offset), max(kafka_offset), count(distinct batch_id) "
                      f"from {pipeline.traits.target} group by 1") == [(0, 0, 9, 1)]  # fmt: skip
    assert world.is_exact(pipeline)
    assert world.staging() == []


def by_the_clock(records: DataFrame) -> DataFrame:
    """All that depends on a time zone: of SQL, of literals made on the driver, of Python functions."""
    return records.select(
        "id",
        F.hour("at").alias("hour"),
        F.date_trunc("day", F.col("at")).alias("day"),
        F.col("at").cast("string").alias("text"),
        (F.col("at") < F.lit(datetime(2026, 1, 1, 18, 30))).alias("early"),
        F.udf(lambda at: at.hour, "int")("at").alias("python"),
        F.udf(lambda _: hash("a") % 1000, "int")("at").alias("hash"),
        *LINEAGE.split(", "),
    )


def test_a_transform_gives_the_same_rows_in_every_time_zone(world, make_topic, make_pipeline, monkeypatch):
    topic = make_topic()
    for number, at in enumerate(("2026-01-01T18:00:00Z", "2026-01-01T19:30:00Z")):
        topic.produce(record(number, at=at))
    pipeline = make_pipeline(topic, value=Json("id int, at timestamptz"), transform=by_the_clock)
    columns = "id, hour, day::text, text, early, python"
    expected = [
        (0, 18, "2026-01-01 00:00:00+00", "2026-01-01 18:00:00", True, 18),
        (1, 19, "2026-01-01 00:00:00+00", "2026-01-01 19:30:00", False, 19),
    ]
    # As a driver has it whose machine is elsewhere.
    elsewhere = "Asia/Tokyo"
    monkeypatch.setitem(world.spark.sparkContext.environment, "TZ", elsewhere)
    monkeypatch.setenv("TZ", elsewhere)
    monkeypatch.setitem(world.spark.sparkContext.environment, "PYTHONHASHSEED", "17")
    time.tzset()
    world.spark.conf.set("spark.sql.session.timeZone", elsewhere)
    world.run(pipeline)
    assert world.target(pipeline, columns) == expected
    hashes = world.target(pipeline, "hash")
    replayed(world, pipeline, 0, 0, 2)
    assert world.target(pipeline, columns) == expected
    # A pipeline may say otherwise; then it is the same everywhere, too.
    there = replace(pipeline, spark_conf={"spark.sql.session.timeZone": elsewhere})
    replayed(world, there, 0, 0, 2)
    assert world.target(there, columns) == [
        (0, 3, "2026-01-01 15:00:00+00", "2026-01-02 03:00:00", False, 3),
        (1, 4, "2026-01-01 15:00:00+00", "2026-01-02 04:30:00", False, 4),
    ]
    monkeypatch.undo()
    time.tzset()
    replayed(world, pipeline, 0, 0, 2)
    assert world.target(pipeline, columns) == expected
    assert world.target(pipeline, "hash") == hashes


def test_query_may_give_many_rows_for_record_and_replay_of_some_is_exact(world, topic, make_pipeline):
    query = f"select id, explode(sequence(1, id % 4)) as part, {LINEAGE} from records where id % 4 > 0"
    pipeline = make_pipeline(topic, transform=query)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.dropped) == (20, 30, 5)
    before = world.target(pipeline, "id, part")
    assert sorted(before) == [(n, part) for n in range(20) for part in range(1, n % 4 + 1)]
    assert world.is_exact(pipeline)
    replayed(world, pipeline, 1, 2, 7)
    assert sorted(world.target(pipeline, "id, part")) == sorted(before)
    assert world.is_exact(pipeline)
    changed = make_pipeline(topic, transform=query.replace("id % 4)", "id % 4 + 1)"))
    replayed(world, changed, 1, 0, 10)
    assert sorted(world.target(pipeline, "id, part")) == [
        (n, part) for n in range(20) for part in range(1, n % 4 + (2 if n % 2 else 1)) if n % 4
    ]
    assert world.is_exact(changed)


@pytest.mark.parametrize("damage", ["delete", "insert", "both"])
def test_the_audit_finds_a_row_that_is_missing_or_there_again(world, topic, make_pipeline, damage):
    pipeline = make_pipeline(topic, transform=even)
    world.run(pipeline)
    assert world.is_exact(pipeline)
    table = pipeline.traits.target
    if damage != "delete":
        world.execute(f"insert into {table} select * from {table} where id = 6")
    if damage != "insert":
        world.execute(f"delete from {table} where id = 4")
    assert not world.is_exact(pipeline)


def test_transform_without_lineage_needs_sink_that_works_by_batch(world, topic, make_pipeline):
    query = "select name, count(*) as records, sum(id) as ids from records group by name"
    message = world.refused(TransformRefused, make_pipeline(topic, transform=query))
    assert (
        "found no kafka_topic, no kafka_partition, no kafka_offset, no kafka_timestamp. Keep them" in message
    )
    assert "lineage='batch'" in message


def test_transform_that_puts_records_together_is_replayed_by_batch(world, topic, make_pipeline):
    query = "select name, count(*) as records, sum(id) as ids from records group by name"
    pipeline = make_pipeline(topic, transform=query, sink=Append(f'public."{topic.name}"', lineage="batch"))
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.dropped) == (20, 4, 0)
    found = world.rows(f"select name, records, ids from {pipeline.traits.target} order by 1")
    assert found == [("n" * k, 5, sum(range(k, 20, 4))) for k in range(4)]
    replayed(world, pipeline, 0, 3, 5)
    assert world.rows(f"select name, records, ids from {pipeline.traits.target} order by 1") == found
    assert world.is_exact(pipeline)


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (lambda records: records.withColumn("at", F.now()), "now"),
        (lambda records: records.withColumn("at", F.current_timestamp()), "current_timestamp"),
        (lambda records: records.withColumn("at", F.current_date()), "current_date"),
        (lambda records: records.withColumn("n", F.rand() * 2), "rand"),
        (lambda records: records.withColumn("n", F.expr("uuid()")), "uuid"),
        (lambda records: records.withColumn("n", F.monotonically_increasing_id()), "monotonically_increasing_id"),
        (lambda records: records.where(F.col("id") > F.rand()), "rand"),
        (lambda records: records.limit(3), "limit"),
        (lambda records: records.sample(0.5), "sample"),
        (lambda records: records.dropDuplicates(["name"]), "dropDuplicates"),
        (lambda records: records.withColumn("n", F.udf(len, "int").asNondeterministic()("name")), "len"),
        (lambda r: r.where(F.expr("id < (select max(id) * rand() from values (1) t(id))")), "rand"),
        (lambda records: records.withColumn("at", F.expr("timestamp 'now'")), "now"),
        (lambda records: records.withColumn("n", F.count("*").over(Window.partitionBy("name"))), "window"),
    ],
    ids=["now", "current_timestamp", "current_date", "rand", "uuid", "id", "where", "limit", "sample", "drop",
         "udf", "subquery", "literal", "window"],
)  # fmt: skip
def test_what_gives_other_results_on_retry_is_refused_unless_it_is_allowed(
    world, topic, make_pipeline, transform, name
):
    message = world.refused(TransformRefused, make_pipeline(topic, transform=transform))
    assert f"the transform may return other rows when it is retried: {name} " in message
    assert f"allow_nondeterministic={name!r}." in message


def test_what_is_allowed_by_name_is_done(world, topic, make_pipeline):
    pipeline = make_pipeline(
        topic, transform=f"select id, now() as at, {LINEAGE} from records", allow_nondeterministic="now"
    )
    assert world.run(pipeline).batch.rows == 20
    assert world.rows(
        f"select count(*) from {pipeline.traits.target} where at > now() - interval '1 hour'"
    ) == [(20,)]


DEDUPLICATED = f"""
    select id % 3 as id, {LINEAGE} from records
    qualify row_number() over (partition by id % 3 order by kafka_partition, kafka_offset) = 1
"""


def test_row_that_depends_on_other_records_needs_sink_that_works_by_batch(world, topic, make_pipeline):
    message = world.refused(TransformRefused, make_pipeline(topic, transform=DEDUPLICATED))
    assert (
        "window combines records of a batch, and a replay of a part of the batch does not have all of them"
        in message
    )
    assert "row_number depends on the order in which Spark processes the rows" in message
    assert "Append(…, lineage='batch')" in message
    assert "allow_nondeterministic=('row_number', 'window')" in message
    sink = Append(f'public."{topic.name}_b"', lineage="batch")
    # The order is total: the user knows it, and says so.
    pipeline = make_pipeline(
        topic,
        name=f"{topic.name}_b",
        transform=f"select id from ({DEDUPLICATED})",
        sink=sink,
        allow_nondeterministic=("row_number",),
    )
    world.run(pipeline)
    before = world.rows(f"select id from {sink.target} order by 1")
    assert before == [(0,), (1,), (2,)]
    replayed(world, pipeline, 0, 3, 6)
    assert world.rows(f"select id from {sink.target} order by 1") == before


def test_a_query_with_subqueries_over_another_source_runs(world, topic, make_pipeline):
    other = "(select id from values (2), (3), (4) as t (id))"
    query = f"""
        select id, {LINEAGE} from records
        where id in {other} and id not in (select 4) and exists(array(id, 7), x -> x = 3)
    """
    pipeline = make_pipeline(topic, transform=query)
    world.run(pipeline)
    assert world.target(pipeline, "id") == [(3,)]
    replayed(world, pipeline, 1, 0, 4)
    assert world.target(pipeline, "id") == [(3,)]


def test_batch_shares_no_view_with_session_that_it_was_given(world, topic, make_pipeline):
    world.spark.sql("select 'mine' as name").createOrReplaceTempView("records")
    try:
        pipeline = make_pipeline(topic, transform=f"select id, {LINEAGE} from records")
        assert world.run(pipeline).batch.rows == 20
        assert [row.name for row in world.spark.sql("select * from records").collect()] == ["mine"]
    finally:
        world.spark.catalog.dropTempView("records")


def test_an_error_names_the_record_that_it_is_raised_for(world, topic, make_pipeline):
    inverse = F.udf(lambda number: 1 / (number - 13), "double")
    pipeline = make_pipeline(topic, transform=lambda records: records.withColumn("inverse", inverse("id")))
    message = world.refused(TransformFailed, pipeline)
    assert message.startswith(f"{topic.name}[1] offset 6: the transform failed: ")
    assert "ZeroDivisionError" in message
    casting = make_pipeline(
        topic, transform=f"select cast(name as int) as n, {LINEAGE} from records", evolve="add"
    )
    with pytest.raises(TransformFailed) as caught:
        world.process(casting, world.plan(casting))
    assert str(caught.value).startswith(f"{topic.name}[0] offset 0: ")
    assert "CAST_INVALID_INPUT" in str(caught.value)


def test_query_that_spark_cannot_plan_is_refused_with_columns_there_are(world, topic, make_pipeline):
    message = world.refused(TransformRefused, make_pipeline(topic, transform="select idd from records"))
    assert "`idd`" in message
    assert f"The columns that it can use are id, name, {LINEAGE}." in message
    script = make_pipeline(topic, transform="begin select *, now() as t from records; end")
    assert "expected the transform to be one query over records" in world.refused(TransformRefused, script)
    no_frame = make_pipeline(topic, transform=lambda records: records.count)
    with pytest.raises(TransformRefused, match="expected the transform to return a DataFrame, found method"):
        world.process(no_frame, world.plan(no_frame))


def test_lineage_that_a_transform_has_changed_is_refused(world, topic, make_pipeline):
    moved = make_pipeline(topic, transform=lambda r: r.withColumn("kafka_offset", F.col("kafka_offset") + 5))
    message = world.refused(TransformRefused, moved)
    assert "the transform computes kafka_offset, as (kafka_offset + " in message


def test_a_row_that_does_not_fit_makes_its_whole_record_a_reject(world, topic, make_pipeline):
    query = f"select id, explode(array(id, id * 2500)) as n, {LINEAGE} from records where id >= 10"
    pipeline = make_pipeline(topic, transform=query, max_rejects=9)
    world.execute(
        f"create table {pipeline.traits.target} (id int, n smallint, kafka_topic text, kafka_partition int, "
        f"kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint)"
    )
    batch = world.run(pipeline).batch  # 14 * 2500 is too large for a smallint
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (20, 8, 6, 10)
    assert world.target(pipeline, "distinct id, kafka_partition, kafka_offset") == [
        (10, 0, 5), (12, 0, 6), (11, 1, 5), (13, 1, 6)
    ]  # fmt: skip
    assert world.is_exact(pipeline)


def test_rows_of_no_record_that_do_not_fit_fail_the_batch(world, topic, make_pipeline):
    sink = Append(f'public."{topic.name}"', lineage="batch")
    pipeline = make_pipeline(
        topic, transform="select sum(id) * 100000000L as n from records", sink=sink, max_rejects=9
    )
    world.execute(f"create table {sink.target} (n int, batch_id bigint)")
    with pytest.raises(
        TargetMismatch,
        match='value "19000000000" is out of range for type integer. The rows do not carry the records',
    ):
        world.process(pipeline, world.plan(pipeline))


def test_nested_values_become_jsonb_and_arrays_arrays(world, topic, make_pipeline):
    query = (
        "select id, named_struct('a', id, 'b', array(1, 2)) as s, map('k', name) as m, array(id, 7) as a, "
        f"array(named_struct('x', id)) as sa, cast(id as decimal(10,2)) as d, {LINEAGE} from records where id < 3"
    )
    pipeline = make_pipeline(topic, transform=query)
    world.run(pipeline)
    assert world.rows(f"select id, s, m, a, sa, d::text from {pipeline.traits.target} order by 1") == [
        (n, {"a": n, "b": [1, 2]}, {"k": "n" * n}, [n, 7], [{"x": n}], f"{n}.00") for n in range(3)
    ]
    assert world.is_exact(pipeline)


def test_u0000_that_a_transform_makes_is_a_reject(world, topic, make_pipeline):
    query = f"select if(id = 4, concat(name, char(0)), name) as name, {LINEAGE} from records"
    message = world.refused(TooManyRejects, make_pipeline(topic, transform=query))
    assert (
        f"{topic.name}[0] offset 2: column 'name': expected text that Postgres can store, found U+0000"
        in message
    )


def test_notes_of_records_that_a_crash_has_removed_fail_the_batch(world, topic, make_pipeline, monkeypatch):
    """Nobody counts notes, and this batch has nothing else that could be missed."""
    query = f"select concat(name, char(0)) as name, {LINEAGE} from records"
    pipeline = make_pipeline(topic, transform=query, max_rejects=20)

    def crash(moment: str) -> None:
        if moment == "job.after_stage":
            for table in world.staging():  # a truncate would wait for the lock of the launch
                world.execute(f'delete from exactbatch_staging."{table}"')

    with monkeypatch.context() as patch:
        patch.setattr(batch_job, "failpoint", crash)
        assert "_rejects is empty: Postgres was restarted" in world.refused(StagedRowsDiffer, pipeline)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (20, 0, 20, 0)
    assert world.is_exact(pipeline)


def test_an_upsert_is_transformed_with_its_deletes(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(record(1, name="a"), record(2, name="b"), record(30, name="c"), b'{"name": "no key"}')
    topic.produce(None, key=b'{"id": 1}')
    sink = Upsert(f'public."{topic.name}"', key=("nr",))
    query = f"select nullif(id, 30) as nr, upper(name) as name, deleted, {LINEAGE} from records"
    key_of = {"message_key": Json("nr int")}
    with pytest.raises(
        ConfigurationError, match="column nr: expected one type in key and value, found integer and no"
    ):
        make_pipeline(topic, transform=query, sink=sink, **key_of)
    query = f"select nullif(nr, 30) as nr, upper(name) as name, deleted, {LINEAGE} from records"
    values = Json("nr int, name text")
    topic = make_topic()
    for number, name in ((1, "a"), (2, "b"), (30, "c")):
        topic.produce(json.dumps({"nr": number, "name": name}).encode())
    topic.produce(None, key=b'{"nr": 1}')
    sink = Upsert(f'public."{topic.name}"', key=("nr",))
    pipeline = make_pipeline(topic, transform=query, sink=sink, value=values, max_rejects=1, **key_of)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (4, 3, 1, 0)
    assert world.rows(f"select nr, name from {sink.target}") == [(2, "B")]
    assert world.is_exact(pipeline)
    replayed(world, pipeline, 0, 3, 4)
    assert world.rows(f"select nr, name from {sink.target}") == [(2, "B")]
    without = make_pipeline(
        topic, transform=query.replace(" deleted,", ""), sink=sink, value=values, **key_of
    )
    topic.produce(json.dumps({"nr": 5, "name": "e"}).encode())
    with pytest.raises(TransformRefused, match="and whether it deletes, .*, found no deleted"):
        world.process(without, world.plan(without))


def test_records_that_spark_has_read_again_meanwhile_are_noticed(world, topic, make_pipeline, monkeypatch):
    # With a shuffle, records are read first and staged later.
    pipeline = make_pipeline(topic, transform=lambda records: even(records).repartition(1))
    stage_rows = TransformStager._stage_rows

    def losing(self: TransformStager) -> dict[int, int]:
        self._read.unpersist(blocking=True)  # as an executor that is lost takes its blocks with it
        return stage_rows(self)

    monkeypatch.setattr(TransformStager, "_stage_rows", losing)
    assert "Spark lost some of the decoded records before all rows were staged" in world.refused(
        StagedRowsDiffer, pipeline
    )
    monkeypatch.undo()
    assert world.run(pipeline).batch.rows == 10
    assert world.is_exact(pipeline)


@pytest.mark.parametrize(
    "text",
    [
        "begin select *, now() as t from records; end",
        "create table t (a int) using parquet",
        "set spark.sql.ansi.enabled = false",
        "execute immediate 'select * from records'",
    ],
)
def test_a_script_or_a_command_is_no_transform(spark, topic, make_pipeline, text):
    with pytest.raises(
        TransformRefused, match="expected the transform to be one query over records, found: .*PARSE_SYNTAX"
    ):
        check_query(make_pipeline(topic, transform=text), spark)
    for query in ("select 1 as a", "with r as (table records) from r |> select id", "values (1), (2) ;\n"):
        check_query(make_pipeline(topic, transform=query), spark)


def test_records_of_rows_that_come_out_of_order_are_counted_in_the_staging_table(world, topic, make_pipeline):
    batch_id = world.plan(make_pipeline(topic))
    tables, connection = StagingTables(batch_id, 7), world.connection
    with transaction(connection) as cursor:
        create_rejects(cursor, tables)
        create_rows(cursor, tables, ())
        cursor.executemany(
            f'insert into exactbatch_staging."{tables.rows}" '
            "(task_attempt, kafka_topic, kafka_partition, kafka_offset) values (%s, %s, %s, %s)",
            [
                (partition + 5, topic.name, partition, offset)
                for partition, offset in ((0, 0), (0, 1), (0, 1), (1, 2))
            ],
        )
    ranges = Ledger(connection).batches.read_ranges(batch_id)
    splits = tuple(Staged(range_, range_.partition + 5, 4, 4, 0, 0) for range_ in ranges[:2])
    staged = StagedBatch(splits, {5: 3, 6: 1}, {})
    assert records_with_rows(connection, tables, staged) == 3
    world.execute(f'update exactbatch_staging."{tables.rows}" set kafka_offset = 99 where task_attempt = 6')
    with pytest.raises(
        TransformRefused, match=r"lineage \S+ partition 1 offset 99, which is not in the batch"
    ):
        records_with_rows(connection, tables, staged)
