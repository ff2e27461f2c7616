"""Planning tells what it cannot plan: a record from the future, a group that never read, an old broker."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition

from exactbatch import Pipeline
from exactbatch.cli import render
from exactbatch.errors import ReplayRefused
from exactbatch.kafka.broker import KafkaBroker, _topic_id
from exactbatch.kafka.identity import is_named, named_id
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]
T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NO_LIMIT = str(2**63 - 1)


def produced(topic: Topic, *days: float) -> None:
    for day in days:
        topic.produce(record(1), timestamp=round((T0 + day * DAY).timestamp() * 1000))


def day(number: int, days: int = 1) -> ReplayRequest:
    return ReplayRequest(window=(T0 + number * DAY, T0 + (number + days) * DAY))


def test_window_that_ends_at_record_from_future_is_refused(
    connection: Any, kafka_log: KafkaBroker, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(retention_ms="-1", message_timestamp_after_max_ms=NO_LIMIT)
    produced(topic, 0.1, 0.5, 3700.25, 1.1, 1.5, 2.2, 3.5)
    pipeline = make_pipeline(topic, start="latest")
    assert freeze_advance(connection, kafka_log, pipeline, origin="cli") is None  # now all of it is history

    def planned(request: ReplayRequest) -> list[tuple[int, int]]:
        batch_id = freeze_replay(connection, kafka_log, pipeline, request, origin="cli").batch_id
        if batch_id is None:
            return []
        with transaction(connection) as cursor:
            cursor.execute(
                "select from_offset, until_offset from exactbatch.batch_range where batch_id = %s",
                (batch_id,),
            )
            return [tuple(row) for row in cursor.fetchall()]

    for request in (day(0), day(1), day(2), day(3), day(0, 4)):
        with pytest.raises(ReplayRefused) as caught:
            planned(request)
        message = str(caught.value)
        assert f"{topic.name}[0] offset 2: the record has a timestamp in the future" in message
        assert "2036-02-18 06:00:00 UTC, and 4 processed offsets follow it" in message
        assert f"--range {topic.name}:0:FROM-UNTIL" in message
    with transaction(connection) as cursor:
        cursor.execute("select from exactbatch.time_boundary")
        assert cursor.fetchall() == []  # nothing wrong is kept
    # A window that is not over yet ends at the stored offset, whatever stands before it.
    assert planned(ReplayRequest(window=(T0, datetime.now(UTC) + DAY))) == [(0, 7)]


def test_window_without_records_is_empty_and_one_up_to_newest_record_is_whole(
    connection: Any, kafka_log: KafkaBroker, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    """No alarm without need: sparse records, clocks that run a little ahead, and a last record from the future."""
    topic = make_topic(retention_ms="-1", message_timestamp_after_max_ms=NO_LIMIT)
    produced(topic, 0.1, 5.5, 4.9, 5.6)
    soon = round((datetime.now(UTC) + timedelta(minutes=50)).timestamp() * 1000)
    topic.produce(record(1), record(2), timestamp=soon)
    produced(topic, 3700)
    pipeline = make_pipeline(topic, start="latest")
    assert freeze_advance(connection, kafka_log, pipeline, origin="cli") is None
    for request, empty in ((day(0), False), (day(2), True), (day(5), False), (day(7), True)):
        batch_id = freeze_replay(connection, kafka_log, pipeline, request, origin="cli").batch_id
        assert (batch_id is None) == empty


def test_partition_without_committed_offset_is_shown_to_start_at_its_earliest(
    connection: Any, kafka_log: KafkaBroker, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(2)
    for partition in (0, 1):
        topic.produce(record(1), record(2), record(3), partition=partition)
    consumer = Consumer({**topic.properties, "group.id": f"g{topic.name}"})
    consumer.commit(offsets=[TopicPartition(topic.name, 1, 2)], asynchronous=False)
    consumer.close()
    pipeline = make_pipeline(topic, start=f"group:g{topic.name}")
    plan, log = preview_advance(connection, kafka_log, pipeline)
    assert [seed.next_offset for seed in plan.seeds] == [0, 2]
    assert plan.unnamed == ((topic.name, 0),)
    shown = list(render.plan_table(pipeline, plan, log).columns[1].cells)
    assert shown[:2] == ["starts at its earliest: start has no offset for it", "starts"]


@pytest.mark.parametrize("described", [{}, {"topic_id": None}, {"topic_id": UUID(int=0)}])
def test_the_name_stands_for_a_topic_id_that_is_none_or_zero(described: Any) -> None:
    assert _topic_id({"name": "t", **described}) == named_id("t")
    assert is_named("t", named_id("t"))
    assert not is_named("u", named_id("t"))
