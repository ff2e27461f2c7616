"""`exactbatch lag`: the same numbers as Kafka's own command, the time behind, and the time until retention."""

import json
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from exactbatch import Append
from exactbatch.cli.app import app
from exactbatch.kafka import timestamps
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.ledger.registry import Registry
from exactbatch.model import Plan, StoredOffset
from exactbatch.operations.doctor.topic_checks import check_freshness
from exactbatch.operations.lag import load_lag
from exactbatch.operations.status import load_status
from exactbatch.postgres.connection import transaction
from support.consumer_groups import described_group
from support.topics import an_hour_ago, record


@pytest.fixture
def lag(settings, monkeypatch):
    """Run `exactbatch lag … --json`, and return the pipelines by name."""
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(*names: str, status: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["lag", *names, "--json"])
        assert done.exit_code == status, done.output
        told = json.loads(done.stdout)
        assert told["lag"] == sum(each["lag"] for each in told["pipelines"])
        return {each["pipeline"]: each for each in told["pipelines"]}

    return run


@pytest.fixture
def stand(connection, settings):
    """Let a pipeline stand at these offsets, by partition."""

    def store(pipeline, *offsets: int) -> None:
        topic = pipeline.topic_names[0]
        log = KafkaBroker(settings.kafka).partitions([topic])
        seeds = tuple(
            StoredOffset(
                topic=topic, partition=each, next_offset=offset, leader_epoch=0, topic_id=log[each].topic_id
            )
            for each, offset in enumerate(offsets)
        )
        with transaction(connection):
            Ledger(connection).plans.write_advance(
                pipeline, Plan(seeds=seeds, losses=(), ranges=()), origin="cli", run=None
            )

    return store


def test_the_lag_is_that_of_kafkas_own_command(lag, stand, make_topic, make_pipeline, stack, settings):
    topic = make_topic(4)
    topic.produce(*map(record, range(5)))  # 0: three of five are left
    topic.transaction(record(1), record(2), partition=1)  # 1: only the marker of a transaction is left
    topic.produce(record(1), partition=2)
    hanging = topic.transaction(record(2), record(3), partition=2, end="never")  # 2: held back
    topic.produce(record(1), record(2), partition=3)  # 3: nothing is left
    pipeline = make_pipeline(topic)
    stand(pipeline, 2, 2, 1, 2)
    group = f"exactbatch.{pipeline.name}"
    with closing(Consumer({**settings.kafka, "group.id": group})) as consumer:
        offsets = [TopicPartition(topic.name, each, offset) for each, offset in enumerate((2, 2, 1, 2))]
        consumer.commit(offsets=offsets, asynchronous=False)
    told = lag(pipeline.name)[pipeline.name]
    own = {
        (each["topic"], each["partition"]): (each["stored"], each["log_end"], each["lag"])
        for each in told["partitions"]
    }
    assert own == described_group(stack, group)
    assert [each["lag"] for each in told["partitions"]] == [3, 1, 2, 0]
    assert [each["held_back"] for each in told["partitions"]] == [0, 0, 2, 0]
    behind = [each["seconds_behind"] is not None for each in told["partitions"]]
    assert behind == [True, False, True, False]  # no record follows a marker; a held back one has its time
    hanging.abort_transaction(30)


def test_the_time_behind_is_that_of_the_first_unprocessed_record(lag, stand, make_topic, make_pipeline):
    topic = make_topic(2, retention_ms=str(90 * 60_000), retention_bytes="1000000")
    topic.produce(record(1), timestamp=an_hour_ago() - 600_000)
    topic.produce(record(2), timestamp=an_hour_ago())
    topic.produce(record(3))
    topic.produce(record(4), partition=1)
    pipeline = make_pipeline(topic)
    stand(pipeline, 1, 0)
    told = lag(pipeline.name)[pipeline.name]
    first, second = told["partitions"]
    assert first["seconds_behind"] == pytest.approx(3600, abs=120)
    assert first["seconds_until_removed"] == pytest.approx(1800, abs=120)
    assert first["retention_bytes"] == 1_000_000
    assert second["seconds_behind"] < 120
    assert told["seconds_behind"] == first["seconds_behind"]
    assert told["seconds_until_removed"] == first["seconds_until_removed"]


def test_a_pipeline_is_overdue_only_while_a_record_waits_for_too_long(
    lag, stand, make_topic, make_pipeline, connection, settings, monkeypatch
):
    topic = make_topic(2)
    topic.produce(record(1), timestamp=an_hour_ago())
    topic.transaction(record(2), partition=1)
    late, patient = (
        make_pipeline(topic, name=f"{topic.name}.{minutes}", freshness=timedelta(minutes=minutes))
        for minutes in (30, 120)
    )
    # All that is left of partition 1 is the marker of a transaction.
    stand(late, 0, 1)
    stand(patient, 0, 1)
    told = lag(late.name, patient.name)
    assert [told[each.name]["overdue"] for each in (late, patient)] == [True, False]
    assert told[late.name]["freshness_seconds"] == 1800
    done = CliRunner().invoke(app, ["lag", late.name])
    assert "overdue: its oldest unprocessed record is 1:00:" in done.output
    status = load_status(connection, KafkaBroker(settings.kafka), late)
    assert status.overdue
    assert status.troubles[0].startswith("overdue: its oldest unprocessed record is 1:00:")
    [found] = check_freshness(load_lag(connection, KafkaBroker(settings.kafka), [late.name]))
    assert (found.level, "freshness allows 0:30:00" in found.found) == ("warning", True)
    with transaction(connection) as cursor:
        cursor.execute("update exactbatch.stored_offset set next_offset = 1")
    told = lag(late.name)[late.name]
    assert (told["overdue"], told["lag"]) == (False, 1)
    assert load_status(connection, KafkaBroker(settings.kafka), late).overdue is False
    monkeypatch.setattr(KafkaBroker, "first_timestamps", lambda *_, **__: {})  # none answers within 10 s
    assert lag(late.name)[late.name]["overdue"] is None
    slow = load_status(connection, KafkaBroker(settings.kafka), late)
    assert slow.overdue is None
    assert slow.not_known == (
        "Kafka did not send the oldest unprocessed records of 1 partitions in time: ask again",
    )


@pytest.mark.parametrize(
    "config",
    [{"retention_ms": "-1"}, {"cleanup_policy": "compact"}, {"retention_ms": str(2**63 - 1)}],
    ids=["none", "compacted", "for ever"],
)
def test_a_record_that_stays_has_no_time_of_removal(lag, make_topic, make_pipeline, config):
    topic = make_topic(**config)
    topic.produce(record(1), key=b"1")
    pipeline = make_pipeline(topic)
    (partition,) = lag(pipeline.name)[pipeline.name]["partitions"]
    assert partition["seconds_until_removed"] is None
    assert partition["seconds_behind"] is not None
    assert (partition["stored"], partition["lag"]) == (None, 1)


def test_all_registered_pipelines_are_shown_and_a_missing_topic_hides_none(lag, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(record(1))
    one = make_pipeline(topic, name="one")
    other = make_pipeline(replace(topic, name="absent"), name="other", sink=Append("public.other"))
    told = lag(status=42)
    assert set(told) == {one.name, other.name}
    assert told["one"]["lag"] == 1
    assert "does not know the topic 'absent'" in told["other"]["error"]
    done = CliRunner().invoke(app, ["lag"])
    assert (done.exit_code, "lag of one: 1 offsets" in done.stdout) == (42, True)
    assert "TopicMissing" in done.stderr
    make_pipeline(replace(topic, name="gone"), name="third", sink=Append("public.third"))
    done = CliRunner().invoke(app, ["lag"])
    assert "'absent'" in done.stderr
    assert "! third: " in done.stdout
    done = CliRunner().invoke(app, ["lag", "nobody"])
    assert (done.exit_code, "has one, other, third" in " ".join(done.stderr.split())) == (2, True)


def test_offsets_that_retention_removed_are_told(lag, stand, make_topic, make_pipeline):
    topic = make_topic(retention_ms="1000", segment_ms="1000")
    topic.produce(record(1), timestamp=an_hour_ago())
    pipeline = make_pipeline(topic)
    stand(pipeline, 0)
    deadline = time.monotonic() + 60
    while lag(pipeline.name)[pipeline.name]["partitions"][0]["trouble"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (partition,) = lag(pipeline.name)[pipeline.name]["partitions"]
    assert "retention removed 1 unprocessed offsets" in partition["trouble"]
    assert partition["seconds_behind"] is None


def test_many_partitions_are_looked_up_in_groups(monkeypatch, make_topic, settings):
    monkeypatch.setattr(timestamps, "_AT_A_TIME", 3)
    topic = make_topic(8)
    for partition in range(8):
        topic.produce(record(1), record(2), partition=partition, timestamp=1000 + partition)
    positions = {(topic.name, partition): 0 for partition in range(8)}
    found = KafkaBroker(settings.kafka).first_timestamps(positions)
    assert found == {(topic.name, partition): 1000 + partition for partition in range(8)}


def test_a_hidden_retention_is_not_known(make_topic, make_pipeline, connection, settings, monkeypatch):
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    monkeypatch.setattr(KafkaBroker, "_topic_settings", lambda *_: {})
    (told,) = load_lag(connection, KafkaBroker(settings.kafka), [pipeline.name])
    assert (told.partitions[0].retention, told.removed_at) == (None, None)
    assert told.oldest is not None


def test_the_lag_of_one_does_not_read_all_registrations(
    connection, settings, make_topic, make_pipeline, monkeypatch
):
    """The gauges of many tables ask for each of them."""
    pipeline = make_pipeline(make_topic())
    monkeypatch.delattr(Registry, "read_all")
    (found,) = load_lag(connection, KafkaBroker(settings.kafka), [pipeline.name])
    assert found.pipeline == pipeline.name
