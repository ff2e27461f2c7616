"""What the Pipelines page keeps between requests, and that it forgets what nobody looks at any more."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from exactbatch.airflow.page import brokers, dags, databases
from exactbatch.airflow.page.first_records import find_oldest_unprocessed
from exactbatch.errors import ConfigurationError, KafkaUnavailable
from exactbatch.kafka import broker as kafka_broker
from exactbatch.kafka.broker import KafkaBroker
from support.logs import ID, log
from support.stored_dags import store_dags

NOW = datetime.now(UTC)


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Thread:
    """Runs at once, in the thread that starts it."""

    def __init__(self, *, target, args=(), **_):
        self.start = lambda: target(*args)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (brokers, databases):
        monkeypatch.setattr(module, "time", clock)
    return clock


def stored(offset):
    return SimpleNamespace(next_offset=offset, topic_id=ID)


def test_ends_of_logs_are_forgotten_an_hour_after_the_last_request(monkeypatch, clock):
    started = []
    monkeypatch.setattr(
        brokers.threading,
        "Thread",
        lambda *, target, args, **_: SimpleNamespace(start=lambda: started.append((target, args))),
    )
    monkeypatch.setattr(brokers, "airflow_connection", lambda conn_id: conn_id)
    monkeypatch.setattr(brokers, "kafka_properties", lambda _: {})
    broker = SimpleNamespace(ends_at=lambda _, times: [7] * len(times))
    monkeypatch.setattr(brokers, "KafkaBroker", lambda _: broker)
    ends = brokers.PastEnds()

    def ask(topic):
        answer = ends.ends_at("kafka", [log(topic=topic)], [NOW])
        while started:
            target, arguments = started.pop()
            target(*arguments)
        return answer

    assert [ask("old"), ask("old")] == [{}, {NOW: 7}]
    clock.now += 3000
    assert [ask("other"), ask("old")] == [{}, {NOW: 7}]
    clock.now += 3000
    assert ask("old") == {NOW: 7}
    clock.now += 4000
    assert [ask("other"), ask("old")] == [{}, {}]


@pytest.fixture
def broker(monkeypatch):
    """A broker of topics with offsets 0 to 99, whose record at offset n was written n seconds after 1970.

    It keeps records for a day. Threads run at once.
    """
    broker = SimpleNamespace(is_up=True, behind=[], looked_up=[])

    def partitions(topics, processed=()):
        if not broker.is_up:
            raise KafkaUnavailable("down")
        return tuple(log(topic=each) for each in topics)

    def first_timestamps(places, *, uncommitted):
        assert broker.is_up
        broker.looked_up += places.values()
        return {place: offset * 1000 for place, offset in places.items()}

    broker.partitions, broker.first_timestamps = partitions, first_timestamps
    broker.retention = lambda topics: {topic: SimpleNamespace(age=timedelta(days=1)) for topic in topics}
    broker.written_at = lambda behind, _: broker.behind.append(behind) or {}
    monkeypatch.setattr(brokers.threading, "Thread", Thread)
    monkeypatch.setattr(brokers, "airflow_connection", lambda conn_id: conn_id)
    monkeypatch.setattr(brokers, "kafka_properties", lambda _: {})
    monkeypatch.setattr(brokers, "KafkaBroker", lambda *_, **__: broker)
    return broker


def test_retention_is_computed_from_the_pipelines_that_somebody_looks_at(broker, clock):
    watched = brokers.Brokers()
    watched.watch("kafka", "behind", ["t"], {("t", 0): stored(5)})
    watched.watch("kafka", "ahead", ["t"], {("t", 0): stored(9)})
    watched.state("kafka")
    clock.now += 100
    watched.watch("kafka", "ahead", ["t"], {("t", 0): stored(9)})
    watched.state("kafka")
    assert broker.behind == [{("t", 0): 5}, {("t", 0): 9}]


def written_in(monkeypatch, broker, times):
    """Let a broker answer in which topics the record at offset 5 was written at which times, and those after it."""

    def list_partition_offsets(wanted):
        return {
            each: SimpleNamespace(offset=5 if milliseconds <= times[each.topic].timestamp() * 1000 else 6)
            for each, milliseconds in wanted.items()
        }

    client = SimpleNamespace(list_partition_offsets=list_partition_offsets)
    monkeypatch.setattr(kafka_broker, "admin_client", lambda _: nullcontext(client))
    broker.written_at = KafkaBroker({}).written_at


def compute_retention_left(watched, topic):
    watched.watch("kafka", topic, [topic], {(topic, 0): stored(5)})
    return brokers.compute_retention_left(watched.state("kafka"), [(topic, 0)], NOW)


def test_the_retention_of_one_topic_does_not_blur_that_of_another(broker, clock, monkeypatch):
    days = {"short": 1, "long": 3650}
    broker.retention = lambda topics: {
        each: SimpleNamespace(age=timedelta(days=days[each])) for each in topics
    }
    written_in(monkeypatch, broker, {"short": NOW - timedelta(hours=1), "long": NOW - timedelta(days=365)})
    watched = brokers.Brokers()
    compute_retention_left(watched, "long")
    left = compute_retention_left(watched, "short")
    assert timedelta(hours=22, minutes=59) < left <= timedelta(hours=23)


@pytest.mark.parametrize("years", [60, 3_000])
def test_retention_longer_than_the_time_since_1970_is_shown(broker, clock, monkeypatch, years):
    age = timedelta(days=365 * years)
    broker.retention = lambda topics: {each: SimpleNamespace(age=age) for each in topics}
    written_in(monkeypatch, broker, {"t": NOW - timedelta(days=365)})
    left = compute_retention_left(brokers.Brokers(), "t")
    assert age - timedelta(days=370) < left <= age - timedelta(days=365)


def test_a_topic_without_a_leader_hides_no_other_topic(broker, clock):
    partitions = broker.partitions

    def without_leader(topics, processed=()):
        if "gone" in topics:
            raise KafkaUnavailable("gone[0] has no leader", topic="gone")
        return partitions(topics)

    broker.partitions = without_leader
    watched = brokers.Brokers()
    watched.watch("kafka", "p", ["t"], {("t", 0): stored(5)})
    watched.watch("kafka", "q", ["gone"], {("gone", 0): stored(5)})
    state = watched.state("kafka")
    assert state.logs.keys() == {"t"}
    assert state.errors == {"gone": "gone[0] has no leader"}


def test_settings_that_an_acl_hides_are_asked_for_once_a_minute(broker, clock):
    asked = []
    broker.retention = lambda topics: asked.append(topics) or {}
    watched = brokers.Brokers()
    for _ in range(4):
        watched.watch("kafka", "p", ["t"], {("t", 0): stored(5)})
        assert watched.state("kafka").retention == {"t": None}
        clock.now += 25
    assert asked == [["t"], ["t"]]


def test_a_timestamp_beyond_the_calendar_is_not_known(broker, clock):
    broker.first_timestamps = lambda places, *, uncommitted: dict.fromkeys(places, 1_700_000_000_000_000_000)
    assert oldest(brokers.Brokers(), clock, 5) is None


def oldest(watched, clock, offset):
    """What the page shows of the age of a pipeline that stands at an offset, the next time that it asks."""
    clock.now += 5
    watched.watch("kafka", "p", ["t"], {("t", 0): stored(offset)}, may_be_overdue=True)
    shown = watched.state("kafka")
    return find_oldest_unprocessed(
        shown.logs.get("t", ()), {("t", 0): stored(offset)}, shown.first.get("p", {})
    )


def at(second):
    return datetime.fromtimestamp(second, UTC)


def test_the_age_of_a_record_is_known_again_with_the_first_answer_after_an_outage(broker, clock):
    watched = brokers.Brokers()
    assert oldest(watched, clock, 5) == at(5)
    broker.is_up = False
    assert oldest(watched, clock, 5) is None  # the logs are not known
    broker.is_up = True
    broker.first_timestamps = pytest.fail
    assert oldest(watched, clock, 5) == at(5)
    assert broker.looked_up == [5]


def test_an_age_stays_while_that_of_the_next_record_is_looked_up(broker, clock, monkeypatch):
    watched = brokers.Brokers()
    assert oldest(watched, clock, 5) == at(5)
    waiting = []
    monkeypatch.setattr(
        brokers.threading,
        "Thread",
        lambda *, target, **_: SimpleNamespace(start=lambda: waiting.append(target)),
    )
    assert oldest(watched, clock, 7) == at(5)
    waiting.pop()()
    assert oldest(watched, clock, 7) == at(7)
    assert oldest(watched, clock, 100) is None  # nothing waits
    assert oldest(watched, clock, 4) is None  # the ledger was restored: the record may be older


def test_an_age_does_not_outlive_the_offset_if_it_cannot_be_looked_up(broker, clock):
    def denied(*_, **__):
        raise ConfigurationError("no ACL")

    watched = brokers.Brokers()
    assert oldest(watched, clock, 5) == at(5)
    broker.first_timestamps = denied
    oldest(watched, clock, 7)
    assert oldest(watched, clock, 7) is None
    assert oldest(watched, clock, 5) is None


def test_idle_connections_are_closed_also_those_whose_address_has_changed(monkeypatch, clock):
    opened = []

    def connect(dsn, **_):
        connection = SimpleNamespace(
            dsn=dsn,
            closed=False,
            rollback=lambda: None,
            set_session=lambda **_: None,
            hang_up=lambda: None,
        )
        connection.close = lambda: setattr(connection, "closed", True)
        opened.append(connection)
        return connection

    addresses = {"ledger": "host=old"}
    monkeypatch.setattr(databases, "airflow_connection", addresses.get)
    monkeypatch.setattr(databases, "postgres_dsn", str)
    monkeypatch.setattr(databases, "connect", connect)
    monkeypatch.setattr(databases, "check_schema", lambda _: None)
    pool = databases.Databases()

    def use():
        with pool.connection("ledger", clock.now + 60) as connection:
            return connection

    assert use() is use()
    addresses["ledger"] = "host=new"
    clock.now += 61
    use()
    assert [(each.dsn, each.closed) for each in opened] == [("host=old", True), ("host=new", False)]


def test_a_stored_dag_is_read_again_when_it_changes_and_forgotten_when_it_goes(monkeypatch):
    stored = {"one": "a", "two": "a"}
    reads = store_dags(monkeypatch, stored)
    found = dags.PipelineDags()
    assert found.find(["one", "two"])[0] == dags.PipelineDag("one", False, "k", "p", True, None)
    found.find(["one", "two"])
    assert reads == [["one", "two"]]
    stored["one"] = "b"
    found.find(["one", "two"])
    assert reads[1:] == [["one"]]
    del stored["two"]
    assert [dag.dag_id for dag in found.find(["one", "two"])] == ["one"]
    stored["two"] = "a"
    found.find(["one", "two"])
    assert reads[2:] == [["two"]]


def test_a_stale_dag_is_not_found_and_still_owns_its_pipelines(monkeypatch):
    store_dags(monkeypatch, {"old": "a", "one": "a", "shop": "a"}, tables=("shop",), stale=("old",))
    found = dags.PipelineDags()
    assert [dag.dag_id for dag in found.find(["old", "one"])] == ["one"]
    assert found.owners() == {"old": False, "one": False, "shop": True}
