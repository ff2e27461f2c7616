"""A transform without a shuffle runs in the tasks that read: with the same rows, rejects and counts as any other."""

import json
import sys
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exactbatch import Json, Tuning
from exactbatch.batch.transform import transform_stager
from exactbatch.batch.transform.decoded_records import decoded_in_one_pass
from exactbatch.batch.transform.one_pass import PLACE, OnePass, RecordsInOrder
from exactbatch.compiled.availability import VARIABLE
from exactbatch.errors import ConfigurationError, OffsetsLost, TooManyRejects
from exactbatch.transforms.narrow_plan import columns_of_records, computed_from, is_narrow

LINEAGE = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"
SCHEMA = (
    "id int, name string, tags array<string>, kafka_topic string, kafka_partition int, kafka_offset long, "
    "kafka_timestamp timestamp, outcome binary"
)
# Executors cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def with_function(records: DataFrame) -> DataFrame:
    upper = F.udf(lambda name: name.upper(), "string")
    return records.withColumn("name", upper("name")).where(upper("name") != "A")


NARROW = {
    "all": "select * from {records}",
    "project, filter": f"select id + 1 as id, {LINEAGE} from {{records}} where name like 'a%'",
    "explode": f"select id, tag, {LINEAGE} from {{records}} lateral view explode(tags) as tag",
    "cte": f"with few as (select * from {{records}} where id > 1) select id, {LINEAGE} from few",
    "udf": with_function,
}
WIDE = {
    "sort": "select * from {records} order by id",
    "repartition": "select /*+ repartition(3) */ * from {records}",
    "coalesce": lambda r: r.coalesce(1),
    "union": "select * from {records} where id > 1 union all select * from {records} where id <= 1",
    "join": "select r.* from {records} r join values (1) v (id) on r.id = v.id",
    "subquery": "select * from {records} where id > (select max(id) from range(3))",
    "nothing is read": "select * from {records} where 1 = 0",
    "another function over many rows": lambda r: r.mapInArrow(lambda batches: batches, r.schema),
}


def select_rows(spark: Any, change: Any) -> tuple[DataFrame, DataFrame]:
    """Return rows of a transform, and the records that it gets."""
    read = spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, SCHEMA)
    records = read.where(F.col("outcome").isNull()).drop("outcome")
    return change(records) if callable(change) else spark.sql(change, records=records), records


def staged(spark: Any, change: Any) -> DataFrame:
    """As batch/transform/transform_stager.py has it: decode, transform, stage."""
    rows, _ = select_rows(spark, change)
    return rows.mapInArrow(lambda batches: batches, "outcome binary")


@pytest.mark.parametrize("change", NARROW.values(), ids=NARROW)
def test_plans_that_spark_runs_as_it_reads(spark, change):
    assert is_narrow(staged(spark, change))


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive plans", "fixed plans"])
@pytest.mark.parametrize("change", WIDE.values(), ids=WIDE)
def test_plans_that_spark_runs_otherwise(spark, change, adaptive):
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        assert not is_narrow(staged(spark, change))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


QUERY = (
    f"select id, part, {LINEAGE} from records lateral view posexplode(split(name, ',')) as place, part "
    f"where id % 3 <> 0 or place > 0"
)


class Uncounted(RecordsInOrder):
    """Rows that seem to be out of order."""

    @property
    def count(self) -> int | None:
        return None


@pytest.fixture
def topic(make_topic):
    """Records that give one row, several or none; that do not decode; and that Postgres cannot store."""
    topic = make_topic(3, retention_ms="-1")
    for partition in range(3):
        for number in range(40):
            name = "a,b" if number % 4 == 0 else "nul\0,x" if number == 5 else "a"
            value = json.dumps({"id": number, "name": name}) if number % 10 != 7 else "bad"
            topic.produce(value.encode(), partition=partition)
    return topic


def test_one_pass_has_the_rows_rejects_and_counts_of_several(world, topic, make_pipeline, monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr(
        transform_stager, "is_narrow", lambda frame: (asked.append(is_narrow(frame)), asked[-1])[1]
    )
    seen = []
    for way in ("one pass", "counted by Postgres", "two jobs"):
        if way == "counted by Postgres":
            monkeypatch.setattr(transform_stager, "RecordsInOrder", Uncounted)
        if way == "two jobs":
            monkeypatch.setattr(transform_stager, "is_narrow", lambda _: False)
        pipeline = make_pipeline(
            topic,
            transform=QUERY,
            max_rejects=40,
            tuning=Tuning(max_connections=2),
            name=f"{topic.name}.{way}".replace(" ", "_"),
        )
        world.execute(f"drop table if exists {pipeline.traits.target}")
        batch = world.run(pipeline).batch
        rows = world.rows(
            f"select id, part, kafka_partition, kafka_offset from {pipeline.traits.target} order by 3, 4, 2"
        )
        rejects = world.rows(
            'select partition, "offset", value, reason from exactbatch.rejected_record '
            f"where pipeline = '{pipeline.name}' order by 1, 2"
        )
        seen.append(
            (batch.records, batch.rows, batch.rejected, batch.tombstones, batch.dropped, rows, rejects)
        )
        assert len(rows) == batch.rows
        assert world.is_exact(pipeline)
    assert asked == [True, True]
    assert seen[0] == seen[1] == seen[2]
    records, _, rejected, _, dropped, rows, _ = seen[0]
    assert (records, rejected, dropped) == (120, 15, 27)
    assert len({row[2:] for row in rows}) == records - rejected - dropped
    assert not world.spark.sparkContext._jsc.getPersistentRDDs()


ATOMIC_TYPES = (
    "id int, small smallint, big bigint, single real, double float8, yes boolean, word text, day date, at timestamp, "
    "atz timestamptz, exact numeric(12, 3), wide numeric, code uuid, doc jsonb, span interval"
)
EVERY_TYPE = f"{ATOMIC_TYPES}, words text[], numbers int[]"
SOME = (
    "select small as renamed, upper(word) as word, word as word_as_it_is, exact, exact as again, "
    f"kafka_timestamp as seen, kafka_offset as place, {LINEAGE}"
)


@pytest.mark.parametrize(
    ("types", "fast_path", "some"),
    [
        (EVERY_TYPE, "off", f"{SOME}, n from records lateral view explode(numbers) as n"),
        (ATOMIC_TYPES, "0", f"{SOME}, size(split(word, 'ö')) as n from records"),
        (ATOMIC_TYPES, "0", f"{SOME}, array(id, small) as n from records"),
    ],
    ids=["arrow", "packed", "compiled but for computed columns"],
)
def test_unchanged_columns_of_every_type_are_those_that_spark_returns(
    world, make_topic, make_pipeline, monkeypatch, types, fast_path, some
):
    """In one pass they do not go through the JVM."""
    topic = make_topic(2, retention_ms="-1")
    for number in range(60):
        value = {
            "id": number,
            "small": number - 30,
            "big": 2**62 + number,
            "single": number / 3,
            "double": number / 7 if number % 5 else None,
            "yes": number % 2 == 0,
            "word": f"wörd {number} €" if number % 3 else None,
            "day": f"2026-01-{number % 28 + 1:02}",
            "at": f"2026-01-01T00:00:{number:02}.123456",
            "atz": f"1969-12-31T23:59:{number:02}.5Z",
            "exact": f"{number}.125",
            "wide": f"1e{number}",
            "code": f"00000000-0000-0000-0000-0000000000{number:02}",
            "doc": json.dumps({"n": number}),
            "span": f"{number} days",
            "words": ["a", None, f"{number}"],
            "numbers": list(range(number % 4)),
        }
        if number % 8 == 3:
            value["double"] = 1e300  # the compiled loop leaves it to the format
        topic.produce(json.dumps(value).encode() if number % 16 else b"bad", partition=number % 2)
    monkeypatch.setitem(world.spark.sparkContext.environment, VARIABLE, fast_path)
    for name, query in {
        "all": "select * from records where id % 7 <> 0",
        "some": f"{some} where double is not null",
    }.items():
        contents = []
        for one_pass in (True, False):
            with monkeypatch.context() as patch:
                if not one_pass:
                    patch.setattr(transform_stager, "is_narrow", lambda _: False)
                pipeline = make_pipeline(
                    topic,
                    value=Json(types),
                    transform=query,
                    name=f"{topic.name}.{name}.{one_pass}",
                    max_rejects=10,
                )
                world.execute(f"drop table if exists {pipeline.traits.target}")
                batch = world.run(pipeline).batch
                assert batch.rows > 0
                assert batch.rejected == 4
            columns = world.rows(
                "select attname, atttypid::regtype::text, atttypmod from pg_attribute "
                f"where attrelid = '{pipeline.traits.target}'::regclass and attnum > 0"
            )
            names = ", ".join(f'"{column[0]}"' for column in columns if column[0] != "batch_id")
            rows = world.rows(f"select row({names})::text from {pipeline.traits.target} order by 1")
            contents.append((columns, rows))
            assert world.is_exact(pipeline)
        assert contents[0] == contents[1]


def test_columns_of_records_are_traced(spark):
    def traced(change: Any) -> tuple[dict[str, str], set[str]] | None:
        found = columns_of_records(*select_rows(spark, change))
        return None if found is None else (dict(found.unchanged), set(found.used) - {"outcome"})

    lineage = {name: name for name in LINEAGE.split(", ")}
    every = {"id": "id", "name": "name", "tags": "tags", **lineage}
    assert traced("select * from {records}") == (every, set())
    assert traced("select * from {records} where id > 1 and kafka_offset > 2") == (
        every,
        {"id", "kafka_offset"},
    )
    assert traced(f"select name as id, id + 1 as name, {LINEAGE} from {{records}}") == (
        {"id": "name", **lineage},
        {"id"},
    )
    assert traced(
        f"with a as (select id as x, upper(name) as y, {LINEAGE} from {{records}}), "
        f"b as (select * from a where y > '') select x as name, y, {LINEAGE} from b"
    ) == ({"name": "id", **lineage}, {"name"})
    assert traced(f"select id, tag, {LINEAGE} from {{records}} lateral view explode(tags) as tag") == (
        {"id": "id", **lineage},
        {"tags"},
    )
    assert traced(lambda r: r.withColumn("id", F.col("id") * 2).withColumnRenamed("id", "double")) == (
        {"name": "name", "tags": "tags", **lineage},
        {"id"},
    )
    assert traced(lambda r: r.union(r)) is None
    assert traced(lambda r: r.mapInArrow(lambda batches: batches, r.schema)) is None
    other = spark.createDataFrame([(1, "x")], "id int, name string")
    assert traced(lambda _: other) is None


ROWS = [
    (1, "ab", ["x", "y"], "t", 0, 5, None, None),
    (2, "a", [], "t", 1, 6, None, None),
    (3, "a.b", ["z"], "t", 0, 7, None, None),
]
REPLACED = NARROW | {
    "union": WIDE["union"],
    "names with dots": lambda r: r.withColumnRenamed("name", "the.`name`").withColumn("a.b", F.lit(1)),
    "a view": lambda r: (r.createOrReplaceTempView("seen"), r.sparkSession.sql("select id, name from seen"))[
        1
    ],
}


@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
def test_rows_are_computed_from_other_records(spark, change):
    """These are what the transform returns for them."""
    rows, records = select_rows(spark, change)
    others = spark.createDataFrame(ROWS, SCHEMA)
    expected = (
        change(others.drop("outcome"))
        if callable(change)
        else spark.sql(change, records=others.drop("outcome"))
    )
    places = [7, *range(3, 7), 2, 0, 1]
    given = others.select(*(others.columns[place] for place in places)).toDF(*map(str, places))
    computed = computed_from(rows, records, given, places)
    assert computed.schema == rows.schema
    assert sorted(map(str, computed.collect())) == sorted(map(str, expected.collect()))
    assert len(computed.collect()) > 0


def test_columns_without_a_record_of_them_are_null(spark):
    rows, records = select_rows(spark, f"select id, name, {LINEAGE} from {{records}}")
    given = spark.createDataFrame([("t", 7), ("u", 8)], "`0` string, `1` int")
    computed = computed_from(rows, records, given, [3, 0])
    assert [tuple(row) for row in computed.collect()] == [
        (7, None, "t", None, None, None),
        (8, None, "u", None, None, None),
    ]


@pytest.mark.parametrize(("tasks", "of_records"), [(2, set(PLACE)), (3, {"kafka_offset"})])
def test_a_task_that_reads_one_partition_sends_only_offsets_through_the_jvm(
    world, topic, make_pipeline, monkeypatch, tasks, of_records
):
    """Two tasks read three partitions, three tasks one each."""
    used: list[set[str]] = []

    def seen(spark: Any, bins: Any, one_pass: OnePass) -> DataFrame:
        used.append(set(one_pass.used))
        return decoded_in_one_pass(spark, bins, one_pass)

    monkeypatch.setattr(transform_stager, "decoded_in_one_pass", seen)
    query = "select * from records where kafka_offset <> 3"
    pipeline = make_pipeline(topic, transform=query, max_rejects=40, tuning=Tuning(max_connections=tasks))
    assert world.run(pipeline).batch.rows == 3 * (40 - 5 - 1)
    assert used == [of_records]
    assert world.is_exact(pipeline)
    places = world.rows(
        f"select distinct kafka_topic, kafka_partition from {pipeline.traits.target} order by 2"
    )
    assert places == [(topic.name, partition) for partition in range(3)]


def test_a_transform_is_called_once(world, topic, make_pipeline):
    """Also if its rows are computed from the columns that it uses only."""
    calls: list[int] = []

    def numbered(records: DataFrame) -> DataFrame:
        calls.append(1)
        return records.withColumn("call", F.lit(len(calls)))

    pipeline = make_pipeline(topic, transform=numbered, max_rejects=40)
    world.run(pipeline)
    assert {row[0] for row in world.rows(f"select call from {pipeline.traits.target}")} == {len(calls)} == {1}


def test_errors_of_reading_end_a_batch_in_one_pass(world, topic, make_pipeline):
    few = make_pipeline(topic, transform=QUERY, max_rejects=5)
    assert "offset 7: " in world.refused(TooManyRejects, few)
    pipeline = make_pipeline(topic, transform=QUERY, max_rejects=40)
    batch_id = world.plan(pipeline)
    admin = AdminClient(dict(topic.properties))
    for future in admin.delete_records([TopicPartition(topic.name, 1, 20)]).values():
        future.result(30)
    with pytest.raises(OffsetsLost, match=rf"{topic.name}\[1\]"):
        world.process(pipeline, batch_id)


def test_a_wrong_setting_of_the_executors_ends_a_batch_in_one_pass(world, topic, make_pipeline, monkeypatch):
    monkeypatch.setitem(world.spark.sparkContext.environment, VARIABLE, "fast")
    pipeline = make_pipeline(topic, transform=QUERY, max_rejects=40)
    message = world.refused(ConfigurationError, pipeline)
    assert message.startswith(
        "EXACTBATCH_FAST_PATH is 'fast', which is neither a number of offsets nor 'off'"
    )


def test_disks_that_spark_encrypts_hold_no_file_of_a_hand_over(world, topic, make_pipeline, monkeypatch):
    monkeypatch.setattr(
        transform_stager,
        "read_settings",
        lambda spark: {**dict(spark.sparkContext.getConf().getAll()), **ENCRYPTED},
    )
    monkeypatch.setattr(transform_stager, "is_narrow", lambda _: pytest.fail("it would run in one pass"))
    pipeline = make_pipeline(topic, value=Json("id int, name text"), transform=QUERY, max_rejects=40)
    assert world.run(pipeline).batch.dropped == 27


ENCRYPTED = {"spark.io.encryption.enabled": "true"}
