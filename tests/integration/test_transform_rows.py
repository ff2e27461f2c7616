"""What a transform gives and the sink cannot take: a reject, or an error that names the record."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exactbatch import Append, Json, Raw, Upsert
from exactbatch.batch.rows.copy import PostgresAccess
from exactbatch.batch.staging import transformed_rows
from exactbatch.batch.staging.stage import stage_rows
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows
from exactbatch.batch.transform import failing_record, transform_stager
from exactbatch.compiled.availability import VARIABLE
from exactbatch.errors import (
    ReadFailed,
    TargetMismatch,
    TasksFailed,
    TooManyRejects,
    TransformFailed,
    TransformRefused,
)
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner
from support.topics import Topic

LINEAGE = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"


def records(topic: Topic, *values: dict[str, Any], **where: Any) -> None:
    topic.produce(*(json.dumps(value).encode() for value in values), **where)


def rejects(world: BatchRunner) -> list[tuple[Any, ...]]:
    return world.rows(
        'select partition, "offset", reason, value from exactbatch.rejected_record order by 1, 2'
    )


def test_change_that_is_neither_delete_nor_not_one_is_reject(world, make_topic, make_pipeline):
    topic = make_topic()
    records(topic, {"id": 1, "name": "kept"}, {"id": 2, "name": "unknown"}, {"id": 3, "name": "gone"})
    query = f"""select id, name, case name when 'gone' then true when 'kept' then false end as deleted, {LINEAGE}
                from records"""
    pipeline = make_pipeline(topic, transform=query, sink=Upsert(f'public."{topic.name}"', key=("id",)))
    message = world.refused(TooManyRejects, pipeline)
    assert f"{topic.name}[0] offset 1: column 'deleted' is null" in message
    tolerant = make_pipeline(topic, transform=query, sink=pipeline.sink, max_rejects=1)
    batch = world.run(tolerant).batch
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (3, 2, 1, 0)
    assert world.rows(f"select id, name from {pipeline.traits.target}") == [(1, "kept")]
    assert [(offset, bytes(value)) for _, offset, _, value in rejects(world)] == [
        (1, b'{"id": 2, "name": "unknown"}')
    ]
    assert world.is_exact(tolerant)


def test_changes_of_one_key_from_one_record_are_refused_unless_version_orders_them(
    world, make_topic, make_pipeline
):
    topic = make_topic()
    records(topic, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    sink = Upsert(f'public."{topic.name}"', key=("key",), version="version")
    query = (
        "select cast(id as string) as key, {version} as version, part, false as deleted, "
        f"{LINEAGE} from records lateral view posexplode(array(name, 'x')) as place, part"
    )
    tied = make_pipeline(topic, transform=query.format(version="id"), sink=sink)
    message = world.refused(TargetMismatch, tied)
    assert f"(key, version): {topic.name}[0] offset 0: (1, 1); {topic.name}[0] offset 1: (2, 2)" in message
    ordered = make_pipeline(topic, transform=query.format(version="10 * id + place"), sink=sink)
    assert world.run(ordered).batch.rows == 4
    assert world.rows(f"select key, part from {sink.target} order by 1") == [("1", "x"), ("2", "x")]


BAD_VALUES = {
    b"fine": "fine",
    b"\xff\xfe": "column 'line': the text is not valid UTF-8, in a row of the transform",
    b"nul\x00": "column 'line': expected text that Postgres can store, found U+0000, in a row of the transform",
    b"list": "column 'words': expected text that Postgres can store, found U+0000, in a row of the transform",
    b"date": "column 'day': expected a date or time that Postgres can store",
    b"time": "column 'at': expected a date or time that Postgres can store",
    b"struct": "column 'doc': the text is not valid UTF-8, in a row of the transform",
    b"map": "column 'counts': the text is not valid UTF-8, in a row of the transform",
    b"key": "column 'counts': the text is not valid UTF-8, in a row of the transform",
}


@pytest.mark.parametrize("large", ["false", "true"])
def test_value_that_no_table_can_hold_makes_its_record_reject(world, make_topic, make_pipeline, large):
    topic = make_topic()
    topic.produce(*BAD_VALUES)
    query = f"""
        select cast(value as string) as line,
               array('a', if(value = X'6C697374', concat('b', char(0)), 'c')) as words,
               if(value = X'64617465', make_date(-6188, 1, 1), null) as day,
               if(value = X'74696D65', make_timestamp(-6188, 1, 1, 0, 0, 0), null) as at,
               array(struct(1 as number, if(value = X'737472756374', cast(X'FF' as string), null) as word)) as doc,
               map(if(value = X'6B6579', cast(X'FF' as string), 'a'),
                   if(value = X'6D6170', cast(X'FF' as string), 'b')) as counts, number, {LINEAGE}
        from records lateral view explode(array(1, 2)) as number"""
    conf = {"spark.sql.execution.arrow.useLargeVarTypes": large}
    pipeline = make_pipeline(
        topic, value=Raw("value"), transform=query, max_rejects=len(BAD_VALUES) - 1, spark_conf=conf
    )
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.dropped) == (len(BAD_VALUES), 2, 8, 0)
    assert world.rows(
        f"select line, words, number, doc, counts from {pipeline.traits.target} order by number"
    ) == [("fine", ["a", "c"], number, [{"number": 1, "word": None}], {"a": "b"}) for number in (1, 2)]
    for (_, offset, reason, value), (wanted, said) in zip(
        rejects(world), list(BAD_VALUES.items())[1:], strict=True
    ):
        assert (bytes(value), list(BAD_VALUES)[offset]) == (wanted, wanted)
        assert reason.startswith(said), reason
    assert world.is_exact(pipeline)


def test_compiled_code_stages_the_rows_around_such_a_value(world, make_topic, make_pipeline, monkeypatch):
    topic = make_topic(2)
    for number in range(40):
        topic.produce(json.dumps({"id": number, "word": "ö"}).encode(), partition=number % 2)
    monkeypatch.setitem(world.spark.sparkContext.environment, VARIABLE, "0")
    query = f"select id, word, if(id % 10 = 3, concat(word, char(0)), word) as same, {LINEAGE} from records"
    value = Json("id integer, word text")
    pipeline = make_pipeline(topic, value=value, transform=query, max_rejects=4)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (40, 36, 4)
    found = world.rows(
        f"select id, word, same, kafka_topic, kafka_partition, kafka_offset from {pipeline.traits.target} order by 1"
    )
    good = [number for number in range(40) if number % 10 != 3]
    assert found == [(number, "ö", "ö", topic.name, number % 2, number // 2) for number in good]
    assert [(partition, offset) for partition, offset, _, _ in rejects(world)] == [
        (number % 2, number // 2) for number in range(40) if number not in good
    ]
    assert world.is_exact(pipeline)


def test_without_lineage_such_a_value_ends_the_batch(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(b"fine", b"\xff")
    query = f"select cast(value as string) as line, {LINEAGE} from records"
    sink = Append(f'public."{topic.name}"', lineage="batch")
    pipeline = make_pipeline(topic, value=Raw("value"), transform=query, sink=sink, max_rejects=1)
    message = world.refused(TransformFailed, pipeline)
    assert message.startswith("column 'line': the text is not valid UTF-8, in a row of the transform. ")


@pytest.mark.parametrize("fast_path", ["off", "0"])
def test_value_that_only_postgres_refuses_is_terminal_and_names_its_records(
    connection, settings, monkeypatch, fast_path
):
    monkeypatch.setenv(VARIABLE, fast_path)
    tables = StagingTables(1, 1)
    columns = Json("name text").columns
    with transaction(connection) as cursor:
        create_rejects(cursor, tables)
        create_rows(cursor, tables, columns)
    monkeypatch.setattr(transformed_rows, "_refusal", lambda _column: None)
    batches = [
        pa.record_batch(
            {
                "kafka_topic": pa.repeat("t", 2),
                "kafka_partition": pa.repeat(pa.scalar(3, pa.int32()), 2),
                "kafka_offset": pa.array([offset, offset + 1]),
                "kafka_timestamp": pa.nulls(2, pa.timestamp("us", "UTC")),
                "name": pa.array([b"a", name]).view(pa.string()),
            }
        )
        for offset, name in ((0, b"b"), (2, b"\xff"), (4, b"c"))
    ]
    error = stage_rows(batches, tables, PostgresAccess(settings.postgres, 10, 10), columns, 1)
    assert isinstance(error, TransformFailed)
    assert str(error).startswith(
        "column 'name': Postgres cannot store a value that the transform returns, from t[3] offset 2 to t[3] offset "
        "3: invalid byte sequence"
    )
    assert "SQLSTATE 22021" in str(error)


def with_offsets(offsets: Callable[[int], list[int]]) -> Any:
    """A transform that gives rows the offsets of other records; Spark learns nothing of that."""

    def change(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = batch.schema.names.index("kafka_offset")
            columns = [*batch.columns]
            columns[at] = pa.array(offsets(len(batch)), pa.int64())
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    return lambda frame: frame.mapInArrow(change, frame.schema)


def test_lineage_that_belongs_to_another_record_is_refused(world, make_topic, make_pipeline):
    topic = make_topic(retention_ms="-1")
    for number in range(3):
        records(topic, {"id": number, "name": "n"}, timestamp=1_700_000_000_000 + number)
    topic.produce(b"bad", timestamp=1_700_000_000_000)
    options = {"max_rejects": 1, "allow_nondeterministic": ("change",)}
    computed = make_pipeline(
        topic,
        transform="select id, kafka_topic, kafka_partition, (kafka_offset + 1) % 3 as kafka_offset, kafka_timestamp "
        "from records",
        **options,
    )
    message = world.refused(TransformRefused, computed)
    assert "the transform computes kafka_offset, as " in message
    backwards, of_the_reject = (lambda n: [*range(n)][::-1]), (lambda n: [3] * n)
    for offsets in (backwards, of_the_reject):
        forged = make_pipeline(topic, transform=with_offsets(offsets), **options)
        message = world.refused(TransformRefused, forged)
        assert "which no decoded record has" in message
        assert f"{topic.name} partition 0 offset " in message
    unchanged = make_pipeline(topic, transform=with_offsets(lambda n: [*range(n)]), **options)
    assert world.run(unchanged).batch.rows == 3


def counting(frame: DataFrame) -> DataFrame:
    """Acts while it is planned."""
    assert frame.count() == 3
    return frame


def counting_strictly(frame: DataFrame) -> DataFrame:
    inverse = F.udf(lambda number: 1 / (number - 1), "double")
    frame.withColumn("x", inverse("id")).agg(F.sum("x")).collect()
    return frame


def raising(_frame: DataFrame) -> DataFrame:
    raise ValueError("mine")


def clearing(frame: DataFrame) -> DataFrame:
    frame.sparkSession.catalog.clearCache()
    return frame


def failing_to_read(_frame: DataFrame) -> DataFrame:
    raise ReadFailed("the broker is away")


def test_a_transform_may_act_while_it_is_planned(world, make_topic, make_pipeline):
    # Of other tests: what localCheckpoint keeps goes with the garbage collector.
    kept_before = {*world.spark.sparkContext._jsc.getPersistentRDDs()}
    topic = make_topic()
    records(topic, *({"id": number, "name": "n"} for number in range(3)))
    topic.produce(b"bad")
    message = world.refused(TransformRefused, make_pipeline(topic, transform=raising))
    assert message.startswith(
        f"pipeline '{topic.name}': its transform raised ValueError: mine, in test_transform_"
    )
    assert world.refused(ReadFailed, make_pipeline(topic, transform=failing_to_read)) == "the broker is away"
    assert "clears Spark's cache" in world.refused(TransformRefused, make_pipeline(topic, transform=clearing))
    message = world.refused(TransformFailed, make_pipeline(topic, transform=counting_strictly, max_rejects=1))
    assert message.startswith(f"{topic.name}[0] offset 1: the transform failed: ")
    pipeline = make_pipeline(topic, transform=counting, max_rejects=1)
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (3, 1)
    assert not {*world.spark.sparkContext._jsc.getPersistentRDDs()} - kept_before


@pytest.mark.slow
def test_the_search_for_a_record_takes_few_jobs_and_ends_in_time(
    world, make_topic, make_pipeline, monkeypatch
):
    topic = make_topic(8)
    for partition in range(8):
        records(topic, *({"id": 10 * partition + n, "name": "n"} for n in range(4)), partition=partition)
    inverse = F.udf(lambda number: 1 / (number - 52), "double")
    pipeline = make_pipeline(topic, transform=lambda frame: frame.withColumn("x", inverse("id")))
    looked: list[int] = []
    failing = failing_record.FailingRecordSearch._failing

    def counted(self: Any, part: Any) -> Any:
        looked.append(sum(map(len, part)))
        return failing(self, part)

    monkeypatch.setattr(failing_record.FailingRecordSearch, "_failing", counted)
    message = world.refused(TransformFailed, pipeline)
    assert message.startswith(f"{topic.name}[5] offset 2: the transform failed: ")
    assert looked[0] == 32  # all of it, at first
    assert len(looked) <= 1 + 2 * 5
    monkeypatch.setattr(failing_record, "SEARCH_TIME", 0.0)
    message = world.refused(TasksFailed, pipeline)
    assert "ZeroDivisionError" in message


@pytest.mark.parametrize(
    ("change", "before"),
    [(lambda frame: frame, "_staged_rows"), (lambda frame: frame.repartition(1), "_outcomes")],
    ids=["one pass", "two jobs"],
)
def test_nothing_is_searched_where_postgres_has_failed(
    world, make_topic, make_pipeline, monkeypatch, change, before
):
    topic = make_topic()
    records(topic, {"id": 1, "name": "n"})
    pipeline = make_pipeline(topic, transform=change)
    monkeypatch.setattr(failing_record.FailingRecordSearch, "run", lambda *_: pytest.fail("it was searched"))
    then = getattr(transform_stager.TransformStager, before)

    def without_staging(self: Any, *arguments: Any) -> Any:
        world.execute(f"drop table if exists exactbatch_staging.{self._tasks[0].tables.rows}")
        return then(self, *arguments)

    monkeypatch.setattr(transform_stager.TransformStager, before, without_staging)
    message = world.refused(TasksFailed, pipeline)
    assert "PostgresUnavailable" in message or "StagedRowsDiffer" in message
