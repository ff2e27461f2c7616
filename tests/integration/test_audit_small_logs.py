"""An audit of many partitions with few records each opens one consumer, and finds what it finds with one for each."""

from collections.abc import Callable
from typing import Any

import pytest

from exactbatch.audit import log_windows
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ReadFailed
from support.audited_target import FORGE, AuditedTarget
from support.topics import record

PARTITIONS = 30
LARGE = 7  # a partition that is not read together with others
SIZE = 6


class Opened(list[Any]):
    """The consumers that the auditor has opened."""

    def counting(self, consumer: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*given: Any, **named: Any) -> Any:
            self.append(consumer(*given, **named))
            return self[-1]

        return opened


@pytest.fixture
def opened(monkeypatch) -> Opened:
    opened = Opened()
    monkeypatch.setattr(log_windows, "_SMALL", 20)
    monkeypatch.setattr(log_windows, "Consumer", opened.counting(log_windows.Consumer))
    return opened


@pytest.fixture
def target(connection, settings, make_topic, make_pipeline) -> AuditedTarget:
    """Partitions with six records each, but for an empty one, a large one, and one that ends with an aborted
    transaction; a row for each record."""
    topic = make_topic(PARTITIONS)
    for partition in range(1, PARTITIONS):
        for offset in range(50 if partition == LARGE else SIZE):
            topic._producer.produce(topic.name, record(offset), partition=partition, timestamp=1_000_000)
    assert topic._producer.flush(60) == 0
    topic.transaction(b"gone", b"gone", partition=3, end="abort")
    target = AuditedTarget(connection, settings, make_pipeline(topic))
    target.load()
    target.execute("delete from {t} where kafka_partition = 3 and kafka_offset >= 6")
    target.execute("update {t} set kafka_timestamp = to_timestamp(1000)")
    target.execute(FORGE + "update exactbatch.batch set records = records - 3, rows = rows - 3")
    target.execute(
        FORGE
        + "update exactbatch.batch_range set records = (select records from exactbatch.batch) where records > 0"
    )
    return target


FAULTS = (
    "delete from {t} where kafka_partition = 5 and kafka_offset = 2",
    "insert into {t} select * from {t} where kafka_partition = 29 and kafka_offset = 5",
    "insert into {t} select 1, 'x', kafka_topic, 3, 7, kafka_timestamp, batch_id from {t} limit 1",
    "update {t} set name = 'other' where kafka_partition = 11 and kafka_offset = 3",
    "update {t} set name = 'other' where kafka_partition = 7 and kafka_offset = 40",
)


def found(target: AuditedTarget) -> dict[int, dict[str, list[int]]]:
    """What a full audit finds, by partition."""
    report = audit(target.pipeline, target.settings, values=True)
    assert report.records == (PARTITIONS - 2) * SIZE + 50
    return {
        each.partition: {kind: finding.first for kind, finding in each.findings.items() if finding.count}
        for each in report.partitions
        if any(finding.count for finding in each.findings.values())
    }


def test_small_logs_are_read_by_one_consumer(target, opened):
    assert found(target) == {}
    assert len(opened) == 2  # the large partition has its own


def test_what_is_planted_in_small_logs_is_found(target, opened, monkeypatch):
    for fault in FAULTS:
        assert target.execute(fault) == 1
    expected = {
        5: {"missing": [2]},
        29: {"duplicated": [5]},
        3: {"unexpected": [7]},
        11: {"changed": [3]},
        7: {"changed": [40]},
    }
    assert found(target) == expected
    assert len(opened) == 2
    # Records that are too large to be held: each partition that was not read before has a consumer of its own.
    monkeypatch.setattr(log_windows, "_HELD_BYTES", 0)
    monkeypatch.setattr(log_windows, "_RECORDS", 10)
    assert found(target) == expected
    # Groups of at most as many offsets.
    monkeypatch.undo()
    monkeypatch.setattr(log_windows, "_TOGETHER", 20)
    assert found(target) == expected


def test_records_that_come_a_second_time_are_refused(target, monkeypatch):
    consume = log_windows.Consumer.consume

    class Twice(log_windows.Consumer):
        def consume(self, *given: Any) -> Any:
            return [each for message in consume(self, *given) for each in (message, message)]

    monkeypatch.setattr(log_windows, "Consumer", Twice)
    with pytest.raises(ReadFailed, match="comes after offset"):
        audit(target.pipeline, target.settings)
