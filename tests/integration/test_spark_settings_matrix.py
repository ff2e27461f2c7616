"""The same rows whatever Spark's properties are: in a run, and in a replay of a part with another parallelism."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.util import PythonEvalType

from exactbatch import Aggregate, Append, Count, Json, Max, Pipeline, Tuning, Upsert
from exactbatch.batch.spark.spark_session import batch_session, spark_session
from exactbatch.batch.spark.spark_settings import PINNED
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from support.batch_runner import BatchRunner
from support.environment import LONG

LINEAGE: Final = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"
# What a site may have set, each contrary to what Spark has by default, or to what exactbatch pins.
SETTINGS: Final = {
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.caseSensitive": "true",
    "spark.sql.chunkBase64String.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.columnNameOfCorruptRecord": "corrupt",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.crossJoin.enabled": "false",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": "1000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.selfDestruct.enabled": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "false",
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    "spark.sql.function.concatBinaryAsString": "true",
    "spark.sql.function.eltOutputAsString": "true",
    "spark.sql.groupByAliases": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.icu.caseMappings.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.batchSize": "1",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.inMemoryColumnarStorage.enableVectorizedReader": "false",
    "spark.sql.json.enableExactStringParsing": "false",
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.integerGroupingId": "true",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.optimizer.maxIterations": "1",
    "spark.sql.orderByOrdinal": "false",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.preserveCharVarcharTypeInfo": "true",
    "spark.sql.retainGroupColumns": "false",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
ROW: Final = r"""
    ID as id, upper(Name) as name, hour(at) as hour, cast(at as string) as at_text, date_trunc('day', at) as day,
    to_timestamp('2026-01-01 10:00:00') as parsed, typeof(timestamp '2026-01-01 10:00:00') as type_of_time,
    cast(id as decimal(38,18)) * cast(1.5 as decimal(38,18)) as product, '1' + 1 as two,
    size(cast(null as array<int>)) as size_of_null, to_json(named_struct('a', cast(null as int), 'b', id)) as js,
    'a\tb' as escaped,
    cast(struct(id, name) as string) as struct_text, "quoted" as quoted, `id` % 3 as third,
    concat(X'61', X'62') as bytes, typeof(elt(1, X'61', X'62')) as type_of_elt,
    length(cast('a' as char(5))) as padded, length(base64(cast(repeat('x', 100) as binary))) as coded,
    to_json(from_json('{"a": {"b": "x", "c": 2}, "d": 1}', 'a struct<b: int, c: int>, corrupt string')) as parts,
    '${env:HOME}' as home
"""


def grouped(records: DataFrame) -> DataFrame:
    records.createOrReplaceTempView("records")
    highest = (F.max(each).alias(each) for each in ("hour", "at_text", "product"))
    rows = records.sparkSession.sql(f"select {ROW} from records")
    return rows.groupBy("third").agg(F.count("*").alias("n"), *highest)


SINKS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "append": lambda name: {
        "sink": Append(name),
        "transform": f"select {ROW}, {LINEAGE} from records where id >= 0",
    },
    "upsert": lambda name: {
        "sink": Upsert(name, key=("id",)),
        "transform": f"select {ROW}, id % 7 = 6 as deleted, {LINEAGE} from records",
    },
    "by batch": lambda name: {
        "sink": Append(name, lineage="batch"),
        "transform": grouped,
    },
    "aggregate": lambda name: {
        "sink": Aggregate(
            name, group_by=("third", "hour"), aggregates={"n": Count(), "last": Max("at_text")}
        ),
        "transform": f"select {ROW}, {LINEAGE} from records",
    },
}


@contextmanager
def site(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    """Properties of the context, as spark-defaults.conf has them; sessions that begin in here have them too."""
    conf = spark.sparkContext._jsc.sc().conf()
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            conf.remove(name)
        conf.set("spark.sql.shuffle.partitions", "2")  # of the tests' session


@pytest.fixture(scope="module")
def expected():
    """What each sink holds without any setting."""
    return {}


def contents(world: BatchRunner, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    hidden = "'batch_id', 'kafka_topic', 'kafka_timestamp'"
    return world.rows(f"select to_jsonb(t) - array[{hidden}] from {pipeline.traits.target} t order by 1")


def run_and_replay(world: BatchRunner, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """What the target holds after a run, and still after the replay of a part with another number of tasks."""
    world.run(pipeline)
    found = contents(world, pipeline)
    assert found
    request = ReplayRequest(ranges=(RequestedRange(pipeline.topic_names[0], 0, 1, 4),))
    again = replace(pipeline, tuning=Tuning(max_connections=1))
    batch_id = freeze_replay(world.connection, world.log, again, request, origin="cli").batch_id
    assert batch_id is not None
    world.process(again, batch_id)
    assert contents(world, pipeline) == found
    return found


@pytest.fixture
def topic(make_topic):
    topic = make_topic(2)
    for number in range(12):
        value = {"id": number, "name": f"n{number % 4}", "at": f"2026-03-01T{number:02}:30:00Z"}
        topic.produce(json.dumps(value).encode(), partition=number % 2, timestamp=1_700_000_000_000 + number)
    return topic


CONDITIONS: Final = {
    "all": SETTINGS,
    **({name: {name: value} for name, value in SETTINGS.items()} if LONG else {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("changed", CONDITIONS.values(), ids=CONDITIONS)
def test_rows_are_the_same_under_every_setting(world, topic, make_pipeline, expected, sink, changed):
    options = {"value": Json("id int, name text, at timestamptz"), **SINKS[sink](f'public."{topic.name}"')}
    pipeline = make_pipeline(topic, **options)
    if sink not in expected:
        expected[sink] = run_and_replay(world, pipeline)
    with site(world.spark, changed):
        again = SINKS[sink](f'public."{topic.name}_again"')
        other = make_pipeline(topic, **{**options, **again, "name": f"{topic.name}-again"})
        assert run_and_replay(world, other) == expected[sink]


def test_the_session_that_a_transform_can_ask_for_is_pinned_too(
    spark, make_topic, make_pipeline, monkeypatch
):
    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)  # it is the tests' own
    before = {name: spark.conf.get(name) for name in PINNED}
    arrow = "spark.sql.execution.pythonUDF.arrow.enabled"
    idle = "spark.dynamicAllocation.cachedExecutorIdleTimeout"
    spark.conf.set(arrow, "false")
    conf = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    try:
        with spark_session(make_pipeline(make_topic(), spark_conf=conf)):
            asked = SparkSession.builder.getOrCreate()
            assert {name: asked.conf.get(name) for name in PINNED} == {
                **{name: value for name, (value, _) in PINNED.items()},
                **conf,
            }
            assert asked.conf.get(idle) == "2147483647s"
            # Whether values go by Arrow is decided by this session, whatever the batch's says.
            assert F.udf(len, "int").evalType == PythonEvalType.SQL_ARROW_BATCHED_UDF
    finally:
        spark._jsparkSession.sessionState().conf().unsetConf(idle)
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"transform": lambda _spark, records: records}, 10_000),
        ({"transform": "select * from records"}, 25_000),
        (
            {
                "transform": "select * from records",
                "spark_conf": {"spark.sql.execution.arrow.maxRecordsPerBatch": "7000"},
            },
            7_000,
        ),
    ],
    ids=["function", "query", "spark_conf"],
)
def test_a_query_passes_more_records_at_a_time(spark, make_topic, make_pipeline, options, most):
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([len(batch)])], ["rows"])

    with batch_session(spark, make_pipeline(make_topic(), **options)) as session:
        found = [row.rows for row in session.range(0, 25_000, 1, 1).mapInArrow(rows, "rows long").collect()]
    assert (sum(found), max(found)) == (25_000, most)


def test_python_functions_get_few_large_records_at_a_time(spark, make_topic, make_pipeline):
    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([batch.nbytes])], ["size"])

    with batch_session(spark, make_pipeline(make_topic())) as session:
        records = session.range(0, 400, 1, 1).select(F.repeat(F.lit("x"), 100_000).alias("text"))
        found = [row.size for row in records.mapInArrow(sizes, "size long").collect()]
    assert sum(found) > 40_000_000
    assert max(found) < 20_000_000
