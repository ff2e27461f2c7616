"""A consumer on librdkafka's C interface: it returns the addresses of messages.

It has a handle of its own: callbacks of a confluent_kafka Consumer abort the process when they are called for a
handle whose Python object does not expect them.
"""

import ctypes as c
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from exactbatch.kafka.consumer import Signals
from exactbatch.kafka.native_library import (
    ERROR_TEXT_BYTES,
    ErrorCallback,
    MessageStruct,
    MetadataStruct,
    StatsCallback,
    ThrottleCallback,
)
from exactbatch.offsets import TopicPartition as Partition

logger = logging.getLogger(__name__)
_CONSUMER: Final = 1  # RD_KAFKA_CONSUMER
_CLOSE_TIMEOUT: Final = 20.0  # seconds

Addresses = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class NativeEvent:
    """A message of librdkafka that is no record. (See consumer.Event.)"""

    kafka_error: KafkaError
    name: str | None
    position: int

    def error(self) -> KafkaError:
        return self.kafka_error

    def topic(self) -> str | None:
        return self.name

    def offset(self) -> int:
        return self.position


class NativeClient:
    """Reads one partition. Raises KafkaException as confluent_kafka's Consumer does."""

    def __init__(self, library: Any, config: Mapping[str, Any], signals: Signals) -> None:
        """`library` is what load_library() returned."""
        self._library, self._signals = library, signals
        self._raised: BaseException | None = None  # by a callback
        self._statistics: dict[int, bytes] = {}  # the last ones, by handle
        self._callbacks = (
            ErrorCallback(self._on_error),
            # Called every second. In Python code, a signal's handler could run here, and ctypes drops its exception.
            StatsCallback(self._statistics.__setitem__),
            ThrottleCallback(self._on_throttle),
        )
        # The addresses of the messages that are not destroyed yet; 0 is none.
        self.held: dict[object, Addresses] = {}
        self._partition: Partition | None = None
        self._handle: int | None = self._open(config)
        library.poll_set_consumer(self._handle)
        self._queue = library.queue_get_consumer(self._handle)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read this single partition from its offset on."""
        [partition] = partitions
        library = self._library
        assignment = library.topic_partition_list_new(1)
        try:
            added = library.topic_partition_list_add(
                assignment, partition.topic.encode(), partition.partition
            )
            added.contents.offset = partition.offset
            if partition.leader_epoch is not None:
                library.topic_partition_set_leader_epoch(added, partition.leader_epoch)
            self._check(library.assign(self._handle, assignment))
        finally:
            library.topic_partition_list_destroy(assignment)
        self._partition = partition.topic, partition.partition

    def consume(self, addresses: Addresses, timeout: float) -> int:
        """Write the addresses of messages into an array of zeros, and return how many they are.

        The array is one of `held`, so that close() finds the messages if a signal's handler raises after this.
        Waits until the array is full or `timeout` seconds have passed. Calls the callbacks that are due; receive()
        comes next.
        """
        found: int = self._library.consume_batch_queue(
            self._queue, round(timeout * 1000), addresses.ctypes.data, len(addresses)
        )
        if found < 0:
            raise self._exception(self._library.last_error())
        return found

    def event(self, address: int) -> NativeEvent:
        """Return a message that is no record."""
        message = MessageStruct.from_address(address)
        text = self._library.message_errstr(address)
        name = None if message.rkt is None else self._library.topic_name(message.rkt).decode()
        return NativeEvent(_kafka_error(message.err, _text(text)), name, message.offset)

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """See ClusterClient."""
        low, high = c.c_int64(), c.c_int64()
        arguments = (
            self._handle,
            partition.topic.encode(),
            partition.partition,
            c.byref(low),
            c.byref(high),
        )
        if cached:
            self._check(self._library.get_watermark_offsets(*arguments))
        else:
            self._check(self._library.query_watermark_offsets(*arguments, round(timeout * 1000)))
        return low.value, high.value

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the `cluster_id` and the `topics` from fresh metadata of a topic; each topic has an `error`."""
        assert topic is not None
        library, metadata = self._library, c.POINTER(MetadataStruct)()
        handle = library.topic_new(self._handle, topic.encode(), None)
        if handle is None:
            raise self._exception(library.last_error())
        try:
            error = library.metadata(self._handle, 0, handle, c.byref(metadata), round(timeout * 1000))
        finally:
            library.topic_destroy(handle)
        self.receive()
        self._check(error)
        found = metadata.contents
        topics = {
            each.topic.decode(): SimpleNamespace(error=self._error(each.err) if each.err else None)
            for each in found.topics[: found.topic_cnt]
        }
        library.metadata_destroy(metadata)
        cluster = library.clusterid(self._handle, 0)
        if cluster is None:
            return SimpleNamespace(cluster_id=None, topics=topics)
        try:
            return SimpleNamespace(cluster_id=c.string_at(cluster).decode(), topics=topics)
        finally:
            library.mem_free(self._handle, cluster)

    def close(self) -> None:
        """Close the connections. Destroys the messages that are still held, too."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        while self.held:
            self._destroy_messages(self.held.popitem()[1])
        self._library.queue_destroy(self._queue)
        self._library.consumer_close(handle)
        # librdkafka waits for every message. One is lost if a signal's handler raises just before it is destroyed.
        closing = threading.Thread(target=self._library.destroy, args=(handle,), daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT)
        if closing.is_alive():
            logger.warning("librdkafka has not closed a consumer within %g s", _CLOSE_TIMEOUT)

    def _destroy_messages(self, addresses: Addresses) -> None:
        for address in addresses[addresses != 0].tolist():
            self._library.message_destroy(address)

    def _open(self, config: Mapping[str, Any]) -> int:
        library, text = self._library, c.create_string_buffer(ERROR_TEXT_BYTES)
        conf = library.conf_new()
        for name, value in config.items():
            as_text = str(value).lower() if isinstance(value, bool) else str(value)
            if library.conf_set(conf, name.encode(), as_text.encode(), text, ERROR_TEXT_BYTES) != 0:
                library.conf_destroy(conf)
                raise KafkaException(_kafka_error(KafkaError._INVALID_ARG, _text(text.value)))
        on_error, on_stats, on_throttle = self._callbacks
        library.conf_set_error_cb(conf, on_error)
        library.conf_set_stats_cb(conf, on_stats)
        library.conf_set_throttle_cb(conf, on_throttle)
        handle: int | None = library.new(_CONSUMER, conf, text, ERROR_TEXT_BYTES)
        if handle is None:
            error = library.last_error()
            library.conf_destroy(conf)
            raise KafkaException(_kafka_error(error, f"Failed to create consumer: {_text(text.value)}"))
        return handle

    def _on_error(self, handle: int, code: int, reason: bytes | None, _opaque: Any) -> None:
        def report() -> None:
            text = c.create_string_buffer(reason or b"", ERROR_TEXT_BYTES)
            fatal = code == KafkaError._FATAL
            cause = self._library.fatal_error(handle, text, ERROR_TEXT_BYTES) if fatal else code
            self._signals.errors(KafkaError(cause, _text(text.value), fatal=fatal))

        self._guarded(report)

    def _on_throttle(self, _handle: int, _name: bytes, _broker: int, milliseconds: int, _opaque: Any) -> None:
        self._guarded(lambda: self._signals.throttling(SimpleNamespace(throttle_time=milliseconds / 1000)))

    def _guarded(self, report: Callable[[], None]) -> None:
        """Keep an exception until librdkafka has returned: ctypes would print and drop it."""
        try:
            report()
        except BaseException as error:
            self._raised = self._raised or error

    def receive(self) -> None:
        """Take in what the callbacks have noted, and raise what one of them has raised."""
        while self._statistics:
            _, statistics = self._statistics.popitem()
            self._signals.fetched(statistics.decode())
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _check(self, error: int) -> None:
        if error != 0:
            raise self._exception(error)

    def _exception(self, error: int) -> KafkaException:
        return KafkaException(self._error(error))

    def _error(self, error: int) -> KafkaError:
        return _kafka_error(error, _text(self._library.err2str(error)))


def _kafka_error(code: int, text: str) -> KafkaError:
    return KafkaError(code, text, fatal=code == KafkaError._FATAL)


def _text(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")
