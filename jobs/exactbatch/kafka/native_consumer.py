"""A consumer on librdkafka's C interface, which creates no object for a record."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, TopicPartition

from exactbatch.compiled import messages as compiled
from exactbatch.kafka.consumer import Signals, concerns_reading
from exactbatch.kafka.native_client import Addresses, NativeClient, NativeEvent
from exactbatch.kafka.native_records import NativeMessages, NativeRecords, destroy_messages
from exactbatch.kafka.range_consumer import Fetched


class NativeConsumer(NativeClient):
    """A RangeConsumer of one partition."""

    def __init__(self, library: Any, config: Mapping[str, Any], signals: Signals) -> None:
        """`library` is what load_library() returned."""
        super().__init__(library, config, signals)
        # The addresses of the messages that are not destroyed yet.
        self._held: dict[object, Addresses] = {}

    def fetch(self, count: int, timeout: float) -> Sequence[Fetched]:
        """See RangeConsumer."""
        addresses = self.consume(count, timeout)
        messages = NativeMessages(self._library, self._held, addresses)
        self.raise_from_callbacks()
        return [self._fetched(messages, addresses)] if len(addresses) else []

    def _fetched(self, messages: NativeMessages, addresses: Addresses) -> Fetched:
        found = len(addresses)
        errors, offsets = np.empty(found, np.int32), np.empty(found, np.int64)
        sizes, values = np.empty(found, np.int64), np.empty(found, np.uint64)
        events = compiled.read_fields(addresses, errors, offsets, sizes, values)
        if not events:
            return Fetched(
                self._partition, NativeRecords(self._library, messages, addresses, offsets, sizes, values)
            )
        end_of_log: int | None = None
        error: NativeEvent | None = None
        stop = found
        for index in np.flatnonzero(errors).tolist():
            event = self.event(int(addresses[index]))
            if event.kafka_error.code() == KafkaError._PARTITION_EOF:
                end_of_log = event.position
            elif concerns_reading(event):
                error, stop = event, index
                break
        kept = np.flatnonzero(errors[:stop] == 0)
        records = NativeRecords(
            self._library, messages, addresses[kept], offsets[kept], sizes[kept], values[kept]
        )
        return Fetched(self._partition, records, end_of_log, error)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """See RangeConsumer. There is no other partition to go on with."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections. Destroys the messages that are still held elsewhere, too."""
        while self._held:
            _, addresses = self._held.popitem()
            destroy_messages(self._library, addresses)
        super().close()
