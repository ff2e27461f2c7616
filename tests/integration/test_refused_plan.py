"""What a transform may do: Spark's own plans of queries and functions, without a batch."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from exactbatch.transforms import refused_plan
from exactbatch.transforms.refused_plan import findings, marked
from support.transform_queries import ONE_AT_A_TIME, SEVERAL, STATIC, VALUES

ROWS = 12


@pytest.fixture(scope="module")
def records(spark):
    """Records as a transform gets them, and the views `records` of them and `static` of another source."""
    frame: DataFrame = marked(spark.sql(VALUES.format(rows=ROWS)))
    frame.createOrReplaceTempView("records")
    spark.sql(STATIC).createOrReplaceTempView("static")
    return frame


def names(frame: DataFrame, *, by_record: bool = True) -> list[str]:
    return [each.name for each in findings(frame, by_record=by_record)]


@pytest.mark.parametrize("query", ONE_AT_A_TIME)
def test_what_looks_at_one_record_at_a_time_is_allowed(spark, records, query):
    assert names(spark.sql(query)) == []
    assert names(spark.sql(query), by_record=False) == []


@pytest.mark.parametrize(("query", "expected"), SEVERAL)
def test_rows_of_several_records_are_allowed_by_batch_alone(spark, records, query, expected):
    assert names(spark.sql(query)) == expected
    assert names(spark.sql(query), by_record=False) == []


# Another result each time, whatever a replay processes.
NEVER = [
    ("select *, now() as t from records", ["now"]),
    ("select *, unix_timestamp() as t from records", ["current_timestamp"]),
    ("select *, current_date as d, curdate() as e, localtimestamp() as f from records",
     ["current_date", "localtimestamp"]),
    ("select *, timestamp 'now' as t from records", ["now"]),
    ("select *, timestamp 'NOW' as t from records", ["now"]),
    ("select *, date 'today' as d, DATE'tomorrow' as e from records", ["today", "tomorrow"]),
    ("select *, cast('now' as timestamp) as t from records", ["now"]),
    ("select *, timestamp('now') as t, 'today'::date as d from records", ["now", "today"]),
    ("select *, to_timestamp('now') as t, to_date(' yesterday') as d from records", ["now", "yesterday"]),
    ("select *, try_to_timestamp('now') as t, to_timestamp_ntz('today') as d from records", ["now", "today"]),
    ("select * from records where at > 'yesterday'", ["yesterday"]),
    ("select * from records where at > cast(concat('n', 'ow') as timestamp)", ["cast"]),
    ("select r.* from records r, values (timestamp 'now') as t (t) where at > t", ["now"]),
    ("select * from records where at < (select max(timestamp 'now') from static)", ["now"]),
    # Text without a date is a time of the day of the try, in a record, too.
    ("select *, cast(name as timestamp) as t, try_cast(name as timestamp) as u from records",
     ["cast", "try_cast"]),
    ("select *, to_timestamp(name) as t, try_to_timestamp(name) as u from records",
     ["to_timestamp", "try_to_timestamp"]),
    ("select *, cast(tags as array<timestamp>) as t from records", ["cast"]),
    ("select *, from_json(name, 'a struct<b: timestamp>') as j, from_csv(name, 'a timestamp') as c, "
     "from_xml(name, 'a timestamp') as x from records", ["from_json", "from_csv", "from_xml"]),
    ("select *, variant_get(parse_json(name), '$.a', 'timestamp') as t from records", ["variant_get"]),
    ("select *, cast(parse_json(name) as timestamp) as t from records", ["cast"]),
    ("select * from records where at > '08:00'", ["cast"]),
    ("select *, timestamp ' 8:00' as t from records", ["timestamp"]),
    ("select *, hour('T08:00') as h, transform(tags, x -> hour(x)) as hours from records", ["cast"]),
    # A name cannot hide what is below it.
    ("select * from (select *, now() as n from records) exactbatch_records", ["now"]),
    ("select *, current_user() as u, session_user() as v, user() as w from records",
     ["current_user", "session_user", "user"]),
    ("select *, current_timezone() as z, version() as v from records", ["current_timezone", "version"]),
    ("select *, current_catalog() as c, current_database() as d, current_schema() as s from records",
     ["current_catalog", "current_schema"]),
    ("select *, rand() as x, uuid() as u from records", ["rand", "uuid"]),
    ("select *, rand(1) as x, shuffle(tags, 1) as s from records", ["rand", "shuffle"]),
    ("select *, aes_encrypt(name, '0000111122223333') as e from records", ["aes_encrypt"]),
    ("select *, monotonically_increasing_id() i, spark_partition_id() p, input_file_name() f from records",
     ["monotonically_increasing_id", "spark_partition_id", "input_file_name"]),
    ("select *, java_method('java.util.UUID', 'randomUUID') as u from records", ["java_method"]),
    ("select * from records where exists(tags, x -> rand() > 0.5)", ["rand"]),
    ("select * from records where id not in (select id from static where rand() > 0.5)", ["rand"]),
    ("select * from records where id in (select id from static limit 1)", ["limit"]),
    ("select * from records order by id limit 3", ["limit"]),
    ("select * from records limit 3 offset 1", ["limit", "offset"]),
    ("select * from records tablesample (50 percent)", ["sample"]),
    ("select r.*, s.first from records r, (select first(label) as first from static) s", ["first"]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "expected"), NEVER)
def test_what_gives_another_result_each_time_is_refused_by_name(spark, records, query, expected):
    assert sorted(names(spark.sql(query))) == sorted(expected)
    assert sorted(names(spark.sql(query), by_record=False)) == sorted(expected)


# Of many rows, and not the same in every order.
UNORDERED = [
    ("first(name), last(name), any_value(name)", ["first", "last", "any_value"]),
    ("collect_list(name), collect_set(name), array_agg(name)", ["collect_list", "collect_set"]),
    ("listagg(name, ',')", ["listagg"]),
    ("listagg(name, ',') within group (order by id)", ["listagg"]),
    ("max_by(name, id), min_by(name, id), mode(name)", ["max_by", "min_by", "mode"]),
]  # fmt: skip


@pytest.mark.parametrize(("aggregates", "expected"), UNORDERED)
def test_aggregates_that_depend_on_order_of_rows_are_refused_by_name(spark, records, aggregates, expected):
    found = names(spark.sql(f"select {aggregates} from records"), by_record=False)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("row_number() over (partition by name order by id)", "row_number"),
        ("ntile(2) over (order by id)", "ntile"),
        ("lag(name) over (order by id)", "lag"),
        ("lead(name) over (order by id)", "lead"),
        ("first_value(name) over (order by id)", "first_value"),
        ("nth_value(name, 2) over (order by id)", "nth_value"),
        ("sum(id) over (order by id rows between 1 preceding and current row)", "rows between"),
    ],
)
def test_window_functions_with_ties_are_refused_by_name(spark, records, function, expected):
    frame = spark.sql(f"select *, {function} as x from records")
    assert names(frame, by_record=False) == [expected]
    assert sorted(names(frame)) == sorted([expected, "window"])


def plus_one(number: int) -> int:
    return number + 1


def all_plus_one(numbers: pd.Series) -> pd.Series:
    return numbers + 1


def as_they_come(batches: Any) -> Any:
    yield from batches


def of_a_group(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


FUNCTIONS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str]]] = {
    "udf": (lambda r: r.withColumn("n", F.udf(plus_one, "int")("id")), []),
    "arrow_udf_of_rows": (lambda r: r.withColumn("n", F.udf(plus_one, "int", useArrow=True)("id")), []),
    "declared": (
        lambda r: r.withColumn("n", F.udf(plus_one, "int").asNondeterministic()("id")),
        ["plus_one"],
    ),
    "pandas_udf": (lambda r: r.withColumn("n", F.pandas_udf(all_plus_one, "int")("id")), ["all_plus_one"]),
    "mapInPandas": (lambda r: r.mapInPandas(as_they_come, r.schema), ["as_they_come"]),
    "mapInArrow": (lambda r: r.mapInArrow(as_they_come, r.schema), ["as_they_come"]),
    "applyInPandas": (
        lambda r: r.groupBy("name").applyInPandas(of_a_group, r.schema),
        ["of_a_group", "applyInPandas"],
    ),
    "distinct": (lambda r: r.distinct(), ["distinct"]),
    "dropDuplicates": (lambda r: r.dropDuplicates(["name"]), ["dropDuplicates"]),
    "randomSplit": (lambda r: r.randomSplit([0.5, 0.5])[0], ["sample"]),
    "exceptAll": (lambda r: r.select("id").exceptAll(r.select("id")), ["except"]),
    "literal": (lambda r: r.withColumn("t", F.lit("now").cast("timestamp")), ["now"]),
    "text": (lambda r: r.withColumn("t", F.expr("timestamp 'now'")), ["now"]),
    "where": (lambda r: r.where("at > timestamp 'yesterday'"), ["yesterday"]),
    "rdd": (lambda r: r.cache() and r.rdd.toDF(r.schema), ["rdd"]),
    "checkpoint": (lambda r: r.select("id").localCheckpoint(), ["rdd"]),
    "join": (
        lambda r: r.join(r.sparkSession.createDataFrame([(1, "one")], "id int, label string"), "id"),
        [],
    ),
    "alias": (
        lambda r: r.alias("x").withColumn("n", F.count("*").over(Window.partitionBy("x.name"))),
        ["window"],
    ),
    "self_join": (lambda r: r.join(r.select("id", F.col("name").alias("other")), "id"), ["self-join"]),
    "cached": (lambda r: r.where("id > 1").cache().limit(3), ["limit"]),
    "observed": (lambda r: r.observe("seen", F.count(F.lit(1)).alias("n")), []),
    "repartitioned": (lambda r: r.repartition(7, "name").coalesce(2).sortWithinPartitions("id"), []),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_of_user_are_judged_by_how_many_rows_they_get(spark, records, kind):
    transform, expected = FUNCTIONS[kind]
    try:
        assert sorted(names(transform(records))) == sorted(expected)
    finally:
        spark.catalog.clearCache()


def test_a_function_of_sql_is_judged_by_its_body(spark, records):
    spark.sql("create or replace temporary function doubled(n int) returns int return n * 2")
    spark.sql("create or replace temporary function clocked(n int) returns timestamp return timestamp 'now'")
    assert names(spark.sql("select *, doubled(id) as d from records")) == []
    assert names(spark.sql("select *, clocked(id) as d from records")) == ["now"]
    spark.sql("drop temporary function doubled")
    spark.sql("drop temporary function clocked")


def test_an_operator_that_nobody_knows_is_refused_by_name(spark, records, monkeypatch):
    """As one of an extension of Spark is."""
    monkeypatch.setattr(refused_plan, "_ROW_BY_ROW", refused_plan._ROW_BY_ROW - {"Filter"})
    assert names(spark.sql("select * from records where id > 3")) == ["Filter"]
