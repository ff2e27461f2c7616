"""Retention may remove records while an audit runs: what it has not read yet counts as removed before it began."""

import json
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from exactbatch import Aggregate, Append, Count, Json, Sum, Upsert
from exactbatch.audit import run_audit
from support.audited_target import COUNT, AuditedTarget, findings
from support.topics import Topic, record

SINKS = {
    "append": Append("public.kept"),
    "upsert": Upsert("public.kept", key=("name",), version="id", history=False),
    "aggregate": Aggregate("public.kept", group_by=("name",), aggregates={"n": Count(), "total": Sum("id")}),
}


class Retention:
    """Removes the records below an offset of a partition, when an audit first tells how far it is."""

    def __init__(self, admin: Any, topic: Topic, partition: int, until: int) -> None:
        self._admin, self._until = admin, TopicPartition(topic.name, partition, until)
        self.is_due = True

    def __call__(self, _done: int, _all: int) -> None:
        if self.is_due:
            self._admin.delete_records([self._until])[self._until].result(30)
        self.is_due = False


@pytest.fixture
def topic(make_topic: Any) -> Topic:
    """Three partitions with six records each."""
    topic = make_topic(3)
    for partition in range(3):
        topic.produce(*map(record, range(6)), partition=partition)
    return topic


@pytest.fixture
def target(connection: Any, settings: Any, topic: Topic, make_pipeline: Any) -> AuditedTarget:
    target = AuditedTarget(connection, settings, make_pipeline(topic))
    target.load()
    return target


# Windows of 4 or 12 offsets: partitions one by one, or the second and the third one together.
@pytest.mark.parametrize("window", [4, 12])
@pytest.mark.parametrize("until", [4, 6])
def test_what_retention_removes_during_an_audit_counts_as_removed(
    target: AuditedTarget,
    topic: Topic,
    admin: Any,
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    until: int,
) -> None:
    monkeypatch.setattr(run_audit, "_WINDOW", window)
    if window == 12:  # the first one has a window of its own
        topic.produce(*map(record, range(6, 20)))
        target.load()
    target.execute("delete from {t} where kafka_partition = 2 and kafka_offset = 5")
    retention = Retention(admin, topic, 2, until)
    found = run_audit.audit(target.pipeline, target.settings, progress=retention)
    assert not retention.is_due
    missing = {"missing": (1, [5])} if until == 4 else {}
    assert findings(found) == {**COUNT, **missing}
    assert [each.removed for each in found.partitions] == [0, 0, min(until, 5)]
    assert [each.records for each in found.partitions[1:]] == [6, 6 - until]


@pytest.mark.parametrize("sink", SINKS)
def test_values_of_removed_records_are_not_held_against_the_target(
    world: Any, topic: Topic, make_pipeline: Any, admin: Any, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    monkeypatch.setattr(run_audit, "_WINDOW", 4)
    # Other keys in the third partition, so that nothing but its records tells them.
    topic.produce(*(json.dumps({"id": 100 + n, "name": f"z{n}"}).encode() for n in range(6)), partition=2)
    pipeline = make_pipeline(topic, sink=SINKS[sink], value=Json("id int, name text"))
    world.run(pipeline)
    found = run_audit.audit(pipeline, world.settings, values=True, progress=Retention(admin, topic, 2, 10))
    assert found.is_exact, found
    assert found.partitions[2].records == 2
