"""Networks that cut, stall and swallow, between the program and Postgres and between it and Kafka.

Whatever the network does, a batch ends within a bounded time: with an error that can be tried again, or because
Spark has tried the task again by itself. Healed, the next try makes it exact. `make test-long` has every fault at
every moment with every way of a batch.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psycopg2.extensions
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch import Append, Json, Pipeline, Tuning
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.errors import RetryableError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.local.child_process import HOST
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.environment import LONG
from support.faults.proxy import (
    Cut,
    CutAfter,
    DropCommitAnswer,
    Fault,
    HalfOpen,
    Proxy,
    Refuse,
    Stall,
    proxied_broker,
)
from support.stacks import new_stack
from support.topics import Topic, record

pytestmark = pytest.mark.slow

TIMEOUT: Final = 3.0  # seconds, of everything that has one
# Seconds in which a try ends, however busy this machine is: each of two tries of a task may wait for the timeouts.
BOUND: Final = 90.0
FAULTS: Final = (
    Cut(),
    Stall(),
    Refuse(),
    Stall(("to_client",)),
    HalfOpen("to_client"),
    HalfOpen("to_server"),
)
# What Postgres is sent at a moment, by the way that a batch goes.
MOMENTS: Final = {
    "direct": {
        "plan": b"insert into exactbatch.batch ",
        "copy": b'copy "',
        "publish": b"update exactbatch.stored_offset",
    },
    "transformed": {"copy": b'copy "', "publish": b"update exactbatch.stored_offset"},
    "partition": {
        "copy": b'copy "',
        "locks": b"for share",
        "publish": b"with this as",
        "batch": b"update exactbatch.batch b",
    },
}
WAYS: Final[dict[str, dict[str, Any]]] = {
    "direct": {},
    "transformed": {"transform": "select * from records"},
    "partition": {"commit": "partition"},
}
# The commit that publishes, told by a statement of its transaction.
COMMITS: Final = {
    "direct": b"update exactbatch.stored_offset",
    "transformed": b"update exactbatch.stored_offset",
    "partition": b"update exactbatch.batch b",
    "a range of partition": b"with this as",
    "plan": b"insert into exactbatch.batch ",
    "copy": b'copy "',
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[tuple[Proxy, dict[str, Any]]]:
    """A proxy before a broker of this module, and the properties that go past it."""
    stack = new_stack("network")
    try:
        with proxied_broker(stack.broker) as proxy:
            yield proxy, stack.kafka_properties
    finally:
        stack.down(delete=True)


class Net:
    """A program behind proxies. What the test itself looks at does not go through them."""

    def __init__(self, spark: Any, connection: Any, database: str, kafka: Any, postgres: Proxy) -> None:
        self.spark, self.connection, self.postgres = spark, connection, postgres
        self.kafka, self._properties = kafka
        # What librdkafka does by itself: try again, and for how long.
        through = {"bootstrap.servers": self.kafka.address, "socket.connection.setup.timeout.ms": 2000}
        self.settings = Settings(
            kafka=through, postgres=psycopg2.extensions.make_dsn(database, port=postgres.port)
        )
        self.direct = Settings(kafka=self._properties, postgres=database)
        self._topics = 0

    def pipeline(self, *, records: int = 20, size: int = 1, **changes: Any) -> Pipeline:
        """A pipeline over a new topic of two partitions with this number of records in each."""
        self._topics += 1
        name = f"{psycopg2.extensions.parse_dsn(self.direct.postgres)['dbname']}-{self._topics}"
        admin = AdminClient(dict(self._properties))
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
        deadline = time.monotonic() + 30
        while name not in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, f"the broker does not know {name}"
            time.sleep(0.05)
        pipeline = Pipeline(
            name=name,
            topics=(name,),
            value=Json("id int, name text"),
            sink=Append(f'public."{name}"'),
            tuning=Tuning(
                read_timeout=f"{TIMEOUT:.0f} seconds",
                lock_timeout=f"{TIMEOUT:.0f} seconds",
                statement_timeout=f"{TIMEOUT:.0f} seconds",
            ),
        )
        pipeline = replace(pipeline, **changes)
        with transaction(self.connection):
            Ledger(self.connection).registry.register(pipeline)
        self.produce(pipeline, records, size)
        return pipeline

    def produce(self, pipeline: Pipeline, records: int = 20, size: int = 1) -> None:
        """Send this number of records to each partition."""
        topic = Topic(pipeline.topic_names[0], dict(self._properties))
        for partition in (0, 1):
            topic.produce(*[record(n, "x" * size) for n in range(records)], partition=partition)

    def plan(self, pipeline: Pipeline) -> int:
        """Plan as `exactbatch run` does, with a connection of its own."""
        own = connect(self.settings.postgres, application="plan", timeout=TIMEOUT, statement_timeout=TIMEOUT)
        with closing(own):
            batch_id = freeze_advance(own, KafkaBroker(self.settings.kafka), pipeline, origin="cli")
        assert batch_id is not None
        return batch_id

    def process(self, pipeline: Pipeline, batch_id: int) -> Published:
        """One try."""
        return process_batch(DriverEngine(self.spark), pipeline, batch_id, self.settings)

    def fails(self, what: Callable[[], Any]) -> str:
        """The message of the error, which can be tried again, that this ends with within the bound; or ""."""
        began = time.monotonic()
        try:
            what()
            said = ""
        except RetryableError as error:
            said = f"{type(error).__name__}: {error}"
        assert time.monotonic() - began < BOUND
        return said

    def check(self, pipeline: Pipeline, rows: int) -> None:
        """The auditor finds nothing, and as many rows as there should be."""
        found = audit(pipeline, self.direct)
        assert found.is_exact, found
        assert found.rows == rows


@pytest.fixture
def net(spark: Any, connection: Any, database: str, kafka: tuple[Proxy, dict[str, Any]]) -> Iterator[Net]:
    server = HOST, int(psycopg2.extensions.parse_dsn(database)["port"])
    with Proxy(server, postgres=True) as postgres:
        yield Net(spark, connection, database, kafka, postgres)
    kafka[0].heal()


def _each(core: set[tuple[str, Fault]]) -> list[Any]:
    return [
        pytest.param(way, fault, id=f"{way}-{fault}")
        for way in WAYS
        for fault in FAULTS
        if LONG or (way, fault) in core
    ]


@pytest.mark.parametrize(
    ("way", "fault"),
    _each(
        {
            ("direct", Cut()),
            ("partition", Cut()),
        }
    ),
)
def test_what_happens_to_postgres_connections_ends_try_and_next_is_exact(
    net: Net, way: str, fault: Fault
) -> None:
    pipeline = net.pipeline(**WAYS[way])
    rows = 0
    for moment, statement in MOMENTS[way].items():
        rows += 40
        if rows > 40:
            net.produce(pipeline)
        batch_id = 0 if moment == "plan" else net.plan(pipeline)
        net.postgres.inject(fault, when=statement)
        said = net.fails(
            partial(net.process, pipeline, batch_id) if batch_id else partial(net.plan, pipeline)
        )
        assert net.postgres.fired.is_set(), f"{moment} did not come"
        # Of tasks that fail once, Spark makes no more than another try.
        assert said or (moment in ("copy", "locks", "publish") and way != "direct") or moment == "copy"
        assert not said.startswith("UnexpectedError")
        if said and isinstance(fault, Stall | HalfOpen):
            # A server that hears nothing ends the transaction, and may still be heard.
            heard = ("the connection to Postgres was lost",) if fault == HalfOpen("to_server") else ()
            silent = ("to answer", "did not answer", "did not respond", "cannot connect to Postgres")
            assert any(each in said for each in (*silent, *heard)), said
        net.postgres.heal()
        batch_id = batch_id or net.plan(pipeline)
        assert net.process(pipeline, batch_id).batch.status == "committed"
        net.check(pipeline, rows)


@pytest.mark.parametrize("commit", COMMITS if LONG else ("direct", "a range of partition"))
def test_a_commit_whose_answer_does_not_arrive_is_recognized(net: Net, commit: str) -> None:
    """The batch, the range, the staged rows or the plan is there, and nothing is written again."""
    way = "direct" if commit in ("plan", "copy") else commit.split()[-1]
    pipeline = net.pipeline(**WAYS[way])
    batch_id = 0 if commit == "plan" else net.plan(pipeline)
    net.postgres.inject(DropCommitAnswer(COMMITS[commit]))
    said = net.fails(partial(net.process, pipeline, batch_id) if batch_id else partial(net.plan, pipeline))
    assert net.postgres.fired.is_set()
    # Spark tries a task again by itself.
    assert bool(said) == (commit not in ("copy", "a range of partition")), said
    net.postgres.heal()
    if commit == "plan":
        assert "finds in the ledger whether the transaction was committed" in said
        batch_id = net.plan(pipeline)
    published = net.process(pipeline, batch_id)
    assert published.batch.status == "committed"
    assert published.wrote is (commit == "plan")
    net.check(pipeline, 40)


@pytest.mark.parametrize("way", WAYS if LONG else ("direct",))
def test_rows_that_are_cut_off_in_mid_copy_do_not_count(net: Net, way: str) -> None:
    pipeline = net.pipeline(records=2000, size=1000, **WAYS[way])
    batch_id = net.plan(pipeline)
    net.postgres.inject(CutAfter(1_500_000, "to_server"))
    net.fails(partial(net.process, pipeline, batch_id))
    assert net.postgres.fired.is_set()
    net.postgres.heal()
    assert net.process(pipeline, batch_id).batch.rows == 4000
    net.check(pipeline, 4000)


@pytest.mark.parametrize("fault", FAULTS if LONG else (Refuse(), Stall()), ids=str)
def test_broker_out_of_reach_fails_plan_and_nothing_is_planned(net: Net, fault: Fault) -> None:
    pipeline = net.pipeline()
    net.kafka.inject(fault, when=b"" if isinstance(fault, Refuse | Stall) else b"kafka-python")
    said = net.fails(partial(net.plan, pipeline))
    assert net.kafka.fired.is_set()
    assert "KafkaUnavailable: Kafka at" in said or isinstance(fault, Cut)
    net.kafka.heal()
    net.process(pipeline, net.plan(pipeline))
    net.check(pipeline, 40)


@pytest.mark.parametrize(
    ("way", "fault"),
    _each(
        {
            ("direct", Stall()),
            ("direct", Cut()),
            ("partition", Refuse()),
            ("transformed", Refuse()),
        }
    ),
)
def test_broker_that_goes_away_in_mid_read_fails_try_and_next_is_exact(
    net: Net, way: str, fault: Fault
) -> None:
    """After some of the records have come."""
    pipeline = net.pipeline(records=3000, size=1000, **WAYS[way])
    batch_id = net.plan(pipeline)
    net.kafka.inject(fault, after=2_000_000)
    said = net.fails(partial(net.process, pipeline, batch_id))
    assert net.kafka.fired.is_set()
    # librdkafka mends a cut by itself.
    assert said or isinstance(fault, Cut)
    net.kafka.heal()
    assert net.process(pipeline, batch_id).batch.rows == 6000
    net.check(pipeline, 6000)
