"""What Spark's plan proves of the lineage that a transform gives. No job is run."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exactbatch.errors import TransformRefused
from exactbatch.transforms.lineage import passes_lineage_through

LINEAGE = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")
SCHEMA = (
    "id int, name string, tags array<string>, kafka_topic string, kafka_partition int, kafka_offset long, \
kafka_timestamp timestamp, outcome binary"
)


@pytest.fixture(scope="module")
def decoded(spark):
    """As batch/transform/transform_stager.py reads records."""
    read = spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, SCHEMA)
    return read.where(F.col("outcome").isNull()).drop("outcome")


def query(text: str) -> Callable[[DataFrame], DataFrame]:
    def run(records: DataFrame) -> DataFrame:
        return records.sparkSession.sql(text.replace("LINEAGE", ", ".join(LINEAGE)), records=records)

    return run


def view(records: DataFrame) -> DataFrame:
    records.createOrReplaceTempView("lineage_records")
    return records.sparkSession.sql(f"select id, {', '.join(LINEAGE)} from lineage_records where id > 1")


PROVEN = {
    "view": view,
    "all": lambda r: r,
    "project": lambda r: r.select("id", *LINEAGE).withColumn("double", F.col("id") * 2).drop("id"),
    "rename and back": lambda r: r.withColumnRenamed("kafka_offset", "o").withColumnRenamed(
        "o", "kafka_offset"
    ),
    "filter, sort": lambda r: r.where("id > 3").orderBy("id"),
    "explode": lambda r: r.withColumn("tag", F.explode("tags")),
    "union": lambda r: r.where("id > 3").union(r.where("id <= 3")),
    "join": lambda r: r.join(
        r.sparkSession.createDataFrame([(1, "x")], "id int, label string"), "id", "left"
    ),
    "sql": query("select upper(name) as name, LINEAGE from {records} where id in (1, 2)"),
    "cte": query(
        "with few as (select id, LINEAGE from {records} where id > 1) select id + 1 as id, LINEAGE from few"
    ),
    "lateral view": query("select id, tag, LINEAGE from {records} lateral view explode(tags) as tag"),
    "window": query("select id, row_number() over (order by kafka_offset) as n, LINEAGE from {records}"),
}
NOT_PROVEN = {
    "python": lambda r: r.mapInArrow(lambda batches: batches, r.schema),
    "udf": lambda r: r.withColumn("kafka_offset", F.udf(lambda offset: offset, "long")("kafka_offset")),
    "two records": lambda r: r.select("id", "kafka_topic", "kafka_partition").crossJoin(
        r.select("kafka_offset", "kafka_timestamp")
    ),
    "two records of a cte": query(
        "with few as (select * from {records}) select a.id, a.kafka_topic, a.kafka_partition, b.kafka_offset, "
        "b.kafka_timestamp from few a cross join few b"
    ),
    "columns in each other's place": query(
        "select id, kafka_topic, cast(kafka_offset as int) as kafka_partition, cast(kafka_partition as bigint) as "
        "kafka_offset, kafka_timestamp from {records}"
    ),
    "one of two columns": query(
        "select kafka_topic, kafka_partition, case when id > 1 then kafka_offset else cast(id as bigint) end as "
        "kafka_offset, kafka_timestamp from {records}"
    ),
    "group by": query("select LINEAGE, count(*) as n from {records} group by all"),
    "another source": lambda r: r.sparkSession.range(1).selectExpr(
        "'t' as kafka_topic", "0 as kafka_partition", "id as kafka_offset",
        "timestamp_seconds(1) as kafka_timestamp",
    ).mapInArrow(
        lambda batches: batches,
        "kafka_topic string, kafka_partition int, kafka_offset long, kafka_timestamp timestamp",
    ),
}  # fmt: skip
COMPUTED = {
    "added": (lambda r: r.withColumn("kafka_offset", (F.col("kafka_offset") + 1) % 6), "kafka_offset"),
    "zero": (lambda r: r.withColumn("kafka_offset", F.lit(0).cast("long") * 1), "kafka_offset"),
    "now": (lambda r: r.withColumn("kafka_timestamp", F.timestamp_seconds(F.lit(1))), "kafka_timestamp"),
    "topic": (lambda r: r.withColumn("kafka_topic", F.concat("kafka_topic", F.lit("x"))), "kafka_topic"),
    "renamed": (
        lambda r: r.withColumn("o", F.col("kafka_offset") - 1).drop("kafka_offset").withColumnRenamed(
            "o", "kafka_offset"
        ),
        "kafka_offset",
    ),
    "one of two": (
        query("select kafka_topic, kafka_partition, case when id > 1 then kafka_offset else kafka_offset - 1 end "
              "as kafka_offset, kafka_timestamp from {records}"), "kafka_offset"
    ),
    "where null": (
        query("select kafka_topic, kafka_partition, cast(if(id > 1, coalesce(kafka_offset, 0), null) as bigint) "
              "as kafka_offset, kafka_timestamp from {records}"), "kafka_offset"
    ),
    "literal": (query("select 't' as kafka_topic, kafka_partition, kafka_offset, kafka_timestamp from {records}"),
                "kafka_topic"),
}  # fmt: skip


@pytest.mark.parametrize("change", PROVEN.values(), ids=PROVEN)
def test_columns_that_are_handed_on_are_known_to_be(decoded, change):
    assert passes_lineage_through("p", change(decoded), decoded)


@pytest.mark.parametrize("change", NOT_PROVEN.values(), ids=NOT_PROVEN)
def test_what_may_be_of_another_record_is_not(decoded, change):
    assert not passes_lineage_through("p", change(decoded), decoded)


@pytest.mark.parametrize(("change", "column"), COMPUTED.values(), ids=COMPUTED)
def test_lineage_that_is_computed_is_refused(decoded, change, column):
    with pytest.raises(TransformRefused, match=f"pipeline 'p': the transform computes {column}, as "):
        passes_lineage_through("p", change(decoded), decoded)
