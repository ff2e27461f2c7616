"""Read one partition of the log for the auditor, in windows of offsets, with a separate consumer."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, TopicPartition

from exactbatch.audit.report import Offsets
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors import ReadFailed
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.consumer import (
    FetchPosition,
    Throttling,
    check_in_log,
    concerns_reading,
    is_cluster,
)
from exactbatch.kafka.errors import event_error
from exactbatch.model import LogPartition

# Messages that are requested at a time: fewer where their values are held until they are decoded.
_MESSAGES: Final = 10_000
_DECODED: Final = 1_000


class LogWindows:
    """Reads one partition from its beginning, in windows of offsets."""

    _TIMEOUT: Final = 60.0  # seconds without progress

    def __init__(
        self,
        properties: Mapping[str, Any],
        partition: LogPartition,
        begin: int,
        head: int,
        expected: ExpectedValues | None,
        covering: Callable[[Offsets], Offsets],
        cluster_id: str | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._covering = covering
        self._position = max(begin, partition.earliest)
        self._head, self._partition, self._expected = head, partition, expected
        self._ahead: tuple[list[int], list[int]] = ([], [])
        self._fetched = FetchPosition(partition.topic, partition.partition)
        self._throttling = Throttling()
        self._consumer: Consumer | None = None
        if self._position < head:
            callbacks = {"stats_cb": self._fetched, "throttle_cb": self._throttling}
            self._consumer = Consumer({**reader_properties(properties), **callbacks})
            self._consumer.assign([TopicPartition(partition.topic, partition.partition, self._position)])
            self.check_cluster()

    def window(self, end: int) -> tuple[Offsets, Offsets]:
        """Return the offsets of records below `end` that no earlier window returned, and those of null values."""
        offsets, nulls = self._ahead
        passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
        while self._consumer is not None and self._position < end:
            messages = self._consumer.consume(_MESSAGES if self._expected is None else _DECODED, 0.1)
            offsets_read = [message.offset() or 0 for message in messages if message.error() is None]
            if offsets_read:
                check_in_log(
                    self._consumer, self._partition.topic, self._partition.partition, offsets_read[-1]
                )
            if self._expected is not None:
                records = [m for m in messages if m.error() is None and (m.offset() or 0) < self._head]
                if records:
                    batches = self._covering(np.array([record.offset() for record in records], np.int64))
                    self._expected.add(
                        self._partition.topic, self._partition.partition, records, batches.tolist()
                    )
            for message in messages:
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    offsets.append(offset)
                    if message.value() is None:
                        nulls.append(offset)
                    self._position = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._position = max(self._position, offset)
                elif concerns_reading(message):
                    where = f"{self._partition.topic}[{self._partition.partition}] from {self._position}"
                    raise event_error(where, self._partition.topic, self._partition.partition, message)
                deadline = time.monotonic() + self._TIMEOUT
            if self._fetched.offset > passed:
                passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
            if time.monotonic() > max(deadline, self._throttling.until + self._TIMEOUT):
                raise ReadFailed(
                    f"{self._partition}: nothing could be read from offset {self._position} to {end} for "
                    f"{self._TIMEOUT:g} s. Check that the broker is up."
                )
        all_offsets, all_nulls = np.array(offsets, np.int64), np.array(nulls, np.int64)
        self._ahead = (all_offsets[all_offsets >= end].tolist(), all_nulls[all_nulls >= end].tolist())
        return all_offsets[all_offsets < end], all_nulls[all_nulls < end]

    @property
    def next_offset(self) -> int:
        """The first record at or past the window's end; if none was read yet, the position in the log."""
        offsets, _ = self._ahead
        return offsets[0] if offsets else self._position

    def check_cluster(self) -> None:
        """Raise ConfigurationError if the consumer reads another cluster than that of the plan."""
        if self._consumer is not None:
            is_cluster(self._consumer, self._partition, self._partition.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
