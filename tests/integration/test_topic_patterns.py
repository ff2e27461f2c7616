"""Topics by pattern: which topics join, when, and from where; what the tools show of them."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from exactbatch import Pipeline, TopicPattern
from exactbatch.audit.run_audit import audit
from exactbatch.cli import render
from exactbatch.errors import ConfigurationError, TopicMissing
from exactbatch.ledger import Ledger
from exactbatch.operations.lag import load_lag
from exactbatch.operations.overview import load_summaries
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.topics import Topic, an_hour_ago, record


class Family:
    """Topics with a common prefix, and a pipeline that loads all of them."""

    def __init__(self, world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> None:
        self.prefix = f"shop{uuid.uuid4().hex[:8]}"
        self._make_topic, self._make_pipeline, self.world = make_topic, make_pipeline, world

    def topic(self, name: str, partitions: int = 1) -> Topic:
        return self._make_topic(partitions, name=f"{self.prefix}.{name}")

    def pipeline(self, **changes: Any) -> Pipeline:
        topics = TopicPattern(rf"{self.prefix}\..*")
        return self._make_pipeline(Topic(self.prefix, {}), **{"topics": topics, **changes})

    def ids(self, pipeline: Pipeline) -> list[int]:
        table = find_writer(pipeline.traits).tables[-1].identifier.as_string(self.world.connection)
        return [each for (each,) in self.world.rows(f"select id from {table} order by id")]


@pytest.fixture
def family(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Family:
    return Family(world, make_topic, make_pipeline)


def joined(world: BatchRunner, pipeline: Pipeline) -> list[tuple[str, str, int | None]]:
    rows = world.rows(
        "select topic, start, batch_id from exactbatch.joined_topic where pipeline = %s order by topic",
        pipeline.name,
    )
    return [tuple(row) for row in rows]


def test_a_topic_that_matches_joins_at_the_next_plan(world, family):
    orders = family.topic("orders", 2)
    orders.produce(record(1), record(2))
    pipeline = family.pipeline()
    first = world.run(pipeline).batch.batch_id
    customers = family.topic("customers")
    customers.produce(record(3))
    orders.produce(record(4), partition=1)
    planned, partitions = preview_advance(world.connection, world.log, pipeline)
    assert [topic for topic, _ in planned.joining] == [customers.name]
    assert "joins" in render.plan_table(pipeline, planned, partitions).columns[1].cells
    second = world.run(pipeline).batch.batch_id
    assert family.ids(pipeline) == [1, 2, 3, 4]
    assert joined(world, pipeline) == [
        (customers.name, "earliest", second),
        (orders.name, "earliest", first),
    ]
    assert world.is_exact(pipeline)
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("start", ["latest", "mapping"])
def test_a_topic_that_joins_later_loses_no_record_whatever_the_start(world, family, start):
    orders = family.topic("orders")
    orders.produce(record(1), record(2))
    pipeline = family.pipeline(start={orders.name: {0: 2}} if start == "mapping" else start)
    assert freeze_advance(world.connection, world.log, pipeline, origin="cli") is None
    customers = family.topic("customers")
    customers.produce(record(3))
    orders.produce(record(4))
    batch = world.run(pipeline).batch
    assert family.ids(pipeline) == [3, 4]
    assert joined(world, pipeline)[0] == (
        customers.name,
        "offsets" if start == "mapping" else "earliest",
        batch.batch_id,
    )
    assert joined(world, pipeline)[1][1:] == ("offsets" if start == "mapping" else "latest", None)
    assert world.is_exact(pipeline)


def test_a_pattern_that_matches_nothing_is_an_error(world, family):
    pipeline = family.pipeline()
    with pytest.raises(TopicMissing, match="no topic matches"):
        world.plan(pipeline)
    (lag,) = load_lag(world.connection, world.log, [pipeline.name])
    assert lag.missing is not None


def test_a_topic_that_disappears_is_an_error_until_the_pattern_leaves_it_out(world, family, admin):
    orders, customers = family.topic("orders"), family.topic("customers")
    orders.produce(record(1))
    customers.produce(record(2))
    pipeline = family.pipeline()
    world.run(pipeline)
    admin.delete_topics([customers.name])[customers.name].result(30)
    world.log._settle = 1.0
    orders.produce(record(3))
    with pytest.raises(TopicMissing, match=f"'{customers.name}'. It existed before"):
        world.plan(pipeline)
    (lag,) = load_lag(world.connection, world.log, [pipeline.name])
    assert lag.missing is not None
    without = replace(pipeline, topics=TopicPattern(rf"{family.prefix}\.(?!customers$).*"))
    world.run(without)
    assert family.ids(without) == [1, 2, 3]
    assert [each.log.topic for each in load_status(world.connection, world.log, without).partitions] == [
        orders.name
    ]
    assert audit(without, world.settings).partitions[0].topic == orders.name


def test_the_tools_show_topics_that_have_joined_and_those_that_will(world, family):
    orders = family.topic("orders")
    orders.produce(record(1))
    pipeline = family.pipeline()
    world.run(pipeline)
    family.topic("customers").produce(record(2))
    status = load_status(world.connection, world.log, pipeline)
    assert [(each.log.topic.removeprefix(family.prefix), each.lag) for each in status.partitions] == [
        (".customers", 1),
        (".orders", 0),
    ]
    assert [each.topic for each in status.joined] == [orders.name]
    (lag,) = load_lag(world.connection, world.log, [pipeline.name])
    assert lag.lag == 1
    summary = load_summaries(world.connection, [pipeline.name])[pipeline.name]
    assert summary.topics == [orders.name]


def test_replays_of_ranges_and_of_a_batch_are_exact(world, family):
    orders, customers = family.topic("orders"), family.topic("customers")
    orders.produce(record(1), record(2))
    customers.produce(record(3))
    pipeline = family.pipeline()
    batch = world.run(pipeline).batch
    for request in (
        ReplayRequest(ranges=(RequestedRange(orders.name, 0, 1, 2),)),
        ReplayRequest(batch_ids=(batch.batch_id,)),
    ):
        batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
        assert batch_id is not None
        world.process(pipeline, batch_id)
        assert family.ids(pipeline) == [1, 2, 3]
        assert world.is_exact(pipeline)


def test_a_window_spans_all_topics_that_have_joined(world, family):
    orders = family.topic("orders")
    orders.produce(record(1), record(2), timestamp=an_hour_ago())
    pipeline = family.pipeline()
    world.run(pipeline)
    customers = family.topic("customers")
    customers.produce(record(3), timestamp=an_hour_ago())
    world.run(pipeline)
    now = datetime.now(UTC)
    request = ReplayRequest(window=(now - timedelta(hours=2), now - timedelta(minutes=30)))
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.rows == 3
    assert world.is_exact(pipeline)


def test_an_audit_finds_a_planted_row_of_a_topic_that_matches(world, family):
    orders = family.topic("orders")
    orders.produce(record(1))
    pipeline = family.pipeline()
    world.run(pipeline)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    world.execute(f"update {table} set name = 'planted'")
    assert not audit(pipeline, world.settings, values=True).is_exact


def test_two_pipelines_with_one_target_may_not_both_load_a_topic_that_joins(world, family, make_pipeline):
    orders = family.topic("orders")
    orders.produce(record(1))
    pipeline = family.pipeline()
    named = replace(pipeline, name=f"{family.prefix}-named", topics=(orders.name,))
    with (
        pytest.raises(ConfigurationError, match=f"both load '{orders.name}' into the table"),
        transaction(world.connection),
    ):
        Ledger(world.connection).registry.register(named)
    # Whether two patterns have a topic in common is not known before one of them has loaded it: then neither runs.
    other = replace(pipeline, name=f"{family.prefix}-other", topics=TopicPattern(rf"{family.prefix}\.o.*"))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(other)
    batch_id = world.plan(pipeline)
    for refused in (lambda: world.process(pipeline, batch_id), lambda: world.plan(other)):
        with pytest.raises(ConfigurationError, match=f"both load '{orders.name}' into the table"):
            refused()
    with transaction(world.connection):
        Ledger(world.connection).registry.register(replace(other, topics=TopicPattern("none")))
    world.process(pipeline, batch_id)
    assert family.ids(pipeline) == [1]


def test_a_pipeline_with_names_can_change_to_a_pattern(world, family, make_pipeline):
    orders = family.topic("orders")
    orders.produce(record(1))
    named = make_pipeline(orders, name=family.prefix, topics=(orders.name,), start="latest")
    assert freeze_advance(world.connection, world.log, named, origin="cli") is None
    pipeline = replace(named, topics=TopicPattern(rf"{family.prefix}\..*"))
    with transaction(world.connection):
        assert Ledger(world.connection).registry.register(pipeline)
    family.topic("customers").produce(record(2))
    world.run(pipeline)
    assert family.ids(pipeline) == [2]
    assert world.is_exact(pipeline)


def test_one_request_lists_thousands_of_partitions(world, family, monkeypatch):
    from kafka import KafkaAdminClient

    requests = []
    describe: Callable[..., Any] = KafkaAdminClient.describe_topics
    monkeypatch.setattr(
        KafkaAdminClient,
        "describe_topics",
        lambda self, topics=None: requests.append(topics) or describe(self, topics),
    )
    for number in range(20):
        family.topic(f"t{number}", 5)
    world.log.processed_partitions(world.log.loaded_topics(family.pipeline().topics, ()), ())
    assert len(requests) == 2
