"""Reads one partition of the log for the auditor, in windows of offsets, with a consumer of its own."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, TopicPartition

from exactbatch.audit.report import Offsets
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors import ReadFailed
from exactbatch.kafka.client import (
    FetchPosition,
    HeldBack,
    check_in_log,
    concerns_reading,
    event_error,
    is_cluster,
    reader_properties,
)
from exactbatch.model import LogPartition

# Messages that are requested at a time: fewer where their values are held until they are decoded.
_MESSAGES: Final = 10_000
_DECODED: Final = 1_000


class LogWindows:
    """Reads one partition from its beginning, in windows of offsets, with a consumer of its own."""

    _TIMEOUT: Final = 60.0  # seconds without progress

    def __init__(
        self,
        properties: Mapping[str, Any],
        log: LogPartition,
        begin: int,
        head: int,
        expected: ExpectedValues | None,
        covering: Callable[[Offsets], Offsets],
        cluster_id: str | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._covering = covering
        self._position = max(begin, log.earliest)
        self._head, self._log, self._expected = head, log, expected
        self._ahead: tuple[list[int], list[int]] = ([], [])
        self._fetched = FetchPosition(log.topic, log.partition)
        self._held_back = HeldBack()
        self._consumer: Consumer | None = None
        if self._position < head:
            callbacks = {"stats_cb": self._fetched, "throttle_cb": self._held_back}
            self._consumer = Consumer({**reader_properties(properties), **callbacks})
            self._consumer.assign([TopicPartition(log.topic, log.partition, self._position)])
            self.check_cluster()

    def window(self, end: int) -> tuple[Offsets, Offsets]:
        """Offsets of the records below `end` that were not told yet, and of those with a null value."""
        offsets, nulls = self._ahead
        passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
        while self._consumer is not None and self._position < end:
            messages = self._consumer.consume(_MESSAGES if self._expected is None else _DECODED, 0.1)
            told = [message.offset() or 0 for message in messages if message.error() is None]
            if told:
                check_in_log(self._consumer, self._log.topic, self._log.partition, told[-1])
            if self._expected is not None:
                records = [m for m in messages if m.error() is None and (m.offset() or 0) < self._head]
                if records:
                    batches = self._covering(np.array([each.offset() for each in records], np.int64))
                    self._expected.add(self._log.topic, self._log.partition, records, batches.tolist())
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
                    where = f"{self._log.topic}[{self._log.partition}] from {self._position}"
                    raise event_error(where, self._log.topic, self._log.partition, message)
                deadline = time.monotonic() + self._TIMEOUT
            if self._fetched.offset > passed:
                passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
            if time.monotonic() > max(deadline, self._held_back.until + self._TIMEOUT):
                raise ReadFailed(
                    f"{self._log}: expected the log from {self._position} to {end}, found nothing for "
                    f"{self._TIMEOUT:g} s. Is the broker up?"
                )
        all_offsets, all_nulls = np.array(offsets, np.int64), np.array(nulls, np.int64)
        self._ahead = (all_offsets[all_offsets >= end].tolist(), all_nulls[all_nulls >= end].tolist())
        return all_offsets[all_offsets < end], all_nulls[all_nulls < end]

    @property
    def next_offset(self) -> int:
        """The first record at or after the window's end; where none was read yet, how far the log was read."""
        offsets, _ = self._ahead
        return offsets[0] if offsets else self._position

    def check_cluster(self) -> None:
        """Raise ConfigurationError where another cluster than that of the plan is read."""
        if self._consumer is not None:
            is_cluster(self._consumer, self._log, self._log.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
