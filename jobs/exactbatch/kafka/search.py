"""Search a range of a partition for a record before a time."""

import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from exactbatch.errors import KafkaUnavailable
from exactbatch.kafka.client_errors import event_error
from exactbatch.kafka.client_properties import reader_properties
from exactbatch.kafka.close_consumer import closing_consumer
from exactbatch.kafka.consumer import POLL, Signals
from exactbatch.kafka.events import split_events
from exactbatch.model import FoundRecord
from exactbatch.offsets import OffsetRange

_SAMPLE: Final = 2000  # records
_TIMEOUT: Final = 20.0  # seconds without progress


def first_before(properties: Mapping[str, Any], range_: OffsetRange, at: datetime) -> FoundRecord | None:
    """Return the first committed record of the range with a timestamp before `at`.

    Looks at the first _SAMPLE records only; returns None if there is no such record among them.

    Raises KafkaUnavailable, ReadFailed, and ConfigurationError if an ACL denies reading.
    """
    milliseconds = math.ceil(at.timestamp() * 1000)
    limits = {"queued.min.messages": _SAMPLE, "queued.max.messages.kbytes": 8 * 1024, "log_level": 0}
    signals = Signals()
    config = {**reader_properties(properties), **limits, **signals.callbacks()}
    with closing_consumer(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(range_.topic, range_.partition, range_.from_offset)])
        seen, passed, deadline = 0, range_.from_offset, time.monotonic() + _TIMEOUT
        while seen < _SAMPLE:
            messages, end_of_log, error = split_events(consumer.consume(_SAMPLE - seen, POLL))
            signals.receive()
            for message in messages:
                record = FoundRecord(message.offset() or 0, message.timestamp()[1])
                if record.offset >= range_.until_offset:
                    return None
                if 0 <= record.timestamp < milliseconds:
                    return record
            if error is not None:
                raise event_error(range_, range_.topic, range_.partition, error)
            if end_of_log is not None:
                return None
            seen += len(messages)
            if (fetched := signals.fetched.of(range_.topic_partition)) > passed:
                passed, deadline = fetched, time.monotonic() + _TIMEOUT
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"{range_}: the broker sent no record for {_TIMEOUT:.0f} s. Check that the brokers are up, "
                    f"and try again.",
                    **range_.place,
                )
        return None
