"""A range is read exactly: all of its committed records and nothing else, or an error that says why."""

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from exactbatch.audit import log_records, log_windows
from exactbatch.audit.log_windows import LogWindows
from exactbatch.batch.rows.decode import build_rejects
from exactbatch.errors import (
    ExactbatchError,
    LogEndedEarly,
    OffsetsLost,
    ReadFailed,
    StoredOffsetBeyondLog,
)
from exactbatch.formats import Json, Text, WithKeyAndHeaders
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.message.record_headers import UNREADABLE, Unreadable
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.consumer import Signals
from exactbatch.kafka.range_consumer import Fetched
from exactbatch.kafka.reader import _FIRST_RECORDS, _read, read_range
from exactbatch.kafka.records import KafkaRecord, MessageRecords, Records
from exactbatch.local import LocalStack
from exactbatch.model import LogPartition
from exactbatch.offsets import OffsetRange
from support.topics import NoUtf8, Topic, producer_properties

MB = 1024 * 1024
MakeTopic = Callable[..., Topic]


pytestmark = pytest.mark.usefixtures("reader")


def range_of(topic: Topic, from_offset: int, until_offset: int, partition: int = 0) -> OffsetRange:
    return OffsetRange(topic.name, partition, from_offset, until_offset, UUID(int=0))


def read(
    topic: Topic,
    from_offset: int,
    until_offset: int,
    *,
    partition: int = 0,
    timeout: float = 10,
    **extra: Any,
) -> list[Records]:
    range_ = range_of(topic, from_offset, until_offset, partition)
    return list(read_range(range_, {**topic.properties, **extra}, leader_epoch=None, timeout=timeout))


def offsets(batches: list[Records]) -> list[int]:
    return [offset for records in batches for offset in records.offsets().to_pylist()]


def values(batches: list[Records]) -> list[bytes | None]:
    return [value for records in batches for value in records.values().to_pylist()]


def failure(
    topic: Topic, from_offset: int, until_offset: int, *, timeout: float
) -> tuple[ExactbatchError, float]:
    """How reading a range fails, and after how many seconds."""
    started = time.monotonic()
    with pytest.raises(ExactbatchError) as failed:
        read(topic, from_offset, until_offset, timeout=timeout)
    return failed.value, time.monotonic() - started


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_range_gives_its_records_and_no_other(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(100))
    for first, end in ((0, 100), (0, 1), (17, 83), (40, 41), (99, 100), (0, _FIRST_RECORDS + 1)):
        batches = read(topic, first, end)
        assert offsets(batches) == list(range(first, end))
        assert values(batches) == numbered(100)[first:end]


def test_a_partition_is_read_alone(make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    topic.produce(*numbered(10), partition=0)
    topic.produce(b"other", partition=1)
    assert values(read(topic, 0, 1, partition=1)) == [b"other"]


def test_ranges_that_tile_a_partition_give_each_record_once(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(1000))
    cuts = [0, 1, 2, 333, 334, 900, 1000]
    tiles = [values(read(topic, a, b)) for a, b in itertools.pairwise(cuts)]
    assert [value for tile in tiles for value in tile] == numbered(1000)


def test_a_large_range_comes_in_batches_that_begin_small(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(100_000))
    batches = read(topic, 10, 99_990)
    assert offsets(batches) == list(range(10, 99_990))
    assert len(batches[0]) <= 16
    assert max(map(len, batches)) <= 50_000


def test_what_is_appended_meanwhile_does_not_count(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(50))
    records = read_range(range_of(topic, 0, 50), topic.properties, leader_epoch=None, timeout=10)
    batches = [next(records)]
    topic.produce(*numbered(50))
    assert offsets([*batches, *records]) == list(range(50))


def test_aborted_records_and_markers_are_left_out(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(b"a", b"b", b"c")  # 0..2
    topic.transaction(b"x", b"y", b"z", end="abort")  # 3..5, marker 6
    topic.produce(b"d")  # 7
    topic.transaction(b"e", b"f")  # 8, 9, marker 10
    topic.produce(b"g")  # 11
    batches = read(topic, 0, 12)
    assert offsets(batches) == [0, 1, 2, 7, 8, 9, 11]
    assert values(batches) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    assert offsets(read(topic, 2, 8)) == [2, 7]
    assert offsets(read(topic, 9, 11)) == [9]


@pytest.mark.parametrize("after", [0, 3])
def test_range_of_aborted_records_or_markers_alone_is_empty_and_ends(
    make_topic: MakeTopic, after: int
) -> None:
    topic = make_topic()
    topic.produce(b"a", b"b", b"c")
    topic.transaction(b"x", b"y", b"z", end="abort")  # 3..5, marker 6
    topic.transaction(b"e")  # 7, marker 8
    topic.produce(*numbered(after))
    for first, end in ((3, 7), (4, 5), (6, 7), (8, 9)):
        started = time.monotonic()
        assert read(topic, first, end) == []
        assert time.monotonic() - started < 8


def test_range_up_to_open_transaction_is_read_and_no_further(
    make_topic: MakeTopic, kafka_log: KafkaBroker
) -> None:
    topic = make_topic()
    topic.produce(*numbered(5))
    producer = topic.transaction(b"open", b"open", end="stay open")
    [partition] = kafka_log.partitions([topic.name])
    assert (partition.last_stable, partition.high_watermark) == (5, 7)
    assert offsets(read(topic, 0, 5)) == [0, 1, 2, 3, 4]
    error, _ = failure(topic, 0, 7, timeout=1)
    assert isinstance(error, LogEndedEarly)
    assert "the log has ended at 5, before the range does" in str(error)
    topic.end_transaction(producer, "commit")
    assert offsets(read(topic, 0, 8)) == list(range(7))


def test_holes_of_compaction_are_no_records_and_no_failure(make_topic: MakeTopic) -> None:
    topic = make_topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
    )
    topic.produce(*numbered(10), key="x")  # 0..9: only the last value of a key stays
    for number in range(10, 15):
        topic.produce(b"%d" % number, key=f"own {number}")
    topic.produce(*numbered(11), key="x")  # 15..25
    compacted = [10, 11, 12, 13, 14, 25]
    deadline = time.monotonic() + 30
    while offsets(read(topic, 0, 26)) != compacted:
        assert time.monotonic() < deadline, "the broker did not compact"
        time.sleep(0.5)
        topic.produce(b"", key="last")  # the segment that is written to is never compacted
    for first, end, expected in (
        (5, 20, [10, 11, 12, 13, 14]),
        (12, 24, [12, 13, 14]),
        (0, 8, []),
        (16, 24, []),
        (15, 26, [25]),
    ):
        assert offsets(read(topic, first, end, timeout=3)) == expected


def test_an_offset_that_was_removed_since_the_plan_is_an_error(
    make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic = make_topic()
    topic.produce(*numbered(100))
    admin.delete_records([TopicPartition(topic.name, 0, 30)])[TopicPartition(topic.name, 0)].result(30)
    error, seconds = failure(topic, 10, 50, timeout=10)
    assert isinstance(error, OffsetsLost)
    assert str(error) == (
        f"{topic.name}[0] 10..50: retention removed 20 of these offsets since the batch was planned (log starts "
        f"at 30). Plan again (clear the run, or wait for the next one); with on_loss='skip' the plan records "
        f"them as lost."
    )
    assert (error.topic, error.partition, error.from_offset, error.until_offset) == (topic.name, 0, 10, 30)
    assert seconds < 9
    assert offsets(read(topic, 30, 50)) == list(range(30, 50))
    wholly_lost, _ = failure(topic, 5, 15, timeout=10)
    assert "removed 10 of these offsets" in str(wholly_lost)


def test_log_that_ends_before_range_is_error_after_timeout(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(10))
    error, seconds = failure(topic, 5, 20, timeout=1)
    assert isinstance(error, LogEndedEarly)
    assert error.retryable
    assert str(error) == (
        f"{topic.name}[0] 5..20: the log has ended at 10, before the range does, for 1 s. A new leader may be "
        f"behind: try again. If the error persists, the log was truncated."
    )
    assert 1 <= seconds < 20


def test_a_log_that_grows_to_the_range_s_end_in_time_is_no_error(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(10))
    growing = threading.Timer(1, topic.produce, numbered(10))
    growing.start()
    assert offsets(read(topic, 5, 20, timeout=5)) == list(range(5, 20))
    growing.join()


def test_a_range_beyond_the_end_says_that_the_log_went_backwards(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*numbered(10))
    error, seconds = failure(topic, 50, 60, timeout=1)
    assert isinstance(error, StoredOffsetBeyondLog)
    assert not error.retryable
    assert f"{topic.name}[0] 50..60: the log has ended at 10, below this range, for 1 s" in str(error)
    assert "register a pipeline under a new name with an explicit start" in str(error)
    assert "exactbatch audit" not in str(error)  # it ends with the same error
    assert seconds > 1


def test_range_beyond_end_for_moment_can_be_tried_again(make_topic: MakeTopic) -> None:
    # As of a leader that has just been elected and does not know yet how far its log reaches.
    topic = make_topic()
    topic.produce(*numbered(10))
    growing = threading.Timer(2, topic.produce, numbered(10))
    growing.start()
    error, _ = failure(topic, 15, 20, timeout=10)
    growing.join()
    assert isinstance(error, ReadFailed)
    assert error.retryable
    assert offsets(read(topic, 15, 20)) == list(range(15, 20))


def test_empty_and_null_values_are_told_apart(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(b"", None, b"x")
    assert values(read(topic, 0, 3)) == [b"", None, b"x"]


def test_keys_headers_and_timestamps_are_those_of_the_record(make_topic: MakeTopic) -> None:
    topic = make_topic()
    headers = [("h", b"1"), ("h", None), ("é", b"\xff")]
    topic.produce(b"v", key=b"\xffkey", headers=headers, timestamp=1_700_000_000_123)
    topic.produce(b"v")
    records = read_range(range_of(topic, 0, 2), topic.properties, leader_epoch=None, timeout=10)
    found = [(part.keys().to_pylist(), part.headers(), part.record(0)) for part in records]
    assert [key for keys, _, _ in found for key in keys] == [b"\xffkey", None]
    assert [pairs for _, all_headers, _ in found for pairs in all_headers] == [headers, None]
    assert found[0][2] == KafkaRecord(0, b"\xffkey", b"v", headers)
    [first, second] = [t for each in read(topic, 0, 2) for t in each.timestamps().cast("int64").to_pylist()]
    assert first == 1_700_000_000_123
    assert abs(second - time.time() * 1000) < 60_000


@pytest.mark.parametrize("place", ["value", "key", "header"])
def test_records_of_a_megabyte_come_a_few_at_a_time(make_topic: MakeTopic, place: str) -> None:
    topic = make_topic()
    large = os.urandom(MB - 200)
    parts = {"value": {}, "key": {"key": large}, "header": {"headers": [("h", large)]}}[place]
    topic.produce(*numbered(500))
    topic.produce(*[large if place == "value" else b"v"] * 150, **parts)
    topic.produce(*numbered(500))
    sizes = []
    for records in read_range(range_of(topic, 0, 1150), topic.properties, leader_epoch=None, timeout=10):
        headers = [value for pairs in records.headers() for _, value in pairs or ()]
        assert int(records.sizes().sum()) >= records.values().nbytes - 8 * len(records)
        sizes.append((len(records), records.values().nbytes + records.keys().nbytes + sum(map(len, headers))))
    assert sum(count for count, _ in sizes) == 1150
    assert max(size for _, size in sizes) <= 33 * MB


@pytest.mark.slow
@pytest.mark.parametrize("gigabytes", [2, 4])
def test_keys_of_gigabytes_are_read_a_few_at_a_time(make_topic: MakeTopic, gigabytes: int) -> None:
    """Tiny values and keys of 900 kB, which were a single block: its offsets of 32 bits wrapped around."""
    topic = make_topic()
    key, count = bytes(900_000), gigabytes * 1200
    Topic(topic.name, {**topic.properties, "compression.type": "zstd"}).produce(*numbered(count), key=key)
    read = 0
    for records in read_range(range_of(topic, 0, count), topic.properties, leader_epoch=None, timeout=30):
        keys = records.keys()
        keys.validate(full=True)
        assert keys.nbytes <= 33 * MB
        assert keys.unique().to_pylist() == [key]
        read += len(records)
    assert read == count


# Their places are the codes that the attributes of a batch of records have for them.
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_of_every_compression_and_of_several_megabytes(
    make_topic: MakeTopic, stack: LocalStack, compression: str
) -> None:
    topic = make_topic()
    packed = Topic(topic.name, {**topic.properties, "compression.type": compression})
    small = [None if number % 50 == 7 else b"%d" % number * (number % 9) for number in range(1000)]
    large = [os.urandom(3 * MB) + bytes(4 * MB), None, bytes(5 * MB)]
    packed.produce(*small, key=b"k", headers=[("h", b"1"), ("h", None)])
    packed.produce(*large, b"", *small)
    expected = [*small, *large, b"", *small]
    assert COMPRESSIONS.index(compression) in codecs(stack, topic)
    found: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[Any] = []
    for records in read_range(
        range_of(topic, 0, len(expected)), topic.properties, leader_epoch=None, timeout=10
    ):
        part = records.values()
        part.validate(full=True)
        found += part.to_pylist()
        keys += records.keys().to_pylist()
        headers += [records.record(index).headers for index in range(len(records))]
        block = records.block()
        for index, (start, end) in enumerate(zip(block.starts, block.ends, strict=True)):
            assert block.data[start:end].tobytes() == (part[index].as_py() or b"")
        assert block.present.tolist() == [value is not None for value in part.to_pylist()]
    assert found == expected
    assert keys == [b"k"] * 1000 + [None] * 1004
    assert headers == [[("h", b"1"), ("h", None)]] * 1000 + [None] * 1004


def codecs(stack: LocalStack, topic: Topic) -> set[int]:
    """How the batches of a topic's log are compressed."""
    log = (stack.broker.data_dir / f"{topic.name}-0" / f"{0:020}.log").read_bytes()
    found, at = set(), 0
    while at + 23 <= len(log) and (length := int.from_bytes(log[at + 8 : at + 12])):
        found.add(log[at + 22] & 7)
        at += 12 + length
    return found


def test_a_topic_that_was_created_again_does_not_continue_the_range(
    make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic = make_topic()
    topic.produce(*numbered(10))
    admin.delete_topics([topic.name])[topic.name].result(30)
    again = make_topic(name=topic.name)
    again.produce(*numbered(3))
    error, _ = failure(again, 5, 10, timeout=1)
    assert isinstance(error, StoredOffsetBeyondLog)
    assert f"{topic.name}[0] 5..10: the log has ended at 3, below this range, for 1 s" in str(error)


def test_a_damaged_record_is_an_error_and_no_value(make_topic: MakeTopic, stack: LocalStack) -> None:
    """The broker sends what is on its disk, and looks at no checksum."""
    topic = make_topic()
    for value in (b"before", b"AAAA", b"after"):
        topic.produce(value)
    path = stack.broker.data_dir / f"{topic.name}-0" / f"{0:020}.log"
    written = path.read_bytes()
    with path.open("r+b") as segment:
        segment.seek(written.index(b"AAAA") + 3)
        segment.write(b"Z")
    error, _ = failure(topic, 0, 3, timeout=10)
    assert isinstance(error, ReadFailed)
    assert str(error).startswith(
        f"{topic.name}[0] offset 1: the batch of records that begins there is damaged (MessageSet at offset 1 "
    )
    assert "let another replica lead it" in str(error)
    assert values(read(topic, 0, 1)) == [b"before"]
    assert values(read(topic, 2, 3)) == [b"after"]
    [partition] = KafkaBroker(topic.properties).partitions([topic.name])
    auditor = auditor_of(topic, partition, 3)
    with (
        closing(auditor),
        pytest.raises(
            ReadFailed, match=rf"{topic.name}\[0\] offset 1: the batch of records that begins there"
        ),
    ):
        list(auditor.window(3))
    path.write_bytes(written)
    assert values(read(topic, 0, 3)) == [b"before", b"AAAA", b"after"]


def auditor_of(topic: Topic, partition: LogPartition, head: int, **properties: Any) -> LogWindows:
    return LogWindows.open({**topic.properties, **properties}, partition, 0, head)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_auditor_reads_values_keys_and_times(make_topic: MakeTopic, compression: str) -> None:
    topic = make_topic(retention_ms="-1", message_timestamp_after_max_ms=str(2**63 - 1))
    topic = Topic(topic.name, {**topic.properties, "compression.type": compression})
    sizes = [0, 1, 11, 12, 13, 14, 300, 100_000, 12, 900_000, None, 40]
    contents = [None if size is None else os.urandom(size) for size in sizes]
    milliseconds = [1_767_225_600_000, 1, 9_300_000_000_000_000]  # the last is beyond Postgres's
    expected = [
        (value, key) for value in contents for key in contents if len(value or b"") + len(key or b"") < 1e6
    ]
    for number, (value, key) in enumerate(expected):
        topic.produce(value, key=key, timestamp=milliseconds[number % 3])
    [partition] = KafkaBroker(topic.properties).partitions([topic.name])
    with closing(auditor_of(topic, partition, len(expected))) as auditor:
        blocks = [part for block in auditor.window(len(expected)) for part in block.cut(57)]
    records = [block.records for block in blocks]
    assert sum(map(len, records)) == len(expected)
    assert [at for block in blocks for at in block.nulls] == [
        at for at, (value, _) in enumerate(expected) if value is None
    ]
    found = [
        each
        for part in records
        for each in zip(
            *(column.to_pylist() for column in (part.values(), part.keys(), part.timestamps())), strict=True
        )
    ]
    assert [each[:2] for each in found] == expected
    assert {each[2] and each[2].timestamp() for each in found} == {1_767_225_600, 0.001, None}


def test_a_damaged_offset_is_no_hole_in_the_log(make_topic: MakeTopic, stack: LocalStack) -> None:
    """No checksum covers it: the record seems to stand far behind the range, which would end without it."""
    topic = make_topic()
    topic.produce(b"one")
    path = stack.broker.data_dir / f"{topic.name}-0" / f"{0:020}.log"
    length = len(path.read_bytes())
    topic.produce(b"two")
    with path.open("r+b") as segment:
        segment.seek(length + 3)
        segment.write(b"\x01")
    error, _ = failure(topic, 0, 2, timeout=10)
    assert isinstance(error, ReadFailed)
    assert f"{topic.name}[0] offset {2**32 + 1}: a record claims this offset, and the log ends at 2" in str(
        error
    )
    [partition] = KafkaBroker(topic.properties).partitions([topic.name])
    auditor = auditor_of(topic, partition, 2)
    with (
        closing(auditor),
        pytest.raises(ReadFailed, match="the log ends at 2: the offset of its batch is damaged"),
    ):
        list(auditor.window(2))


def test_aborted_records_are_progress(make_topic: MakeTopic) -> None:
    """More of them than come within the timeout: a broker that throttles, a slow line, one huge transaction."""
    topic = make_topic()
    in_pieces = Topic(topic.name, {**topic.properties, "batch.num.messages": 1})
    in_pieces.transaction(*[os.urandom(45_000)] * 10, end="abort")  # 0..9, marker 10
    topic.produce(b"visible")
    # The broker waits for half a second before each answer, since it never has as much as is asked for.
    slow = {"fetch.min.bytes": 10_000_000, "fetch.message.max.bytes": 1000, "fetch.wait.max.ms": 500}
    started = time.monotonic()
    assert offsets(read(topic, 0, 12, timeout=3, **slow)) == [11]
    assert time.monotonic() - started > 4
    [partition] = KafkaBroker(topic.properties).partitions([topic.name])
    auditor = auditor_of(topic, partition, 12, **slow)
    with closing(auditor), pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_windows, "_TIMEOUT", 3)
        assert [block.offsets.tolist() for block in auditor.window(12)] == [[11]]


def test_what_a_quota_holds_back_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that holds a client back answers with nothing, and then not at all, for longer than the timeout."""

    class Slow:
        """A consumer that is told that it has to wait, and then gets what it waits for."""

        def __init__(self, _config: Any, signals: Signals, **_: Any) -> None:
            self.throttled, self.began = signals.throttling, time.monotonic()
            self.told = False

        def fetch(self, _count: int, _timeout: float) -> list[Fetched]:
            time.sleep(0.05)
            if not self.told:
                self.told = True
                for seconds in (1.0, 0.0):
                    self.throttled(SimpleNamespace(throttle_time=seconds))
            none = MessageRecords([], np.empty(0, np.int64))
            return [] if time.monotonic() < self.began + 1 else [Fetched(("t", 0), none, end_of_log=10)]

        def assign(self, _partitions: list[Any]) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr("exactbatch.kafka.reader.open_consumer", Slow)
    range_ = range_of(Topic("t", {}), 0, 10)
    assert list(read_range(range_, {}, leader_epoch=None, timeout=0.3)) == []


def test_a_read_that_stalls_after_aborted_records_says_so() -> None:
    signals = Signals()
    assert signals.fetched.of(("t", 0)) == -1
    statistics = [
        {"topics": {}},
        {"topics": {"t": {"partitions": {"0": {"next_offset": -1001}, "1": {"next_offset": 90}}}}},
        {"topics": {"t": {"partitions": {"0": {"next_offset": 7}}}}},
    ]

    class Stalled:
        def fetch(self, _count: int, _timeout: float) -> list[Any]:
            time.sleep(0.05)
            signals.fetched(json.dumps(statistics.pop(0) if len(statistics) > 1 else statistics[0]))
            return []

        def list_topics(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(topics={})

    range_ = OffsetRange("t", 0, 0, 10, UUID(int=0))
    with pytest.raises(ReadFailed) as failed:
        list(_read(Stalled(), [range_], {}, 0.3, signals))  # type: ignore[arg-type]
    assert str(failed.value) == (
        "t[0] 0..10: the broker sent nothing from offset 0 on for 0.3 s, after only "
        "records of aborted transactions up to 7. Check that the brokers are up, and try again; read_timeout "
        "sets how long to wait."
    )


@pytest.mark.parametrize(
    ("fetches", "wrong", "before"),
    [([[0, 1, 2, 1, 4]], 1, 2), ([[0, 1], [1, 2]], 1, 1), ([[5, 6]], 5, 9)],
)
def test_offsets_that_do_not_ascend_are_refused(fetches: list[list[int]], wrong: int, before: int) -> None:
    """As if the offset of a record batch were damaged: its records would count twice."""
    left = [np.array(offsets, np.int64) for offsets in fetches]

    class Damaged:
        def fetch(self, _count: int, _timeout: float) -> list[Fetched]:
            offsets = left.pop(0)
            return [Fetched(("t", 0), MessageRecords([Nothing()] * len(offsets), offsets))]  # type: ignore[list-item]

        def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
            return 0, 100

    class Nothing:
        def __len__(self) -> int:
            return 0

        def key(self) -> None:
            return None

        def headers(self) -> None:
            return None

        def leader_epoch(self) -> None:
            return None

    range_ = OffsetRange("t", 0, 10 if wrong == 5 else 0, 20, UUID(int=0))
    with pytest.raises(
        ReadFailed, match=rf"t\[0\] offset {wrong}: .* comes after offset {before}: .*damaged"
    ):
        list(_read(Damaged(), [range_], {}, 5, Signals()))  # type: ignore[arg-type]


def test_a_broker_that_never_answers_is_an_error_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        accepted: list[socket.socket] = []
        threading.Thread(target=_accept, args=(silent, accepted), daemon=True).start()
        topic = Topic("t", {"bootstrap.servers": f"{host}:{port}"})
        error, seconds = failure(topic, 0, 10, timeout=1.5)
        for each in accepted:
            each.close()
    assert isinstance(error, ReadFailed)
    assert error.retryable
    assert accepted
    assert "t[0] 0..10: the broker sent nothing from offset 0 on for 1.5 s" in str(error)
    assert "read_timeout sets how long to wait" in str(error)
    assert 1.5 <= seconds < 20


def test_a_broker_that_is_not_there_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error, seconds = failure(Topic("t", {"bootstrap.servers": f"127.0.0.1:{port}"}), 0, 10, timeout=1)
    assert isinstance(error, ReadFailed)
    assert f"the last connection error was: 127.0.0.1:{port}" in str(error)
    assert "Connection refused" in str(error)
    assert seconds < 20


def test_a_topic_that_is_gone_is_an_error(make_topic: MakeTopic) -> None:
    gone = Topic(f"gone-{uuid4().hex[:6]}", make_topic().properties)
    error, seconds = failure(gone, 0, 10, timeout=3)
    assert isinstance(error, ReadFailed)
    assert error.retryable  # it may have just started; the next launch asks for longer
    assert f"{gone.name}[0] 0..10: the broker does not know this topic and partition" in str(error)
    assert "If the topic was deleted, the next launch says so." in str(error)
    assert seconds < 30


def test_a_partition_that_is_not_there_is_an_error(make_topic: MakeTopic) -> None:
    with pytest.raises(ReadFailed, match=r"\[7\] 0\.\.1: the broker does not know this topic and"):
        read(make_topic(), 0, 1, partition=7, timeout=3)


@pytest.mark.slow
def test_broker_that_dies_and_comes_back_in_mid_range_loses_and_repeats_nothing(
    own_stack: LocalStack, reader: str
) -> None:
    topic = Topic(f"killed-{reader}", own_stack.kafka_properties)
    admin = AdminClient(topic.properties)
    admin.create_topics([NewTopic(topic.name, 1, 1)])[topic.name].result(30)
    topic.produce(*[b"%d" % number + b"x" * 1000 for number in range(20_000)])
    # A short queue, so that most of the range is still in the broker when it dies.
    slow = {**topic.properties, "queued.max.messages.kbytes": 500, "queued.min.messages": 100}
    slow["fetch.message.max.bytes"] = 100_000
    records = read_range(range_of(topic, 0, 20_000), slow, leader_epoch=0, timeout=120)
    batches = [next(records)]
    assert len(batches[0]) < 1000
    own_stack.broker.kill()
    start = threading.Timer(1, own_stack.broker.start)
    start.start()
    batches += records
    start.join()
    assert offsets(batches) == list(range(20_000))


def _accept(server: socket.socket, accepted: list[socket.socket]) -> None:
    while True:
        try:
            accepted.append(server.accept()[0])
        except OSError:
            return


def test_headers_whose_name_is_no_utf_8_make_rejects_of_their_records_alone(
    make_topic: MakeTopic, reader: str
) -> None:
    topic = make_topic()
    producer = KafkaProducer(**producer_properties(topic.properties))
    for value, headers in (
        (b'{"a": 1}', [("trace", b"x")]),
        (b'{"a": 2}', [("trace", b"y"), (NoUtf8("??"), b"z")]),
        (b"no json", [(NoUtf8("??"), b"z")]),
        (None, [(NoUtf8("??"), b"z")]),
        (b'{"a": 5}', []),
        # So many that the interpreter has specialised its code, which then sees an exception at another place.
        *[(b'{"a": 6}', [(NoUtf8("??"), b"z")])] * 100,
    ):
        producer.send(topic.name, value, key=b"k", headers=headers, partition=0)
    producer.flush()
    producer.close()
    found = []
    for part in read_range(range_of(topic, 0, 105), topic.properties, leader_epoch=None, timeout=10):
        own = log_records.LogRecords(part._messages) if reader == "messages" else part  # type: ignore[attr-defined]
        found += own.headers()
    unreadable = [isinstance(each, Unreadable) for each in found]
    assert unreadable == [False, True, True, True, False, *[True] * 100]
    reading = read_range(range_of(topic, 0, 5), topic.properties, leader_epoch=None, timeout=10)
    records = next(reading)
    for format_ in (
        WithKeyAndHeaders(Json("a int"), headers={"trace": Text("trace")}),
        WithKeyAndHeaders(Json("a int"), all_headers="all"),
    ):
        decoded = RecordDecoder(format_).decode(records.values(), records)
        assert decoded.rows.column("a").to_pylist() == [1, 5]
        assert decoded.tombstones == 1
        assert [index for index, _ in decoded.rejects] == [1, 2]
        assert "a name is not UTF-8" in decoded.rejects[0][1]
    stored = build_rejects(range_of(topic, 0, 5), records, decoded, 7).to_pylist()
    assert [(each["offset"], each["value"], each["headers"]) for each in stored] == [
        (1, b'{"a": 2}', "[]"),
        (2, b"no json", "[]"),
    ]
    assert stored[0]["reason"] == UNREADABLE
    assert stored[1]["reason"] == f"expected a JSON object: {{ … }}; {UNREADABLE}"
    assert list(reading) == []


def test_the_last_header_of_a_name_is_found_by_both_readers(make_topic: MakeTopic) -> None:
    topic = make_topic()
    name = "__value_schema_id"
    producer = KafkaProducer(**producer_properties(topic.properties))
    for headers in (
        [],
        [("other", b"x")],
        [(name, b"a")],
        [(name, b"a"), (name + "s", b"b"), (name, b"\0c"), (name[:-1], b"d")],
        [(name, b"")],
        [("é", b"x"), (name, b"e"), ("é", b"y")],
        [("é", b"x")],
        [(name, b"a"), (NoUtf8("??"), b"z")],
        [(NoUtf8("??"), b"z")],
        [(name, b"f" * 1000)],
    ):
        producer.send(topic.name, b"v", headers=headers, partition=0)
    producer.flush()
    producer.close()
    topic.produce(b"v", headers=[(name, b"a"), (name, None)])  # kafka-python refuses null
    expected = {
        2: b"a",
        3: b"\0c",
        4: b"",
        5: b"e",
        7: Unreadable(),
        8: Unreadable(),
        9: b"f" * 1000,
        10: None,
    }
    seen = 0
    for records in read_range(range_of(topic, 0, 11), topic.properties, leader_epoch=None, timeout=10):
        for _ in range(2):
            found = records.last_headers(name)
            assert found == {
                at - seen: expected[at] for at in range(seen, seen + len(records)) if at in expected
            }
            assert all(type(found[at - seen]) is type(expected[at]) for at in expected if at - seen in found)
        assert records.last_headers("none").keys() <= {7 - seen, 8 - seen}
        seen += len(records)
    assert seen == 11
