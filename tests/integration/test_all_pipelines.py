"""`exactbatch list`, and `exactbatch status` without a name: all registered pipelines at once."""

import json
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest
from kafka.admin import KafkaAdminClient
from typer.testing import CliRunner

from exactbatch import Append, TopicPattern
from exactbatch.cli import list_ as list_command
from exactbatch.cli.app import app
from exactbatch.errors import TargetMismatch
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.model import LogPartition, Plan, StoredOffset
from exactbatch.operations import all_pipelines
from exactbatch.operations.all_pipelines import load_states
from exactbatch.postgres.connection import transaction
from support.staged_batches import Batches
from support.topics import an_hour_ago, record


@pytest.fixture
def run(settings, monkeypatch):
    """Run `exactbatch …` in this process."""
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.fixture
def stand(connection, settings):
    """Let a pipeline stand at an offset of partition 0."""

    def store(pipeline, topic: str, offset: int) -> None:
        (log, *_) = KafkaBroker(settings.kafka).partitions([topic])
        seed = StoredOffset(
            topic=topic, partition=0, next_offset=offset, leader_epoch=0, topic_id=log.topic_id
        )
        with transaction(connection):
            Ledger(connection).plans.write_advance(
                pipeline, Plan(seeds=(seed,), losses=(), ranges=()), origin="cli", run=None
            )

    return store


def test_a_list_has_what_is_registered_and_what_is_not(
    run, connection, make_topic, make_pipeline, monkeypatch
):
    topic = make_topic()
    pipeline = make_pipeline(topic)
    Batches(connection, make_pipeline(topic, name="shop.orders", sink=Append("public.orders"))).run((1, "a"))
    make_pipeline(topic, name="events", topics=TopicPattern("ev[.].*"), sink=Append("public.events"))
    monkeypatch.setattr(list_command, "pipeline_names", lambda _: ["events", "new_one", "shop"])
    monkeypatch.setattr(KafkaBroker, "partitions", None)  # the ledger alone answers
    told = json.loads(run("list", "--json"))
    listed = {each["pipeline"]: each for each in told["pipelines"]}
    assert list(listed) == sorted([pipeline.name, "shop.orders", "events"])
    assert told["not_registered"] == ["new_one"]
    assert listed[pipeline.name]["topics"] == [topic.name]
    assert listed[pipeline.name]["newest_batch"] is None
    assert (listed["events"]["topics"], listed["events"]["topic_pattern"]) == ([], "ev[.].*")
    assert listed["shop.orders"]["target"] == "public.orders"
    assert listed["shop.orders"]["newest_batch"]["status"] == "committed"
    with transaction(connection) as cursor:
        cursor.execute("select registered_at::text from exactbatch.pipeline where name = 'events'")
        assert cursor.fetchone()[0].startswith(listed["events"]["registered_at"][:19])
    shown = run("list")
    assert "registered pipelines: 3" in shown
    assert "ev[.].*" in shown
    assert "not registered: new_one." in shown


def test_a_list_of_nothing(run, connection, monkeypatch):
    monkeypatch.setattr(list_command, "pipeline_names", lambda _: [])
    assert json.loads(run("list", "--json")) == {"pipelines": [], "not_registered": []}
    assert json.loads(run("status", "--json")) == {"pipelines": []}
    assert "registered pipelines: 0" in run("list")
    assert "not registered" not in run("list")


def test_each_pipeline_says_how_far_it_is_and_what_is_wrong(
    run, stand, connection, make_topic, make_pipeline
):
    topic, old, matched = make_topic(3), make_topic(), make_topic()
    topic.produce(record(1), record(2), record(3))
    topic.transaction(record(4), partition=1, end="never")
    old.produce(record(1), timestamp=an_hour_ago())
    matched.produce(record(1), record(2))
    behind = make_pipeline(topic)
    stand(behind, topic.name, 1)
    late = make_pipeline(old, name="late", sink=Append("public.late"), freshness=timedelta(minutes=30))
    patient = make_pipeline(old, name="patient", sink=Append("public.patient"), freshness=timedelta(hours=3))
    pattern = TopicPattern(matched.name.replace(".", "[.]"))
    make_pipeline(matched, name="matching", topics=pattern, sink=Append("public.matching"))
    gone = make_pipeline(topic, name="gone", topics=("never-there",), sink=Append("public.gone"))
    failing = make_pipeline(topic, name="failing", sink=Append("public.failing"))
    stand(failing, topic.name, 3)
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin) values ('failing', 'advance', 'cli') "
            "returning batch_id"
        )
        batches = Ledger(connection).batches
        batches.record_failure(batches.read(cursor.fetchone()[0]), TargetMismatch("too bad"))
    told = {each["pipeline"]: each for each in json.loads(run("status", "--json"))["pipelines"]}
    assert list(told) == sorted(told)
    state = {name: each["state"] for name, each in told.items()}
    states = ("behind", "failing", "unknown", "behind")
    assert tuple(state[name] for name in (behind.name, "failing", "gone", "late")) == states
    of_one = told[behind.name]
    assert (of_one["partitions"], of_one["lag"], of_one["held_back"]) == (3, 3, 1)
    assert told[behind.name]["troubles"] == ["open transactions hold back 1 offsets."]
    assert told["gone"]["lag"] is None
    assert "TopicMissing: the broker does not know the topic 'never-there'" in told["gone"]["troubles"][0]
    assert told["failing"]["troubles"] == [
        "batch 1 has failed once, last with TargetMismatch: too bad",
        "open transactions hold back 1 offsets.",
    ]
    (overdue,) = told[late.name]["troubles"]
    assert overdue.startswith("overdue: its oldest unprocessed record is 1:")
    assert told[patient.name]["troubles"] == []
    assert told["matching"]["lag"] == 2  # its topic joins at the next run
    shown = run("status")
    assert f"! {gone.name}: TopicMissing" in shown
    assert "registered pipelines: 6" in shown


def test_a_log_that_contradicts_the_ledger_is_told(run, stand, connection, make_topic, make_pipeline):
    topic = make_topic()
    pipeline = make_pipeline(topic)
    stand(pipeline, topic.name, 7)
    with transaction(connection) as cursor:
        cursor.execute("alter table exactbatch.stored_offset disable trigger user")
        cursor.execute("update exactbatch.stored_offset set updated_at = now() - interval '1 hour'")
    (told,) = json.loads(run("status", "--json"))["pipelines"]
    assert told["state"] == "cannot plan"
    assert "the log ends at 0, below the stored offset" in told["troubles"][0]


def test_pipelines_are_asked_for_together(
    connection, settings, stand, make_topic, make_pipeline, monkeypatch
):
    """Requests to Kafka do not depend on how many pipelines there are."""
    topics = [make_topic() for _ in range(3)]
    for topic in topics:
        topic.produce(record(1), timestamp=an_hour_ago())
        make_pipeline(topic, freshness=timedelta(minutes=30))
    make_pipeline(topics[0], name="again", sink=Append("public.again"), freshness=timedelta(minutes=30))
    asked = Counter[str]()

    def counted(owner: type, name: str) -> None:
        ask = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, **options: asked.update([name]) or ask(*args, **options)
        )

    counted(KafkaAdminClient, "describe_topics")
    counted(KafkaAdminClient, "list_partition_offsets")
    counted(KafkaBroker, "first_timestamps")
    states = load_states(connection, KafkaBroker(settings.kafka))
    assert all(each.troubles[0].startswith("overdue") for each in states)
    # Two pipelines read the same topic: the second one is asked for by itself.
    assert (asked["describe_topics"], asked["list_partition_offsets"], asked["first_timestamps"]) == (1, 3, 4)


def test_a_thousand_pipelines_with_ten_partitions_each(connection, monkeypatch):
    """Their number is what Postgres and this process work on; Kafka is asked at once, as the test above shows."""
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.pipeline (name, target, sink, key, lineage, version, topics) "
            "select 'p' || n, 'public.t' || n, 'append', '{}', 'record', '', array['t' || n] "
            "from generate_series(1, 1000) n"
        )
        cursor.execute(
            "insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, topic_id, first_offset) "
            "select 'p' || n, 't' || n, p, 5, '00000000-0000-0000-0000-000000000001', 0 "
            "from generate_series(1, 1000) n, generate_series(0, 9) p"
        )

    def partitions(_self, topics, _processed=()):
        return tuple(
            LogPartition(
                topic=topic,
                partition=partition,
                topic_id=UUID(int=1),
                leader_epoch=0,
                earliest=0,
                last_stable=8,
                high_watermark=8,
            )
            for topic in topics
            for partition in range(10)
        )

    monkeypatch.setattr(KafkaBroker, "partitions", partitions)
    states = all_pipelines.load_states(connection, KafkaBroker({}))
    assert len(states) == 1000
    assert {(each.partitions, each.lag.lag, each.state, each.troubles) for each in states} == {
        (10, 30, "behind", ())
    }
