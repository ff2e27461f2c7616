"""A consumer on librdkafka's C interface, which creates no object for a record: open_consumer.py says what that
saves."""

from collections.abc import Sequence

import numpy as np
from confluent_kafka import KafkaError, TopicPartition

from exactbatch.compiled import messages as compiled
from exactbatch.kafka.events import concerns_reading
from exactbatch.kafka.native_client import Addresses, NativeClient, NativeEvent
from exactbatch.kafka.native_records import NativeMessages, NativeRecords
from exactbatch.kafka.range_consumer import Fetched


class NativeConsumer(NativeClient):
    """A RangeConsumer of one partition."""

    def fetch(self, count: int, timeout: float) -> Sequence[Fetched]:
        """See RangeConsumer."""
        messages = NativeMessages(self._library, self.held, count)
        found = self.consume(messages.addresses, timeout)
        self.receive()
        return [self._fetched(messages, messages.addresses[:found])] if found else []

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
