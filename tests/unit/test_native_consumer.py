"""The consumer without an object for each record: it frees all that it is handed, and fails as the other one does.

The broker is librdkafka's mock. tests/integration/test_read.py reads from Kafka, with both consumers.
"""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import BuiltinMethodType
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from exactbatch.columns import Column
from exactbatch.compiled import messages
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.row_frame import NO_FRAME, row_frame
from exactbatch.errors import ConfigurationError
from exactbatch.kafka import reader as range_reader
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.consumer import Signals
from exactbatch.kafka.native_client import NativeClient
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from support.environment import LEAK_MINUTES
from support.held_resources import Held
from support.mock_broker import mock_broker
from support.readers import read_with
from support.topics import Topic

MakeTopic = Callable[[], Topic]
MB = 1024 * 1024


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a broker that creates topics when they are first named."""
    with mock_broker() as address:
        yield address


@pytest.fixture
def make_topic(broker: str) -> MakeTopic:
    return lambda: Topic(f"t-{uuid4().hex[:8]}", {"bootstrap.servers": broker})


@pytest.fixture(autouse=True)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read without objects, except in tests that run with both readers."""
    if "reader" not in request.fixturenames:
        read_with(monkeypatch, "native")


@pytest.fixture
def balance(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many messages were handed over, and how many of these were destroyed."""
    balance = {"taken": 0, "destroyed": 0}
    # What an earlier test read may be destroyed while this one counts.
    own: set[int] = set()
    consume, destroy, destroy_left = NativeClient.consume, messages.destroy, NativeClient._destroy_messages

    def count_destroyed(addresses: Any) -> None:
        destroyed = own.intersection(addresses.tolist())
        own.difference_update(destroyed)
        balance["destroyed"] += len(destroyed)

    def counted_consume(self: NativeClient, addresses: Any, timeout: float) -> int:
        found = consume(self, addresses, timeout)
        own.update(addresses[:found].tolist())
        balance["taken"] += found
        return found

    def counted(addresses: Any, function: Any) -> None:
        count_destroyed(addresses)
        destroy(addresses, function)

    def counted_left(self: NativeClient, addresses: Any) -> None:
        count_destroyed(addresses)
        destroy_left(self, addresses)

    monkeypatch.setattr(NativeClient, "consume", counted_consume)
    monkeypatch.setattr(messages, "destroy", counted)
    monkeypatch.setattr(NativeClient, "_destroy_messages", counted_left)
    return balance


def range_of(topic: Topic, until_offset: int) -> OffsetRange:
    return OffsetRange(topic.name, 0, 0, until_offset, UUID(int=0))


def read(topic: Topic, until_offset: int, *, cluster_id: str | None = None, **extra: Any) -> Any:
    return read_range(
        range_of(topic, until_offset),
        {**topic.properties, **extra},
        leader_epoch=None,
        timeout=10,
        cluster_id=cluster_id,
    )


def test_what_was_tried_and_kept_on_disk_is_what_runs(make_topic: MakeTopic) -> None:
    """numba would compile a loop again for arrays of another type, in the middle of a batch."""
    from exactbatch.compiled import json_kernel, rows_arrow

    topic = make_topic()
    topic.produce(*(b'{"a": %d}' % number for number in range(5000)))
    kernel, of_values = (
        JsonKernel([Column("a", "integer")], {}, frame) for frame in (row_frame(3, "t", 0, {}), NO_FRAME)
    )
    schema = pa.schema([("a", pa.int32())])
    for records in read(topic, 5000):
        block = records.block()
        offsets, times = records.offset_array, records.milliseconds()
        taken = kernel.take(block.data, block.starts, block.ends, block.present, offsets, times)
        assert taken.rows == len(records)
        fields = of_values.take(block.data, block.starts, block.ends, block.present, offsets, times)
        rows_arrow.RowsAsArrow(schema).read(fields.data, fields.rows)
        records.keys(), records.part(1, len(records))
    loops = {
        name: loop
        for module in (messages, json_kernel, rows_arrow)
        for name, loop in vars(module).items()
        if hasattr(loop, "signatures")
    }
    assert {"json_rows", "row_columns", "gather", "read_fields", "destroy"} <= loops.keys()
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


# Statistics are taken in after librdkafka has returned, and errors while it runs.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("callback", "extra"),
    [("FetchPositions", {}), ("ConnectionErrors", {"bootstrap.servers": "127.0.0.1:1"})],
)
def test_what_a_callback_raises_ends_the_read(
    make_topic: MakeTopic,
    balance: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    callback: str,
    extra: dict[str, str],
    reader: str,
) -> None:
    topic = make_topic()
    topic.produce(b"v")

    def broken(_self: Any, _told: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(f"exactbatch.kafka.consumer.{callback}.__call__", broken)
    with pytest.raises(ZeroDivisionError):  # statistics come once a second, and the range does not end before
        list(read(topic, 2, **extra))
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


def test_a_property_that_librdkafka_refuses_is_named(reader: str) -> None:
    config = {**reader_properties({"bootstrap.servers": ""}), "no.such.property": 1}
    with pytest.raises(KafkaException, match="No such configuration property") as refused:
        range_reader.open_consumer(config, Signals(), offsets=1, partitions=1)
    assert refused.value.args[0].code() == KafkaError._INVALID_ARG
    servers = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl"}
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        list(read(Topic("t", servers), 1, **{"ssl.ca.location": "/no/such/file"}))


def test_readers_in_several_threads_do_not_meet(make_topic: MakeTopic, reader: str) -> None:
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


ALONE = "EXACTBATCH_TEST_ALONE"  # set in the process that a test has for itself
# A window of reads; what a leak leaves of each read adds up to more than this, and the rest is noise.
READS = 30
ALLOCATED = 3_000
BLOCKS = 150
RESIDENT = 16 * MB


@pytest.mark.timeout(600 + 60 * LEAK_MINUTES)
def test_reads_leave_no_memory_descriptor_or_thread_behind(
    make_topic: MakeTopic, reader: str, request: pytest.FixtureRequest
) -> None:
    """For a few seconds, or for EXACTBATCH_LEAK_MINUTES. A leak grows in every window, all else in some."""
    if ALONE not in os.environ:
        run_alone(request)
        return
    topic = make_topic()
    topic.produce(*[os.urandom(1000)] * 500, key=b"k", headers=[("h", b"1")])
    cluster_id = AdminClient(topic.properties).list_topics(timeout=10).cluster_id
    until, threads = time.monotonic() + 60 * LEAK_MINUTES, threading.active_count()

    def held_after_reads(seconds: float) -> tuple[Held, int]:
        """What is held after reads for so long, and how many they were."""
        end, reads = time.monotonic() + seconds, 0
        while reads < READS or time.monotonic() < end:
            for records in read(topic, 500, cluster_id=cluster_id):
                assert records.values().nbytes >= 1000 * len(records)
                records.keys(), records.headers(), records.record(0)
                del records
            assert threading.active_count() == threads, "librdkafka waits for a message"
            reads += 1
        gc.collect()
        return Held.now(), reads

    before, _ = held_after_reads(0)
    first, growth = before, []
    while not growth or time.monotonic() < until or (len(growth) < 12 and not is_quiet(growth)):
        after, reads = held_after_reads(6 * LEAK_MINUTES)  # a tenth
        growth.append(after - before)
        print(f"{reader}: {reads} reads: {after}; grown by {growth[-1]}", flush=True)  # noqa: T201 - shown by -s
        before = after
    assert is_quiet(growth), growth
    assert before.descriptors <= first.descriptors
    assert before.threads <= first.threads


def run_alone(request: pytest.FixtureRequest) -> None:
    """Run this test in a process of its own: what other tests leave, such as threads of Spark, grows from second to
    second."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", request.node.nodeid],
        cwd=request.config.rootpath,
        env={**environment, ALONE: "1"},
        capture_output=True,
        text=True,
    )
    print(done.stdout)  # noqa: T201 - shown by -s
    assert done.returncode == 0, done.stdout + done.stderr


def is_quiet(growth: list[Held]) -> bool:
    """True if no kind of memory has grown in every window."""
    return (
        min(each.allocated for each in growth) < ALLOCATED
        and min(each.blocks for each in growth) < BLOCKS
        and min(each.resident for each in growth) < RESIDENT
    )
