"""The consumer without an object for each record: it frees all that it is handed, and fails as the other one does.

librdkafka's mock broker runs in this process. tests/integration/test_read.py reads from Kafka, with both consumers.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import BuiltinMethodType
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psutil
import pytest
from confluent_kafka import KafkaException, Producer

from exactbatch.audit.log_windows import LogWindows
from exactbatch.columns import Column
from exactbatch.compiled import messages
from exactbatch.compiled.availability import VARIABLE, is_available
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.row_frame import row_frame
from exactbatch.errors import ConfigurationError
from exactbatch.kafka import open_consumer
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.consumer import Signals
from exactbatch.kafka.native_client import NativeClient
from exactbatch.kafka.reader import read_range
from exactbatch.model import LogPartition
from exactbatch.offsets import OffsetRange
from support.environment import LONG
from support.topics import Topic

MakeTopic = Callable[[], Topic]
MB = 1024 * 1024
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a broker that creates topics when they are first named."""
    mock = Producer({"bootstrap.servers": "-", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = mock.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del mock


@pytest.fixture
def make_topic(broker: str) -> MakeTopic:
    return lambda: Topic(f"t-{uuid4().hex[:8]}", {"bootstrap.servers": broker})


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    assert is_available()
    assert open_consumer._native() is not None


@pytest.fixture
def balance(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many messages were handed over, and how many were destroyed."""
    balance = {"taken": 0, "destroyed": 0}
    consume, destroy, destroy_left = NativeClient.consume, messages.destroy, NativeClient._destroy_messages

    def counted_consume(self: NativeClient, addresses: Any, timeout: float) -> int:
        found = consume(self, addresses, timeout)
        balance["taken"] += found
        return found

    def counted(addresses: Any, function: Any) -> None:
        balance["destroyed"] += len(addresses)
        destroy(addresses, function)

    def counted_left(self: NativeClient, addresses: Any) -> None:
        balance["destroyed"] += np.count_nonzero(addresses)
        destroy_left(self, addresses)

    monkeypatch.setattr(NativeClient, "consume", counted_consume)
    monkeypatch.setattr(messages, "destroy", counted)
    monkeypatch.setattr(NativeClient, "_destroy_messages", counted_left)
    return balance


def range_of(topic: Topic, until_offset: int) -> OffsetRange:
    return OffsetRange(topic.name, 0, 0, until_offset, UUID(int=0))


def read(topic: Topic, until_offset: int, **extra: Any) -> Any:
    properties = {**topic.properties, **extra}
    return read_range(range_of(topic, until_offset), properties, leader_epoch=None, timeout=10)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_of_every_compression(make_topic: MakeTopic, compression: str) -> None:
    topic = make_topic()
    packed = Topic(topic.name, {**topic.properties, "compression.type": compression})
    values = [None if number % 50 == 7 else b"%d" % number * (number % 9) for number in range(2000)]
    packed.produce(*values[:1000], key=b"k", headers=[("h", b"1")])
    packed.produce(*values[1000:])
    found: list[bytes | None] = []
    keys: list[bytes | None] = []
    for records in read(topic, 2000):
        part = records.values()
        part.validate(full=True)
        found += part.to_pylist()
        keys += records.keys().to_pylist()
        block = records.block()
        for index, (start, end) in enumerate(zip(block.starts, block.ends, strict=True)):
            assert block.data[start:end].tobytes() == (part[index].as_py() or b"")
        assert block.present.tolist() == [value is not None for value in part.to_pylist()]
    assert found == values
    assert keys == [b"k"] * 1000 + [None] * 1000


def test_what_was_tried_and_kept_on_disk_is_what_runs(make_topic: MakeTopic) -> None:
    """numba would compile a loop again for arrays of another type, in the middle of a batch."""
    from exactbatch.compiled import arrow_rows, json_kernel

    topic = make_topic()
    topic.produce(*(b'{"a": %d}' % number for number in range(5000)))
    kernel = JsonKernel([Column("a", "integer")], {}, row_frame(3, "t", 0, {}))
    for records in read(topic, 5000):
        block = records.block()
        offsets, times = records.offset_array, records.milliseconds()
        taken = kernel.take(block.data, block.starts, block.ends, block.present, offsets, times)
        assert taken.rows == len(records)
        records.keys(), records.part(1, len(records))
    loops = {
        name: loop
        for module in (messages, json_kernel, arrow_rows)
        for name, loop in vars(module).items()
        if hasattr(loop, "signatures")
    }
    assert {"json_rows", "gather", "read_fields", "destroy"} <= loops.keys()
    assert {name for name, loop in loops.items() if len(loop.signatures) > 1} == set()


def test_all_messages_are_destroyed_however_a_read_ends(
    make_topic: MakeTopic, balance: dict[str, int]
) -> None:
    topic = make_topic()
    topic.produce(*(b"%d" % number for number in range(5000)))
    assert sum(map(len, read(topic, 5000))) == 5000
    assert balance["taken"] == balance["destroyed"] >= 5000
    with closing(read(topic, 5000)) as reading:  # left early, with records that are still held
        held = [next(reading), next(reading)]
    assert balance["taken"] == balance["destroyed"]
    assert held[0].values().to_pylist() == [b"%d" % number for number in range(len(held[0]))]
    for part_of in (held[1].keys, held[1].headers, lambda: held[1].record(0)):
        with pytest.raises(ValueError, match="until the consumer is closed"):
            part_of()

    def fail() -> None:
        for _ in read(topic, 5000):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert balance["taken"] == balance["destroyed"]


def test_a_read_that_the_garbage_collector_ends_does_not_wait_for_its_messages(
    make_topic: MakeTopic, balance: dict[str, int]
) -> None:
    """It clears weak references first, and librdkafka waits without a limit for messages that are not destroyed."""
    topic = make_topic()
    topic.produce(*(b"%d" % number for number in range(5000)))

    def leave_in_a_cycle() -> None:
        cycle: list[Any] = [read(topic, 5000)]
        cycle += [next(cycle[0]), next(cycle[0]), cycle]

    gc.collect()
    leave_in_a_cycle()
    assert balance["taken"] > balance["destroyed"]
    collecting = threading.Thread(target=gc.collect, daemon=True)
    collecting.start()
    collecting.join(timeout=30)
    assert not collecting.is_alive()
    assert balance["taken"] == balance["destroyed"]


@pytest.mark.parametrize("fast_path", ["0", "off"])
@pytest.mark.timeout(60)
def test_what_a_callback_raises_ends_the_read(
    make_topic: MakeTopic, balance: dict[str, int], monkeypatch: pytest.MonkeyPatch, fast_path: str
) -> None:
    monkeypatch.setenv(VARIABLE, fast_path)
    topic = make_topic()
    topic.produce(b"v")

    def broken(_self: Any, _statistics: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("exactbatch.kafka.consumer.FetchPositions.__call__", broken)
    with pytest.raises(ZeroDivisionError):  # statistics come once a second, and the range does not end before
        list(read(topic, 2))
    assert balance["taken"] == balance["destroyed"]


class Interrupted(BaseException):
    """What a signal's handler raises."""


@pytest.mark.timeout(60)
def test_a_signal_between_two_statements_loses_no_message(
    make_topic: MakeTopic, balance: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler raises when the call into librdkafka returns, before anybody has seen its result."""
    topic = make_topic()
    topic.produce(*(b"%d" % number for number in range(5000)))
    consume = NativeClient.consume

    def interrupted(self: NativeClient, addresses: Any, timeout: float) -> int:
        if consume(self, addresses, timeout):
            raise Interrupted
        return 0

    monkeypatch.setattr(NativeClient, "consume", interrupted)
    with pytest.raises(Interrupted):
        list(read(topic, 5000))
    assert balance["taken"] == balance["destroyed"] > 0
    partition = LogPartition(
        topic=topic.name,
        partition=0,
        topic_id=UUID(int=0),
        leader_epoch=None,
        earliest=0,
        last_stable=20_000,
        high_watermark=20_000,
    )
    windows = LogWindows(topic.properties, partition, 0, 20_000)
    with pytest.raises(Interrupted), closing(windows):
        list(windows.window(20_000))


@pytest.mark.timeout(60)
def test_a_consumer_that_librdkafka_cannot_close_is_left_to_a_thread(
    make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    topic.produce(b"v")
    monkeypatch.setattr(NativeClient, "_destroy_messages", lambda _self, _addresses: None)
    monkeypatch.setattr("exactbatch.kafka.native_client._CLOSE_TIMEOUT", 0.5)
    reading = read(topic, 2)
    kept = next(reading)
    reading.close()
    assert "librdkafka has not closed a consumer" in caplog.text
    assert len(kept) == 1


def test_callbacks_run_no_python_code() -> None:
    """librdkafka loses a message if a callback raises, and a signal's handler can raise in any Python code."""
    assert {type(callback) for callback in Signals().callbacks().values()} == {BuiltinMethodType}


def test_a_property_that_librdkafka_refuses_is_named() -> None:
    native_consumer = open_consumer._native()
    assert native_consumer is not None
    config = {**reader_properties({"bootstrap.servers": ""}), "no.such.property": 1}
    with pytest.raises(KafkaException, match="No such configuration property"):
        native_consumer(config, Signals())
    servers = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl"}
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        list(read(Topic("t", servers), 1, **{"ssl.ca.location": "/no/such/file"}))


def test_readers_in_several_threads_do_not_meet(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(*(b"%d" % number for number in range(3000)))
    found: list[list[bytes]] = []

    def work() -> None:
        found.append([value for records in read(topic, 3000) for value in records.values().to_pylist()])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[b"%d" % number for number in range(3000)]] * 4


@pytest.mark.timeout(4_200)
def test_memory_does_not_grow_with_the_number_of_reads(make_topic: MakeTopic) -> None:
    """For an hour with EXACTBATCH_LONG=1."""
    topic = make_topic()
    value = os.urandom(1000)
    topic.produce(*[value] * 2000, key=b"k", headers=[("h", b"1")])
    process = psutil.Process()
    sizes: list[float] = []
    until = time.monotonic() + 3600
    while len(sizes) < 25 or (LONG and time.monotonic() < until):
        for records in read(topic, 2000):
            assert records.values().nbytes >= 1000 * len(records)
            records.keys(), records.headers(), records.record(0)
        sizes.append(process.memory_info().rss / MB)
    half = len(sizes) // 2
    assert np.median(sizes[-half:]) < np.median(sizes[2 : 2 + half]) + 12  # of 2 MB for each read
