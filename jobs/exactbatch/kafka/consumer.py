"""Follow a librdkafka consumer: its callbacks, the cluster and log that it reads, and its end.

librdkafka may take for ever to close it.
"""

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from exactbatch.errors import ConfigurationError, ReadFailed
from exactbatch.kafka.client_errors import DAMAGED
from exactbatch.kafka.client_properties import ANSWER_TIMEOUT
from exactbatch.offsets import TopicPartition as Partition

# consume() waits until it has as many messages as requested or this time has passed, in seconds.
POLL: Final = 0.1
_TIMEOUT: Final = 10.0  # seconds; a consumer without a group usually closes within milliseconds
logger = logging.getLogger(__name__)


class ClusterClient(Protocol):
    """A client that asks brokers for their cluster and for the ends of a log; confluent_kafka's Consumer is one."""

    def list_topics(self, topic: str | None = ..., timeout: float = ...) -> Any:
        """Return metadata with a `cluster_id`, and `topics` by name, each with an `error`. Raises KafkaException."""
        ...

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = ..., cached: bool = ...
    ) -> tuple[int, int]:
        """Return the offsets at which the log starts and ends. Raises KafkaException."""
        ...


class ConnectionErrors:
    """The errors that librdkafka has with its connections, as error_cb; `last` is the last one with a cause."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # "All brokers down" follows each failure of the only one, and would hide the cause.
        if self.last is None or error.name() != "_ALL_BROKERS_DOWN":
            self.last = error


class Throttling:
    """The monotonic time until which a quota throttles the client, as throttle_cb."""

    def __init__(self) -> None:
        self.until = 0.0

    def __call__(self, event: Any) -> None:
        # The last of several events has a time of zero.
        self.until = max(self.until, time.monotonic() + event.throttle_time)


class FetchPositions:
    """The offsets up to which librdkafka has fetched each partition, as stats_cb.

    They advance where consume() returns nothing: past records of aborted transactions, transaction markers and gaps
    left by compaction. (`next_offset` of a partition in librdkafka's STATISTICS.md.)
    """

    def __init__(self) -> None:
        self._offsets: dict[Partition, int] = {}

    def __call__(self, statistics: str) -> None:
        for name, topic in json.loads(statistics).get("topics", {}).items():
            for number, partition in topic.get("partitions", {}).items():
                place = name, int(number)
                self._offsets[place] = max(self.of(place), partition.get("next_offset", -1))

    def of(self, partition: Partition) -> int:
        """Return the offset of a partition; -1 before its first fetch."""
        return self._offsets.get(partition, -1)


@dataclass(frozen=True, slots=True)
class Signals:
    """What the callbacks of a consumer have reported, once receive() has run.

    The callbacks only note what they get, and run no Python code. An exception in a callback, which may be that of a
    signal's handler, would make librdkafka lose a message, and then wait for it for ever when it is closed.
    """

    errors: ConnectionErrors = field(default_factory=ConnectionErrors)
    fetched: FetchPositions = field(default_factory=FetchPositions)
    throttling: Throttling = field(default_factory=Throttling)
    _noted: dict[str, deque[Any]] = field(
        default_factory=lambda: {name: deque() for name in ("error_cb", "stats_cb", "throttle_cb")}
    )

    def callbacks(self) -> dict[str, Callable[[Any], None]]:
        """Return the callbacks, as confluent_kafka's configuration has them."""
        return {name: noted.append for name, noted in self._noted.items()}

    def receive(self) -> None:
        """Take in what the callbacks have noted. Call it after each poll."""
        receivers: dict[str, Callable[[Any], None]] = {
            "error_cb": self.errors,
            "stats_cb": self.fetched,
            "throttle_cb": self.throttling,
        }
        for name, noted in self._noted.items():
            while noted:
                receivers[name](noted.popleft())


def is_cluster(consumer: ClusterClient, where: Any, topic: str, cluster_id: str | None) -> bool:
    """True if a consumer is connected to the cluster that the batch was planned from.

    False if no broker answers soon, for example because a quota throttles the client.

    Raises ConfigurationError if it is connected to another cluster: both have a topic of this name, and nothing in
    the records distinguishes them.
    """
    if cluster_id is None:
        return True
    try:
        connected_to = consumer.list_topics(topic, timeout=ANSWER_TIMEOUT).cluster_id
    except KafkaException:
        return False
    if connected_to not in (None, cluster_id):
        raise ConfigurationError(
            f"{where}: it was planned from the Kafka cluster {cluster_id}, and {socket.gethostname()} reads "
            f"from the cluster {connected_to}. Nothing was written. Check whether the names in "
            f"bootstrap.servers belong to two clusters, or this host resolves them to other brokers. They must "
            f"name one cluster on every host.",
            topic=topic,
        )
    return True


def check_ascending(offsets: npt.NDArray[np.int64], topic: str, partition: int, position: int) -> None:
    """Raise ReadFailed for a record below `position`, up to which the log is read, or not above the one before it.

    No checksum covers the offset of a record batch: if a bit of it is damaged, its records can seem to be those of
    another batch, a second time.
    """
    if not len(offsets):
        return
    before = np.concatenate(([position - 1], offsets[:-1]))
    if (wrong := offsets <= before).any():
        index = int(wrong.argmax())
        raise ReadFailed(
            f"{topic}[{partition}] offset {offsets[index]}: a record claims this offset, and comes after offset "
            f"{before[index]}: the offset of its batch is damaged. {DAMAGED}",
            topic=topic,
            partition=partition,
            from_offset=int(offsets[index]),
            until_offset=int(offsets[index]) + 1,
        )


def check_in_log(consumer: ClusterClient, topic: str, partition: int, offset: int) -> None:
    """Raise ReadFailed for a record at an offset that the log has not reached.

    No checksum covers the offset of a record batch: if a bit of it is damaged, its records seem to be elsewhere,
    and the log seems to have a gap in their place.
    """
    where = TopicPartition(topic, partition)
    _, end = consumer.get_watermark_offsets(where, cached=True)  # of the last answer, which may be an error
    if end <= offset:
        _, end = consumer.get_watermark_offsets(where, timeout=ANSWER_TIMEOUT)
    if end <= offset:
        raise ReadFailed(
            f"{topic}[{partition}] offset {offset}: a record claims this offset, and the log ends at {end}: the "
            f"offset of its batch is damaged. {DAMAGED}",
            topic=topic,
            partition=partition,
            from_offset=offset,
            until_offset=offset + 1,
        )


class _Closeable(Protocol):
    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=_Closeable)


@contextmanager
def closing_consumer(consumer: C) -> Iterator[C]:
    """Close a consumer at the end of the block, as close_consumer() does."""
    try:
        yield consumer
    finally:
        close_consumer(consumer)


def close_consumer(consumer: _Closeable) -> None:
    """Close a consumer, and wait for that no longer than 10 s: its threads are then left to the end of the process.

    Raises what closing it raises.
    """
    raised = list[BaseException]()

    def close() -> None:
        try:
            consumer.close()
        except BaseException as error:
            raised.append(error)

    closer = threading.Thread(target=close, name="close consumer", daemon=True)
    closer.start()
    closer.join(_TIMEOUT)
    if closer.is_alive():
        logger.warning(
            "librdkafka has not closed a consumer within %s s: its threads stay until this process ends",
            _TIMEOUT,
        )
    if raised:
        raise raised[0]
