"""A cluster of three brokers whose leaders die, move, fall behind or are elected although they lack records."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from exactbatch import Tuning
from exactbatch.errors import KafkaUnavailable, LogTruncated, StoredOffsetBeyondLog, TasksFailed
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.planning.plan_tables import existing_partitions
from support.environment import HOME, LONG
from support.faults.cases import Case
from support.faults.held import InProcess
from support.faults.three_brokers import NODES, ThreeBrokers
from support.waiting import wait_for

REPLICAS: Final = ([1, 2, 3], [2, 3, 1])

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    """A cluster of this module alone."""
    brokers = ThreeBrokers(HOME, f"brokers-{os.getpid()}")
    try:
        brokers.up()
        yield brokers
    finally:
        brokers.down()
        shutil.rmtree(brokers.folder)


@pytest.fixture
def make_case(
    spark: Any, brokers: ThreeBrokers, database: str, tmp_path: Path
) -> Iterator[Callable[..., Case]]:
    """A pipeline with a sink by its name, over more records than a reader holds in advance."""

    def make(sink: str, **changes: Any) -> Case:
        topic = brokers.make_topic(*REPLICAS)
        return Case(InProcess(spark), topic, database, tmp_path, sink, records=1000, pad=2000, **changes)

    yield make
    brokers.start(*NODES)


@pytest.mark.parametrize("sink", ["append", "upsert", "aggregate", "partition"] if LONG else ["append"])
def test_leader_killed_in_mid_read_is_succeeded_and_batch_goes_on(
    make_case: Callable[..., Case], brokers: ThreeBrokers, sink: str
) -> None:
    case = make_case(sink, tuning=Tuning(read_timeout="60 seconds"))
    with case.held(case.plan(), "read.after_records") as batch:
        brokers.brokers[1].kill()
        assert batch.result().wrote
    assert brokers.leader(case.topic) != 1
    case.assert_exact()


def test_a_topic_without_a_leader_concerns_no_other_topic(brokers: ThreeBrokers) -> None:
    gone, other = brokers.make_topic([2], [1]), brokers.make_topic([2])
    broker = KafkaBroker(brokers.properties)

    def is_the_other_observed() -> bool:
        with suppress(KafkaUnavailable):  # until the controller has noticed that the broker is gone
            logs, errors = existing_partitions(broker, [gone.name, other.name])
            return logs.keys() == {other.name} and errors.keys() == {gone.name}
        return False

    brokers.brokers[1].kill()
    try:
        wait_for(is_the_other_observed, timeout=60)
        with pytest.raises(KafkaUnavailable, match=rf"^{gone.name}\[1\] has no leader") as caught:
            broker.partitions([gone.name, other.name])
    finally:
        brokers.start(*NODES)
    assert caught.value.topic == gone.name


@pytest.mark.long
@pytest.mark.parametrize("sink", ["append", "upsert", "aggregate", "partition"])
def test_two_of_three_brokers_killed_fail_batch_and_retry_is_exact(
    make_case: Callable[..., Case], brokers: ThreeBrokers, sink: str
) -> None:
    case = make_case(sink, tuning=Tuning(read_timeout="3 seconds"))
    batch_id = case.plan()
    with case.held(batch_id, "read.after_records") as batch:
        for node in (1, 2):
            brokers.brokers[node].kill()
        said = case.refused(batch.result, TasksFailed)
        assert "ReadFailed" in said
        assert "the broker sent nothing from offset" in said
        assert "on for 3 s" in said
        assert "Check that the brokers are up" in said
        # One broker is no majority: nobody may lead what the others led.
        case.refused(case.plan, KafkaUnavailable)
    case.assert_nothing_written(batch_id)
    brokers.start(1, 2)
    brokers.await_in_sync(case.topic)
    assert case.process(batch_id).wrote
    case.assert_exact()


@pytest.mark.long
def test_two_of_three_brokers_that_come_back_in_time_let_batch_go_on(
    make_case: Callable[..., Case], brokers: ThreeBrokers
) -> None:
    case = make_case("append", tuning=Tuning(read_timeout="60 seconds"))
    with case.held(case.plan(), "read.after_records") as batch:
        for node in (1, 2):
            brokers.brokers[node].kill()
        batch.let_go()
        brokers.start(1, 2)
        assert batch.result().wrote
    case.assert_exact()


@pytest.mark.long
def test_a_leader_that_moves_in_mid_read_lets_the_batch_go_on(
    make_case: Callable[..., Case], brokers: ThreeBrokers
) -> None:
    case = make_case("append", tuning=Tuning(read_timeout="30 seconds"))
    with case.held(case.plan(), "read.after_records") as batch:
        brokers.move_leader(case.topic, 3, partition=0)
        brokers.move_leader(case.topic, 1, partition=1)
        assert batch.result().wrote
    # What comes now is of another epoch than what was planned first.
    case.produce()
    assert case.process(case.plan()).wrote
    case.assert_exact()


@pytest.mark.long
def test_end_of_log_that_new_leader_does_not_know_yet_is_waited_for(
    spark: Any, brokers: ThreeBrokers, database: str, tmp_path: Path
) -> None:
    """Records are in two of three logs, but the third, which has to have them, says nothing for a while."""
    new = brokers.active_controller()
    old, silent = (node for node in NODES if node != new)
    topic = brokers.make_topic([old, new, silent], [new, silent, old])
    case = Case(InProcess(spark), topic, database, tmp_path, "append")
    assert case.process(case.plan()).wrote
    producer = Producer({**brokers.brokers[old].kafka_properties, "acks": 1})
    refusals: list[str] = []
    with brokers.stopped(silent):
        for number in range(0, case.records, 2):
            producer.produce(topic.name, case.value(number), partition=0)
        assert producer.flush(30) == 0
        time.sleep(2)  # the new leader has them long before, but cannot tell that they are committed
        brokers.brokers[old].stop()  # in good order: it hands over what it leads
        case.settings = replace(case.settings, kafka=brokers.brokers[new].kafka_properties)

        def is_refused() -> bool:
            try:
                assert case.plan_if_any() is None
            except KafkaUnavailable as error:
                refusals.append(str(error))
            return any("OffsetNotAvailableError" in each for each in refusals)

        wait_for(is_refused)
    brokers.start(old)
    brokers.await_in_sync(topic)
    case.sent += case.records // 2
    assert case.process(case.plan()).batch.records == case.records // 2
    case.assert_audited()


@pytest.mark.long
def test_leader_that_lacks_what_was_processed_is_refused_and_nothing_changes(
    spark: Any, brokers: ThreeBrokers, database: str, tmp_path: Path
) -> None:
    """An unclean election: first its log ends before the stored offset, then it has grown past it again."""
    topic = brokers.make_topic([1, 2], [3, 2], min_insync_replicas="1", unclean_leader_election_enable="true")
    case = Case(InProcess(spark), topic, database, tmp_path, "append")
    assert case.process(case.plan()).wrote
    brokers.brokers[2].kill()
    wait_for(lambda: brokers.in_sync(topic) == {1})
    case.produce()  # into the log of broker 1 alone
    assert case.process(case.plan()).wrote
    rows = case.rows(f"select * from public.{topic.name} order by kafka_partition, kafka_offset")
    brokers.brokers[1].kill()
    brokers.start(2)
    brokers.elect_unclean(topic, to=2)
    with pytest.raises(StoredOffsetBeyondLog, match="an unclean leader election"):
        case.plan()
    for _ in range(3):
        case.produce()
    with pytest.raises(LogTruncated, match="the log was truncated below .* and has grown again"):
        case.plan()
    assert case.rows(f"select * from public.{topic.name} order by kafka_partition, kafka_offset") == rows
    brokers.start(1)
    brokers.await_in_sync(topic)
