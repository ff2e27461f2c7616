"""Planning an advance against a real broker and a real ledger."""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from exactbatch import Limits, Pipeline, Upsert
from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    NotRegistered,
    OffsetsLost,
    StoredOffsetBeyondLog,
    StoredOffsetsMoved,
    TopicMissing,
    TopicRecreated,
)
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import DagRun, Ledger
from exactbatch.model import LogPartition
from exactbatch.operations.report import load_report
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    """A topic with two partitions of ten and three records."""
    topic = make_topic(2)
    topic.produce(*map(record, range(10)))
    topic.produce(*map(record, range(3)), partition=1)
    return topic


def advance(connection: Any, log: KafkaBroker, pipeline: Pipeline, run: str | None = None) -> int | None:
    return freeze_advance(connection, log, pipeline, origin="cli", run=run and DagRun("dag", run))


def planned(
    connection: Any, log: KafkaBroker, pipeline: Pipeline, run: str | None = None
) -> list[tuple[int, int, int]]:
    """Plan; the ranges as (partition, from_offset, until_offset)."""
    batch_id = advance(connection, log, pipeline, run)
    assert batch_id is not None
    with transaction(connection):
        return [
            (r.partition, r.from_offset, r.until_offset)
            for r in Ledger(connection).batches.read_ranges(batch_id)
        ]


def commit(connection: Any, pipeline: Pipeline, batch_id: int | None) -> None:
    """What publish does to the ledger."""
    assert batch_id is not None
    with transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batches.read(batch_id)
        assert ledger.plans.advance_stored_offsets(batch)
        ledger.coverage.add(batch)
        ledger.batches.mark_committed(batch, rows=0, rejected=0, tombstones=0, records=[])


def stands(connection: Any, pipeline: Pipeline) -> list[int]:
    """The stored offsets by partition."""
    with transaction(connection):
        return [each.next_offset for each in Ledger(connection).plans.read_stored_offsets(pipeline)]


def refused(expected: type[ExactbatchError], *arguments: Any) -> str:
    with pytest.raises(expected) as caught:
        advance(*arguments)
    return str(caught.value)


def test_first_run_plans_whole_log_and_stores_where_it_begins(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    assert planned(connection, kafka_log, pipeline) == [(0, 0, 10), (1, 0, 3)]
    assert stands(connection, pipeline) == [0, 0]


def test_first_run_from_latest_stores_where_it_begins_although_its_plan_is_empty(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    """Else the records between this run and the next one would never be processed."""
    pipeline = make_pipeline(topic, start="latest")
    assert advance(connection, kafka_log, pipeline) is None
    assert stands(connection, pipeline) == [10, 3]
    topic.produce(record(10))
    assert planned(connection, kafka_log, pipeline) == [(0, 10, 11)]


def test_a_pipeline_starts_at_the_first_record_of_a_time(connection, kafka_log, make_topic, make_pipeline):
    topic = make_topic(3)
    for hour in (5, 8, 6, 9):
        topic.produce(record(hour), timestamp=int(datetime(2026, 1, 5, hour, tzinfo=UTC).timestamp() * 1000))
    topic.produce(record(1), partition=1, timestamp=1000)
    pipeline = make_pipeline(topic, start="2026-01-05T08:00:00")
    assert planned(connection, kafka_log, pipeline) == [(0, 1, 4)]
    assert stands(connection, pipeline) == [1, 1, 0]
    topic.produce(record(2), partition=1, timestamp=2000)
    assert planned(connection, kafka_log, pipeline) == [(0, 1, 4), (1, 1, 2)]


def test_a_start_in_the_future_is_refused(connection, kafka_log, topic, make_pipeline):
    pipeline = make_pipeline(topic, start="2100-01-01T00:00:00+02:00")
    message = refused(ConfigurationError, connection, kafka_log, pipeline)
    assert "start='2100-01-01T00:00:00+02:00' is in the future" in message
    assert stands(connection, pipeline) == []


def test_a_pipeline_takes_over_where_a_consumer_group_stands(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    group = uuid.uuid4().hex
    consumer = Consumer({**topic.properties, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 4)], asynchronous=False)
    consumer.close()
    pipeline = make_pipeline(topic, start=f"group:{group}")
    assert planned(connection, kafka_log, pipeline) == [(0, 4, 10), (1, 0, 3)]


def test_a_group_without_offsets_is_not_taken_for_a_first_run(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, start="group:nobody")
    message = refused(ConfigurationError, connection, kafka_log, pipeline)
    assert f"the consumer group 'nobody' has committed no offset for {topic.name}; it has for no" in message
    assert stands(connection, pipeline) == []


def test_a_pipeline_that_is_not_registered_plans_nothing(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = replace(make_pipeline(topic), name="another")
    assert "run `exactbatch register`" in refused(NotRegistered, connection, kafka_log, pipeline)


def test_a_retry_of_a_run_gets_the_batch_that_the_run_got(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    first = advance(connection, kafka_log, pipeline, "run")
    topic.produce(record(10))
    assert advance(connection, kafka_log, pipeline, "run") == first
    commit(connection, pipeline, first)
    assert advance(connection, kafka_log, pipeline, "run") == first
    assert planned(connection, kafka_log, pipeline, "next run") == [(0, 10, 11)]


def test_newer_plan_supersedes_older_one_and_begins_where_it_began(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    first = advance(connection, kafka_log, pipeline, "run")
    topic.produce(record(10))
    assert planned(connection, kafka_log, pipeline, "next run") == [(0, 0, 11), (1, 0, 3)]
    with transaction(connection):
        assert Ledger(connection).batches.read(first or 0).status == "superseded"
    assert advance(connection, kafka_log, pipeline, "run") == first, "the retry keeps its plan, and is fenced"


def test_limits_hold_and_several_batches_reach_the_end(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, limits=Limits(max_offsets=6))
    seen = []
    while (batch_id := advance(connection, kafka_log, pipeline)) is not None:
        with transaction(connection):
            seen += [
                str(each).split("]")[-1].strip() for each in Ledger(connection).batches.read_ranges(batch_id)
            ]
        commit(connection, pipeline, batch_id)
    assert seen == ["0..3", "0..3", "3..9", "9..10"]
    assert stands(connection, pipeline) == [10, 3]


class MovingLog(KafkaBroker):
    """A broker that takes so long to answer that others commit meanwhile."""

    def __init__(self, log: KafkaBroker, moves: Sequence[Callable[[], None]]) -> None:
        super().__init__({}, settle=0)
        self._log, self._moves, self.asked = log, iter(moves), 0

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        self.asked += 1
        answer = self._log.partitions(topics)
        next(self._moves, lambda: None)()
        return answer


def test_stored_offsets_that_move_while_kafka_is_asked_let_it_be_asked_again(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    first = advance(connection, kafka_log, pipeline)
    topic.produce(record(10))
    log = MovingLog(kafka_log, [lambda: commit(connection, pipeline, first)])
    assert planned(connection, log, pipeline) == [(0, 10, 11)]
    assert log.asked == 2


def test_stored_offsets_that_never_rest_end_in_error_that_can_be_retried(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, start="latest")
    advance(connection, kafka_log, pipeline)

    def move() -> None:
        topic.produce(record(0))
        commit(connection, pipeline, advance(connection, kafka_log, pipeline))

    message = refused(StoredOffsetsMoved, connection, MovingLog(kafka_log, [move] * 9), pipeline)
    assert "its stored offsets moved during each of 5 attempts" in message
    assert StoredOffsetsMoved.retryable


def test_two_plans_at_once_leave_one_planned_batch(
    database: str, connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    from exactbatch.postgres.connection import connect

    pipeline = make_pipeline(topic)
    outcomes: list[Any] = []
    together = threading.Barrier(2)

    def run(name: str) -> None:
        own = connect(database, application="tests", timeout=10)
        together.wait()
        try:
            outcomes.append(advance(own, kafka_log, pipeline, name))
        except Exception as error:
            outcomes.append(error)
        own.close()

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    with transaction(connection):
        statuses = sorted(Ledger(connection).batches.read(each).status for each in outcomes)
    assert statuses == ["planned", "superseded"]
    assert stands(connection, pipeline) == [0, 0]


def lose(admin: AdminClient, topic: Topic, before: int, *, partition: int = 0) -> None:
    """Let retention remove the offsets of a partition below `before`."""
    for future in admin.delete_records([TopicPartition(topic.name, partition, before)]).values():
        future.result(30)


def test_offsets_that_retention_removed_fail_the_plan_by_default(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    advance(connection, kafka_log, pipeline)
    lose(admin, topic, 4)
    message = refused(OffsetsLost, connection, kafka_log, pipeline)
    assert f"{topic.name}[0]: retention removed 4 unprocessed offsets (stored offset 0" in message
    assert stands(connection, pipeline) == [0, 0]


def test_recorded_loss_is_covered_and_next_range_begins_behind_it(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, on_loss="skip")
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    topic.produce(*map(record, range(6)))
    lose(admin, topic, 14)
    assert planned(connection, kafka_log, pipeline) == [(0, 14, 16)]
    assert stands(connection, pipeline) == [14, 3]
    with transaction(connection):
        lost = [each for each in Ledger(connection).coverage.read_all(pipeline) if each.kind == "loss"]
    assert [(each.partition, each.from_offset, each.until_offset, each.batch_id) for each in lost] == [
        (0, 10, 14, None)
    ]


def test_a_loss_is_recorded_although_nothing_is_left_to_process(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, on_loss="skip")
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    topic.produce(*map(record, range(2)))
    lose(admin, topic, 12)
    assert advance(connection, kafka_log, pipeline) is None
    assert stands(connection, pipeline) == [12, 3]
    assert advance(connection, kafka_log, pipeline) is None, "a loss is recorded once"


def test_a_loss_takes_over_the_leader_epoch_of_the_log_behind_it(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    """A later cut of the log is found by the epoch of the records that are still there."""
    pipeline = make_pipeline(topic, on_loss="skip")
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    with transaction(connection) as cursor:
        cursor.execute("update exactbatch.stored_offset set leader_epoch = leader_epoch - 1")
    topic.produce(*map(record, range(6)))
    lose(admin, topic, 14)
    advance(connection, kafka_log, pipeline)
    with transaction(connection):
        stored = Ledger(connection).plans.read_stored_offsets(pipeline)[0]
    assert stored.leader_epoch == kafka_log.partitions(pipeline.topic_names)[0].leader_epoch


def test_topic_created_again_is_not_taken_for_old_one(
    connection: Any,
    kafka_log: KafkaBroker,
    admin: AdminClient,
    topic: Topic,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(topic)
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(20)))
    message = refused(TopicRecreated, connection, kafka_log, pipeline)
    assert "The stored offset 10 does not apply to the new topic" in message


def test_topic_created_again_is_not_loaded_into_an_upsert_without_a_version(
    connection: Any,
    kafka_log: KafkaBroker,
    admin: AdminClient,
    topic: Topic,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(topic, sink=Upsert(f'public."{topic.name}"', key=("id",)))
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    recreate(admin, make_topic, topic)
    topic.produce(*map(record, range(20)))
    new = replace(pipeline, name=f"{pipeline.name}_2")
    with transaction(connection):
        Ledger(connection).registry.register(new, share_topics=True)
    message = refused(ConfigurationError, connection, kafka_log, new)
    assert f"load different logs of topic '{topic.name}' into the target" in message
    with transaction(connection):
        assert Ledger(connection).plans.read_stored_offsets(new) == ()


def recreate(admin: AdminClient, make_topic: MakeTopic, topic: Topic) -> None:
    """Delete a topic and create it again under its name, with two partitions."""
    admin.delete_topics([topic.name])[topic.name].result(30)
    for _ in range(100):
        if topic.name not in admin.list_topics(timeout=10).topics:
            break
    make_topic(2, name=topic.name)


def test_a_stored_offset_past_the_end_of_the_log_is_an_error(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    advance(connection, kafka_log, pipeline)
    with transaction(connection) as cursor:
        cursor.execute("update exactbatch.stored_offset set next_offset = 11 where partition = 0")
    assert "the log ends at 10, below the stored offset 11" in refused(
        StoredOffsetBeyondLog, connection, kafka_log, pipeline
    )


class WakingLog(KafkaBroker):
    """A broker that has just come up: first it knows no topics, then it tells an end that lies behind."""

    def __init__(self, log: KafkaBroker) -> None:
        super().__init__({}, settle=10)
        self._log, self.asked = log, 0

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        self.asked += 1
        if self.asked == 1:
            raise TopicMissing("the broker does not know the topic")
        answer = self._log.partitions(topics)
        if self.asked == 2:
            return tuple(replace(each, last_stable=0, high_watermark=0) for each in answer)
        return answer


def test_a_broker_that_has_just_come_up_is_asked_again(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    stood = stands(connection, pipeline)
    waking = WakingLog(kafka_log)
    assert freeze_advance(connection, waking, pipeline, origin="cli") is None
    assert waking.asked == 3
    assert stands(connection, pipeline) == stood


def test_report_of_batch_asks_broker_that_has_just_come_up_again(
    connection: Any, kafka_log: KafkaBroker, settings: Settings, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    batch_id = advance(connection, kafka_log, pipeline)
    assert batch_id is not None
    commit(connection, pipeline, batch_id)
    waking = WakingLog(kafka_log)
    report = load_report(settings.postgres, waking, pipeline, batch_id)
    assert waking.asked == 2
    assert [(each.topic, each.partition) for each in report.partitions] == [(topic.name, 0), (topic.name, 1)]


def test_a_topic_that_is_not_there_is_named_and_not_created(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    name = f"{topic.name}-misspelt"
    pipeline = make_pipeline(topic, topics=(topic.name, name))
    message = refused(TopicMissing, connection, kafka_log, pipeline)
    assert f"the broker does not know the topic '{name}'" in message
    assert name not in admin.list_topics(timeout=10).topics
    assert stands(connection, pipeline) == []


def gain_partition(admin: AdminClient, topic: Topic, records: int) -> None:
    """Add partition 2 to a topic that has two, with this number of records."""
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(30)
    # By a new producer: the old one does not know of the partition yet. Nor does the admin client.
    replace(topic).produce(*map(record, range(records)), partition=2)
    admin.list_topics(topic.name)


def test_partition_that_topic_has_gained_begins_at_its_first_offset(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, start="latest")
    advance(connection, kafka_log, pipeline)
    gain_partition(admin, topic, 2)
    assert planned(connection, kafka_log, pipeline) == [(2, 0, 2)]


def test_what_retention_removed_of_a_partition_that_topic_has_gained_is_lost(
    connection: Any, kafka_log: KafkaBroker, admin: AdminClient, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic, start="latest")
    advance(connection, kafka_log, pipeline)
    gain_partition(admin, topic, 5)
    lose(admin, topic, 3, partition=2)
    message = refused(OffsetsLost, connection, kafka_log, pipeline)
    assert f"{topic.name}[2]: retention removed 3 unprocessed offsets" in message
    pipeline = replace(pipeline, on_loss="skip")
    assert planned(connection, kafka_log, pipeline) == [(2, 3, 5)]
    with transaction(connection):
        lost = [each for each in Ledger(connection).coverage.read_all(pipeline) if each.kind == "loss"]
    assert [(each.partition, each.from_offset, each.until_offset) for each in lost] == [(2, 0, 3)]


def test_a_range_ends_before_a_transaction_that_is_still_open(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    producer = topic.transaction(record(10), end="open")
    topic.produce(record(11))
    assert planned(connection, kafka_log, pipeline) == [(0, 0, 10), (1, 0, 3)]
    producer.commit_transaction(30)
    while any(each.last_stable < each.high_watermark for each in kafka_log.partitions(pipeline.topic_names)):
        time.sleep(0.05)
    assert planned(connection, kafka_log, pipeline) == [(0, 0, 13), (1, 0, 3)]


def test_a_topic_that_left_the_pipeline_keeps_its_stored_offsets(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    other = make_topic()
    pipeline = make_pipeline(topic, topics=(topic.name, other.name))
    other.produce(record(0))
    commit(connection, pipeline, advance(connection, kafka_log, pipeline))
    topic.produce(record(10))
    other.produce(record(1))
    assert planned(connection, kafka_log, replace(pipeline, topics=(topic.name,))) == [(0, 10, 11)]
    assert sorted(stands(connection, pipeline)) == [1, 3, 10]


def test_a_preview_says_what_a_plan_would_do_and_writes_nothing(
    connection: Any, kafka_log: KafkaBroker, topic: Topic, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(topic)
    found, partitions = preview_advance(connection, kafka_log, pipeline)
    assert [str(each) for each in found.ranges] == [f"{topic.name}[0] 0..10", f"{topic.name}[1] 0..3"]
    assert [each.high_watermark for each in partitions] == [10, 3]
    assert stands(connection, pipeline) == []
    with transaction(connection):
        assert Ledger(connection).batches.read_page(pipeline.name, limit=1) == []
