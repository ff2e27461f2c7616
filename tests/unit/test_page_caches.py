"""What the operator's page keeps between requests, and that it forgets what nobody looks at any more."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest

from exactbatch.airflow.page import brokers, dags, databases, past_ends
from exactbatch.model import LogPartition

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
    for module in (brokers, databases, past_ends):
        monkeypatch.setattr(module, "time", clock)
    return clock


def log(topic, partition=0):
    return LogPartition(
        topic=topic,
        partition=partition,
        topic_id=UUID(int=1),
        leader_epoch=0,
        earliest=0,
        last_stable=99,
        high_watermark=99,
    )


def test_ends_of_logs_are_forgotten_an_hour_after_the_last_request(monkeypatch, clock):
    started = []
    monkeypatch.setattr(
        past_ends.threading,
        "Thread",
        lambda *, target, args, **_: SimpleNamespace(start=lambda: started.append((target, args))),
    )
    monkeypatch.setattr(past_ends, "airflow_connection", lambda conn_id: conn_id)
    monkeypatch.setattr(past_ends, "kafka_properties", lambda _: {})
    broker = SimpleNamespace(ends_at=lambda _, times: [7] * len(times))
    monkeypatch.setattr(past_ends, "KafkaBroker", lambda _: broker)
    ends = past_ends.PastEnds()

    def ask(topic):
        answer = ends.ends_at("kafka", [log(topic)], [NOW])
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


def test_retention_is_computed_from_the_pipelines_that_somebody_looks_at(monkeypatch, clock):
    asked = []
    broker = SimpleNamespace(
        partitions=lambda topics: tuple(map(log, topics)),
        retention=lambda topics: {topic: SimpleNamespace(age=timedelta(days=1)) for topic in topics},
        written_at=lambda behind, _: asked.append(behind) or {},
    )
    monkeypatch.setattr(brokers.threading, "Thread", Thread)
    monkeypatch.setattr(brokers, "airflow_connection", lambda conn_id: conn_id)
    monkeypatch.setattr(brokers, "kafka_properties", lambda _: {})
    monkeypatch.setattr(brokers, "KafkaBroker", lambda *_, **__: broker)
    watched = brokers.Brokers()
    watched.watch("kafka", "behind", ["t"], {("t", 0): 5})
    watched.watch("kafka", "ahead", ["t"], {("t", 0): 9})
    watched.state("kafka")
    clock.now += 100
    watched.watch("kafka", "ahead", ["t"], {("t", 0): 9})
    watched.state("kafka")
    assert asked == [{("t", 0): 5}, {("t", 0): 9}]


def test_idle_connections_are_closed_also_those_whose_address_has_changed(monkeypatch, clock):
    opened = []

    def connect(dsn, **_):
        connection = SimpleNamespace(
            dsn=dsn, closed=False, rollback=lambda: None, set_session=lambda **_: None
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
        with pool.connection("ledger") as connection:
            return connection

    assert use() is use()
    addresses["ledger"] = "host=new"
    clock.now += 61
    use()
    assert [(each.dsn, each.closed) for each in opened] == [("host=old", True), ("host=new", False)]


def test_a_stored_dag_is_read_again_when_it_changes_and_forgotten_when_it_goes(monkeypatch):
    stored, reads = {"one": "a", "two": "a"}, []
    task = {
        "task_id": "process_batch",
        "kafka_conn_id": "k",
        "postgres_conn_id": "p",
        "replays_compacted": True,
    }

    @contextmanager
    def create_session(**_):
        answers = iter(
            (
                SimpleNamespace(
                    all=lambda: [SimpleNamespace(dag_id=each, is_paused=False) for each in stored]
                ),
                [SimpleNamespace(dag_id=dag_id, dag_hash=dag_hash) for dag_id, dag_hash in stored.items()],
            )
        )
        yield SimpleNamespace(execute=lambda _: next(answers))

    def read(*, dag_ids, **_):
        reads.append(sorted(dag_ids))
        return [SimpleNamespace(dag_id=each, data={"dag": {"tasks": [{"__var": task}]}}) for each in dag_ids]

    monkeypatch.setattr(dags, "create_session", create_session)
    monkeypatch.setattr(dags.SerializedDagModel, "get_latest_serialized_dags", read)
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
