"""The ways that are compared: each takes the same topic, in a warm Spark session of its own process."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psycopg2.extensions import parse_dsn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exactbatch import Aggregate, Append, Count, Max, Min, Sum, Upsert, Window
from exactbatch.batch.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from pipelines.flights import flights

CORES = 2
# The same for every way: what a Spark batch needs on one machine, and no more.
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
# Spark's Kafka source, tuned: larger fetches than the default (1 MB for a partition, 500 records a poll),
# and no second check of the records' checksums, which librdkafka leaves out by default too.
KAFKA_SOURCE = {
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.max.poll.records": "20000",
    "kafka.receive.buffer.bytes": str(1024 * 1024),
    "kafka.check.crcs": "false",
}
# The Postgres driver, tuned: inserts of many rows, one connection for each core.
JDBC = {
    "driver": "org.postgresql.Driver",
    "batchsize": "10000",
    "numPartitions": str(CORES),
}
SPARK_TYPES = {"integer": "int", "text": "string", "timestamp with time zone": "timestamp"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """What every way is given: where the servers are, and which topic to read."""

    kafka: Mapping[str, Any]
    postgres: str
    topic: str
    jars: tuple[Path, ...]
    scratch: Path


@dataclass(frozen=True, kw_only=True)
class Session:
    """A way that is open: `run` does all of its work once.

    `warm` comes before each round, unmeasured: Spark ends Python workers that were idle for a minute, and how
    long the other ways take must not decide whether a round starts them anew.
    """

    run: Callable[[], None]
    warm: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way: `open` makes, in a new process, what a round needs.

    `derived` names the suffixes of the tables beside a target that is derived from them, and whose rows are
    therefore no copies of the records.
    """

    name: str
    title: str
    target: str | None
    open: Callable[[Place], Session] = field(repr=False)
    derived: tuple[str, ...] = ()


def spark_noop(place: Place) -> Session:
    """Spark's own Kafka source, whose records go nowhere: the most that the source can give."""
    spark = _session(place, jars=True)

    def run() -> None:
        _source(spark.read, place).load().write.format("noop").mode("overwrite").save()

    return Session(run=run)


def available_now_jdbc(place: Place) -> Session:
    """Structured Streaming, trigger AvailableNow, foreachBatch, from_json and a JDBC append."""
    spark = _session(place, jars=True)
    checkpoint = place.scratch / "checkpoint"
    url, options = _jdbc(place)

    def write(batch: DataFrame, batch_id: int) -> None:
        _decoded(batch, batch_id).write.format("jdbc").mode("append").options(**options).option(
            "url", url
        ).option("dbtable", AVAILABLE_NOW.target).save()

    def run() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)  # every round starts from the earliest offsets
        stream = _source(spark.readStream, place).load().writeStream.foreachBatch(write)
        query = stream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()

    return Session(run=run)


def exactbatch_batch(place: Place) -> Session:
    """exactbatch: plan a batch over the topic, stage it and publish it."""
    return _exactbatch(place, exactbatch_pipeline(place))


def exactbatch_partition(place: Place) -> Session:
    """exactbatch with commit="partition": plan a batch over the topic, and commit range by range."""
    sink = Append(str(EXACTBATCH_PARTITION.target))
    name = f"{place.topic}_partition"
    return _exactbatch(place, replace(exactbatch_pipeline(place), name=name, sink=sink, commit="partition"))


def exactbatch_sql(place: Place) -> Session:
    """exactbatch with a transform that changes nothing: what the way through the JVM costs."""
    sink = Append(str(EXACTBATCH_SQL.target))
    name = f"{place.topic}_sql"
    query = "select * from records where kafka_offset >= 0"
    return _exactbatch(place, replace(exactbatch_pipeline(place), name=name, sink=sink, sql=query))


def exactbatch_upsert(place: Place) -> Session:
    """exactbatch with one row for each flight of the year, of which the topic has several records."""
    sink = Upsert(str(EXACTBATCH_UPSERT.target), key=("time_hour", "carrier", "flight"), version="hour")
    return _exactbatch(place, replace(exactbatch_pipeline(place), name=f"{place.topic}_upsert", sink=sink))


def exactbatch_aggregate(place: Place) -> Session:
    """exactbatch with the delays by airport and hour."""
    measures = {
        "flights": Count(),
        "delay": Sum("dep_delay"),
        "best": Min("dep_delay"),
        "worst": Max("dep_delay"),
    }
    by = ("origin", Window("time_hour", "1 hour", "its_hour"))
    sink = Aggregate(str(EXACTBATCH_AGGREGATE.target), group_by=by, aggregates=measures)
    return _exactbatch(place, replace(exactbatch_pipeline(place), name=f"{place.topic}_aggregate", sink=sink))


def _exactbatch(place: Place, pipeline: Pipeline) -> Session:
    spark = _session(place, jars=False)
    settings = Settings(kafka=place.kafka, postgres=place.postgres)
    register(place, pipeline)

    def run() -> None:
        run_batch(spark, pipeline, settings)

    def import_staging(_: Any) -> None:  # on an executor, which does not know this module
        import exactbatch.batch.partition_commit
        import exactbatch.batch.stage

        assert exactbatch.batch.stage
        assert exactbatch.batch.partition_commit
        time.sleep(0.5)  # long enough that the other task gets a worker of its own

    def warm() -> None:
        spark.sparkContext.parallelize(range(CORES), CORES).foreachPartition(import_staging)

    return Session(run=run, warm=warm)


def run_batch(spark: SparkSession, pipeline: Pipeline, settings: Settings) -> None:
    """What a DAG run does: plan, then process the batch."""
    ledger = connect(settings.postgres, application="benchmark")
    batch_id = freeze_advance(ledger, KafkaBroker(settings.kafka), pipeline, origin="cli")
    ledger.close()
    assert batch_id is not None
    process_batch(DriverEngine(spark), pipeline, batch_id, settings)


def exactbatch_pipeline(place: Place) -> Pipeline:
    """The project's own flights pipeline, over the benchmark's topic."""
    return replace(flights, name=place.topic, topics=(place.topic,), sink=Append(str(EXACTBATCH.target)))


def register(place: Place, pipeline: Pipeline) -> None:
    """What `exactbatch init` does."""
    connection = connect(place.postgres, application="benchmark")
    migrate(connection)
    with transaction(connection):
        Ledger(connection).register(pipeline)
    connection.close()


def _session(place: Place, *, jars: bool) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("benchmark").master(f"local[{CORES}]")
    conf = {**SPARK_CONF, "spark.local.dir": str(place.scratch)}
    if jars:
        conf["spark.jars"] = ",".join(map(str, place.jars))
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _source(reader: Any, place: Place) -> Any:
    options = {f"kafka.{name}": value for name, value in place.kafka.items()}
    return reader.format("kafka").options(
        **options, **KAFKA_SOURCE, subscribe=place.topic, startingOffsets="earliest"
    )


def _decoded(batch: DataFrame, batch_id: int) -> DataFrame:
    """The 19 columns of a flight and the lineage, as exactbatch writes them."""
    schema = ", ".join(f"{c.name} {SPARK_TYPES[c.type]}" for c in flights.value.columns)
    return batch.select(
        F.from_json(F.col("value").cast("string"), schema).alias("flight_"),
        F.col("topic").alias("kafka_topic"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        F.col("timestamp").alias("kafka_timestamp"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    ).select("flight_.*", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "batch_id")


def _jdbc(place: Place) -> tuple[str, dict[str, str]]:
    """URL and options; the driver takes no libpq string."""
    dsn = parse_dsn(place.postgres)
    url = f"jdbc:postgresql://{dsn['host']}:{dsn['port']}/{dsn['dbname']}?reWriteBatchedInserts=true"
    return url, {**JDBC, "user": dsn["user"], "password": dsn.get("password", "")}


SPARK_NOOP = Way(name="spark_noop", title="Spark Kafka source → noop", target=None, open=spark_noop)
AVAILABLE_NOW = Way(
    name="available_now_jdbc",
    title="AvailableNow + foreachBatch + JDBC",
    target="public.flight_jdbc",
    open=available_now_jdbc,
)
EXACTBATCH = Way(
    name="exactbatch",
    title="exactbatch (plan, stage, publish)",
    target="public.flight",
    open=exactbatch_batch,
)
EXACTBATCH_PARTITION = Way(
    name="exactbatch_partition",
    title='exactbatch, commit="partition"',
    target="public.flight_partition",
    open=exactbatch_partition,
)
EXACTBATCH_SQL = Way(
    name="exactbatch_sql",
    title="exactbatch, transformed by a query",
    target="public.flight_sql",
    open=exactbatch_sql,
)
EXACTBATCH_UPSERT = Way(
    name="exactbatch_upsert",
    title="exactbatch, Upsert",
    target="public.flight_upsert",
    open=exactbatch_upsert,
    derived=("_change",),
)
EXACTBATCH_AGGREGATE = Way(
    name="exactbatch_aggregate",
    title="exactbatch, Aggregate",
    target="public.flight_aggregate",
    open=exactbatch_aggregate,
    derived=("_partial", "_watermark"),
)
SINKS = (EXACTBATCH_PARTITION, EXACTBATCH_SQL, EXACTBATCH_UPSERT, EXACTBATCH_AGGREGATE)
WAYS = (SPARK_NOOP, AVAILABLE_NOW, EXACTBATCH, *SINKS)
