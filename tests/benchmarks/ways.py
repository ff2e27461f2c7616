"""The ways that are compared: each takes the same topic, in a warm Spark session of its own process."""

import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import connect
import hand_written
import reference
from psycopg2.extensions import parse_dsn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from shapes import CHANGED, CHANGES, FLIGHTS, NESTED, SHAPES, Shape
from topics import PARTITIONS

from exactbatch import Aggregate, Append, Count, Debezium, Json, Max, Min, Sum, Upsert, Window
from exactbatch.batch import job
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.spark import python_daemon
from exactbatch.batch.spark.class_archive import archive_folder, build_archive, with_archive
from exactbatch.batch.staging.shares import Engine
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect as connect_postgres
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from pipelines.flights import flights
from support.logins import java_properties, password_of

CORES = 2
# The same for every way: what a Spark batch needs on one machine, and no more.
SPARK_CONF = {
    "spark.pyspark.python": sys.executable,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
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
SPARK_TYPES = {
    "integer": "int",
    "text": "string",
    "timestamp with time zone": "timestamp",
    "double precision": "double",
    "jsonb": "string",
}
FLIGHT_KEY = ("time_hour", "carrier", "flight")


@dataclass(frozen=True, kw_only=True)
class Place:
    """What every way is given: where the servers and the schema registry are, and which topic to read."""

    kafka: Mapping[str, Any]
    postgres: str
    topic: str
    jars: tuple[Path, ...]
    connect_jars: tuple[Path, ...]
    scratch: Path
    shape: Shape = FLIGHTS
    rows: int = 0
    registry: str = ""

    @property
    def value(self) -> Json | Debezium:
        """The format of the values, with the address of the registry if they need one."""
        value = self.shape.value
        needs_registry = isinstance(value, Debezium) and value.registry is not None
        return replace(value, registry=self.registry) if needs_registry else value

    @property
    def columns(self) -> list[str]:
        """The names of the value columns."""
        return [column.name for column in self.shape.value.columns]


@dataclass(frozen=True, kw_only=True)
class Session:
    """A way that is open: `run` does all of its work once, and returns the seconds of its stages, where it has any."""

    run: Callable[[], Mapping[str, float] | None]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way. `start` makes, in a new process, what a round needs.

    open         does so for a peer
    pipeline     makes exactbatch's pipeline, whose target is audited after each round
    derived      suffixes of the tables beside a target that is derived from them, and whose rows are therefore no
                 copies of the records
    shapes       the names of the shapes that the way can load
    is_prepared  the target is a table with the value columns and the lineage columns, empty before each round
    copies       the target has one row for each record that is not malformed
    keys         the target has one row for each flight of the year
    """

    name: str
    title: str
    target: str | None
    open: Callable[[Place], Session] | None = field(default=None, repr=False)
    pipeline: Callable[[Place], Pipeline] | None = field(default=None, repr=False)
    derived: tuple[str, ...] = ()
    shapes: tuple[str, ...] = tuple(name for name in SHAPES if name not in CHANGED)
    is_prepared: bool = True
    copies: bool = True
    keys: bool = False

    def start(self, place: Place) -> Session:
        """Open the way in this process."""
        if self.pipeline is not None:
            return exactbatch_session(place, self.pipeline(place))
        assert self.open is not None
        return self.open(place)


def spark_noop(place: Place) -> Session:
    """Spark's own Kafka source, whose records go nowhere: the most that the source can give."""
    spark = spark_session(place, jars=True)

    def run() -> None:
        _source(spark.read, place).load().write.format("noop").mode("overwrite").save()

    return Session(run=run)


def available_now_jdbc(place: Place) -> Session:
    """Structured Streaming, trigger AvailableNow, foreachBatch, from_json and a JDBC append."""
    spark = spark_session(place, jars=True)
    checkpoint = place.scratch / "checkpoint"
    url, options = _jdbc(place)

    def write(batch: DataFrame, batch_id: int) -> None:
        _decoded(batch, batch_id, place).write.format("jdbc").mode("append").options(**options).option(
            "url", url
        ).option("dbtable", AVAILABLE_NOW.target).save()

    def run() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)  # every round starts from the earliest offsets
        stream = _source(spark.readStream, place).load().writeStream.foreachBatch(write)
        query = stream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()

    return Session(run=run)


def spark_read_jdbc(place: Place) -> Session:
    """A Spark batch without a checkpoint: spark.read, from_json and a JDBC append."""
    spark = spark_session(place, jars=True)
    url, options = _jdbc(place)

    def run() -> None:
        records = _decoded(_source(spark.read, place).load(), 0, place)
        writer = records.write.format("jdbc").mode("append").options(**options).option("url", url)
        writer.option("dbtable", SPARK_READ.target).save()

    return Session(run=run)


def hand_written_consumer(place: Place) -> Session:
    """The consumer of hand_written.py, one process for each core."""
    pool = _processes()

    def run() -> None:
        target = str(HAND_WRITTEN.target)
        hand_written.create_offsets(place.postgres, target)
        parts = [
            pool.submit(
                *(hand_written.load, place.kafka, place.postgres, place.topic, target, place.columns),
                *(part, CORES),
            )
            for part in range(CORES)
        ]
        for part in parts:
            part.result()

    return Session(run=run)


def limit(place: Place) -> Session:
    """The C consumer, and COPY of bytes that were encoded beforehand: one process for each core."""
    pool, target = _processes(), str(LIMIT.target)
    files = [place.scratch / f"{place.topic}_{part}.copy" for part in range(CORES)]
    hand_written.create_offsets(place.postgres, target)
    for part, file in enumerate(files):
        columns = place.columns
        hand_written.load(place.kafka, place.postgres, place.topic, target, columns, part, CORES)
        reference.encode(place.postgres, target, part, CORES, file)

    def run() -> None:
        parts = [
            pool.submit(
                *(reference.run, place.kafka, place.postgres, place.topic, target),
                *(range(PARTITIONS)[part::CORES], file),
            )
            for part, file in enumerate(files)
        ]
        if (records := sum(part.result() for part in parts)) != place.rows:
            raise RuntimeError(f"consumed {records:,} of {place.rows:,} records")

    return Session(run=run)


def debezium_insert(place: Place) -> Session:
    """Debezium's JDBC sink in Kafka Connect, inserting."""
    return _debezium(place, str(DEBEZIUM_INSERT.target), ())


def debezium_upsert(place: Place) -> Session:
    """Debezium's JDBC sink in Kafka Connect, with one row for each flight of the year."""
    return _debezium(place, str(DEBEZIUM_UPSERT.target), FLIGHT_KEY)


def _debezium(place: Place, target: str, key: tuple[str, ...]) -> Session:
    columns = place.shape.value.columns
    worker = connect.Worker(place.connect_jars, place.scratch / target, java_properties(place.kafka))
    flat = place.shape.flat
    config = connect.sink_config(place.postgres, place.topic, target, columns, CORES, key, flat=flat)

    def run() -> None:
        connect.create_target(place.postgres, target, columns, key)
        name = f"{target}-{time.time_ns()}"
        connect.load(worker, name, config, place.kafka, place.rows)

    return Session(run=run)


def _processes() -> ProcessPoolExecutor:
    """A process for each core, each of which has started."""
    pool = ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn"))
    list(pool.map(time.sleep, [0.5] * CORES))
    return pool


def one_transaction(place: Place) -> Pipeline:
    """A pipeline like the project's own, over the benchmark's topic and for its shape."""
    return replace(
        flights,
        name=place.topic,
        topics=(place.topic,),
        value=place.value,
        sink=Append(str(EXACTBATCH.target)),
        max_reject_share=2 * place.shape.bad or None,
    )


def by_partition(place: Place) -> Pipeline:
    """With commit="partition": range by range."""
    return _changed(place, EXACTBATCH_PARTITION, commit="partition")


def in_partitions(place: Place) -> Pipeline:
    """With layout="by_batch": what is staged becomes a partition of the target."""
    return _changed(
        place, EXACTBATCH_BY_BATCH, sink=Append(str(EXACTBATCH_BY_BATCH.target), layout="by_batch")
    )


def queried(place: Place) -> Pipeline:
    """With a transform that changes nothing: what the way through the JVM costs."""
    return _changed(place, EXACTBATCH_SQL, transform="select * from records where kafka_offset >= 0")


def upserted(place: Place) -> Pipeline:
    """With one row for each flight of the year, of which the topic has several records."""
    sink = Upsert(str(EXACTBATCH_UPSERT.target), key=FLIGHT_KEY, version=_version(place))
    return _changed(place, EXACTBATCH_UPSERT, sink=sink)


def upserted_without_history(place: Place) -> Pipeline:
    """The same, without a table of changes."""
    sink = Upsert(str(EXACTBATCH_LATEST.target), key=FLIGHT_KEY, version=_version(place), history=False)
    return _changed(place, EXACTBATCH_LATEST, sink=sink)


def _version(place: Place) -> str | None:
    """The order of changes: the positions of Debezium's events, which need no column."""
    return None if place.shape.name in CHANGED else "hour"


def aggregated(place: Place) -> Pipeline:
    """With the delays by airport and hour."""
    measures = {
        "flights": Count(),
        "delay": Sum("dep_delay"),
        "best": Min("dep_delay"),
        "worst": Max("dep_delay"),
    }
    by = ("origin", Window("time_hour", "1 hour", "its_hour"))
    sink = Aggregate(str(EXACTBATCH_AGGREGATE.target), group_by=by, aggregates=measures)
    return _changed(place, EXACTBATCH_AGGREGATE, sink=sink)


def _changed(place: Place, way: Way, **changes: Any) -> Pipeline:
    own = {"name": f"{place.topic}_{way.name}", "sink": Append(str(way.target))}
    return replace(one_transaction(place), **{**own, **changes})


def exactbatch_session(place: Place, pipeline: Pipeline) -> Session:
    """exactbatch: plan a batch over the topic, and process it."""
    # As `exactbatch run` does. Spark ends workers that were idle for a minute; the daemon forks others at once.
    build_archive(archive_folder())
    os.environ.update(with_archive(os.environ, is_transformed=pipeline.is_transformed, offsets=place.rows))
    spark = spark_session(place, properties=python_daemon.PROPERTIES)
    settings = Settings(kafka=place.kafka, postgres=place.postgres)
    register(place, pipeline)

    def run() -> Mapping[str, float]:
        return run_batch(DriverEngine(spark), pipeline, settings)

    return Session(run=run)


def run_batch(engine: Engine, pipeline: Pipeline, settings: Settings) -> Mapping[str, float]:
    """What a DAG run does: plan, then process the batch; the seconds of each, and of the publish step."""
    started = time.perf_counter()
    ledger = connect_postgres(settings.postgres, application="benchmark")
    batch_id = freeze_advance(ledger, KafkaBroker(settings.kafka), pipeline, origin="cli")
    ledger.close()
    assert batch_id is not None
    planned = time.perf_counter()
    with _timed_publish() as publish:
        process_batch(engine, pipeline, batch_id, settings)
    ended = time.perf_counter()
    seconds = {"plan": planned - started, "process": ended - planned}
    return seconds if not publish else {**seconds, "publish": sum(publish)}


@contextmanager
def _timed_publish() -> Iterator[list[float]]:
    """Measure the calls of publish() in the block, in seconds."""
    seconds: list[float] = []
    publish = job.publish

    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return publish(*arguments, **named)
        finally:
            seconds.append(time.perf_counter() - started)

    job.publish = timed
    try:
        yield seconds
    finally:
        job.publish = publish


def register(place: Place, pipeline: Pipeline) -> None:
    """What `exactbatch register` does."""
    connection = connect_postgres(place.postgres, application="benchmark")
    migrate(connection)
    with transaction(connection):
        Ledger(connection).registry.register(pipeline)
    connection.close()


def spark_session(
    place: Place, *, jars: bool = False, cores: int = CORES, properties: Mapping[str, str] = {}
) -> SparkSession:
    """Start Spark in this process, with the jars of its Kafka source and of JDBC if they are needed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("benchmark").master(f"local[{cores}]")
    conf = {**SPARK_CONF, **properties, "spark.local.dir": str(place.scratch)}
    if jars:
        conf["spark.jars"] = ",".join(map(str, place.jars))
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _source(reader: Any, place: Place) -> Any:
    options = {f"kafka.{name}": value for name, value in java_properties(place.kafka).items()}
    return reader.format("kafka").options(
        **options, **KAFKA_SOURCE, subscribe=place.topic, startingOffsets="earliest"
    )


def _decoded(batch: DataFrame, batch_id: int, place: Place) -> DataFrame:
    """The columns of the values and the lineage, as exactbatch writes them."""
    schema = ", ".join(f"`{c.name}` {SPARK_TYPES.get(c.type, c.type)}" for c in place.shape.value.columns)
    return batch.select(
        F.from_json(F.col("value").cast("string"), schema).alias("value_"),
        F.col("topic").alias("kafka_topic"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        F.col("timestamp").alias("kafka_timestamp"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    ).select("value_.*", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "batch_id")


def _jdbc(place: Place) -> tuple[str, dict[str, str]]:
    """URL and options; the driver takes no libpq string."""
    dsn = parse_dsn(place.postgres)
    url = f"jdbc:postgresql://{dsn['host']}:{dsn['port']}/{dsn['dbname']}?reWriteBatchedInserts=true&stringtype=unspecified"
    return url, {**JDBC, "user": dsn["user"], "password": password_of(place.postgres)}


FLIGHTS_ONLY = (FLIGHTS.name,)
# Those that do not need to leave out malformed records.
ALL_GOOD = tuple(name for name, shape in SHAPES.items() if not shape.bad and shape.flat)
FLAT = tuple(name for name, shape in SHAPES.items() if shape.flat)
LIMIT = Way(
    name="limit",
    title="reference: C consumer, COPY of encoded bytes",
    target="public.flight_limit",
    open=limit,
    shapes=FLAT,
)
SPARK_NOOP = Way(name="spark_noop", title="Spark Kafka source → noop", target=None, open=spark_noop)
AVAILABLE_NOW = Way(
    name="available_now_jdbc",
    title="AvailableNow + foreachBatch + JDBC",
    target="public.flight_jdbc",
    open=available_now_jdbc,
    shapes=ALL_GOOD,
)
SPARK_READ = Way(
    name="spark_read_jdbc",
    title="spark.read + JDBC",
    target="public.flight_read",
    open=spark_read_jdbc,
    shapes=FLIGHTS_ONLY,
)
HAND_WRITTEN = Way(
    name="hand_written",
    title="hand-written consumer",
    target="public.flight_hand_written",
    open=hand_written_consumer,
    shapes=FLAT,
)
DEBEZIUM_INSERT = Way(
    name="debezium_insert",
    title="Debezium's JDBC sink, insert",
    target="public.flight_connect",
    open=debezium_insert,
    shapes=FLIGHTS_ONLY,
    is_prepared=False,
)
DEBEZIUM_UPSERT = Way(
    name="debezium_upsert",
    title="Debezium's JDBC sink, upsert",
    target="public.flight_connect_upsert",
    open=debezium_upsert,
    shapes=(FLIGHTS.name, CHANGES.name),
    is_prepared=False,
    copies=False,
    keys=True,
)
EXACTBATCH = Way(
    name="exactbatch",
    title="exactbatch (plan, stage, publish)",
    target="public.flight",
    pipeline=one_transaction,
)
EXACTBATCH_PARTITION = Way(
    name="exactbatch_partition",
    title='exactbatch, commit="partition"',
    target="public.flight_partition",
    pipeline=by_partition,
    # Postgres casts values of type jsonb from text, which commit="partition" refuses.
    shapes=tuple(name for name in SHAPES if name not in (NESTED.name, *CHANGED)),
)
EXACTBATCH_BY_BATCH = Way(
    name="exactbatch_by_batch",
    title='exactbatch, layout="by_batch"',
    target="public.flight_by_batch",
    pipeline=in_partitions,
)
EXACTBATCH_SQL = Way(
    name="exactbatch_sql",
    title="exactbatch, transformed by a query",
    target="public.flight_sql",
    pipeline=queried,
    shapes=FLIGHTS_ONLY,
)
EXACTBATCH_UPSERT = Way(
    name="exactbatch_upsert",
    title="exactbatch, Upsert",
    target="public.flight_upsert",
    pipeline=upserted,
    shapes=(FLIGHTS.name, *CHANGED),
    derived=("_change",),
    copies=False,
)
EXACTBATCH_LATEST = Way(
    name="exactbatch_latest",
    title="exactbatch, Upsert without a history",
    target="public.flight_latest",
    pipeline=upserted_without_history,
    shapes=(FLIGHTS.name, *CHANGED),
    derived=("_deleted",),
    copies=False,
    keys=True,
)
EXACTBATCH_AGGREGATE = Way(
    name="exactbatch_aggregate",
    title="exactbatch, Aggregate",
    target="public.flight_aggregate",
    pipeline=aggregated,
    shapes=FLIGHTS_ONLY,
    derived=("_partial", "_watermark"),
    copies=False,
)
SINKS = (
    EXACTBATCH_PARTITION,
    EXACTBATCH_BY_BATCH,
    EXACTBATCH_SQL,
    EXACTBATCH_UPSERT,
    EXACTBATCH_LATEST,
    EXACTBATCH_AGGREGATE,
)
PEERS = (AVAILABLE_NOW, SPARK_READ, HAND_WRITTEN, DEBEZIUM_INSERT, DEBEZIUM_UPSERT)
WAYS = (LIMIT, SPARK_NOOP, *PEERS, EXACTBATCH, *SINKS)
