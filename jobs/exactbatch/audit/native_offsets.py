"""Read the offsets of records in librdkafka's own memory, without an object for each.

Its fields are read here, by numpy, and not by the compiled loops of the batch path: a mistake there would hide itself.
"""

import ctypes as c
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError

from exactbatch.kafka.consumer import Event, Signals, concerns_reading
from exactbatch.kafka.native_client import Addresses, NativeClient
from exactbatch.kafka.native_library import address_of

# All memory of a process as words of 8 bytes, from the second page on: an address is an index. A 64-bit process has
# 2**47 bytes; librdkafka aligns its messages to words.
_FIRST: Final = 4096
_WORDS: Final = (2**47 - _FIRST) // 8
# Fields of rd_kafka_message_t, in words. The first is of 4 bytes.
_ERR, _PAYLOAD, _OFFSET = 0, 3, 7
_LOW_32_BITS: Final = 0xFFFFFFFF
_Destroy: Final = c.PYFUNCTYPE(
    None, c.c_void_p
)  # keeps the GIL, which each other call would release and take


class OffsetConsumer:
    """Reads the offsets of one partition, and which of its records have null values."""

    def __init__(self, library: Any, config: Mapping[str, Any], signals: Signals) -> None:
        """`library` is what load_library() returned. Raises KafkaException for refused properties."""
        self.client = NativeClient(library, config, signals)
        self._destroy: Any = _Destroy(address_of(library.message_destroy))
        self._memory = np.ctypeslib.as_array((c.c_uint64 * _WORDS).from_address(_FIRST))

    def read(
        self, count: int, timeout: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int | None, Event | None]:
        """Return the offsets of up to `count` records, those of null values, the end of the log if it was reached, and
        an error that concerns reading."""
        key, held = object(), self.client.held
        addresses = held[key] = np.zeros(count, np.uint64)
        try:
            found = self.client.consume(addresses, timeout)
            self.client.receive()
            return self._read(addresses[:found])
        finally:
            left = [None, *addresses[addresses != 0].tolist()]
            del held[key]
            # Without Python code in between, in which a signal's handler could run.
            deque(map(self._destroy, iter(left.pop, None)), maxlen=0)

    def _read(
        self, addresses: Addresses
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int | None, Event | None]:
        words = ((addresses - np.uint64(_FIRST)) >> np.uint64(3)).astype(np.int64)
        codes = self._memory[words + _ERR] & np.uint64(_LOW_32_BITS)
        end_of_log, error = events_among(map(self.client.event, addresses[codes != 0].tolist()))
        words = words[codes == 0]
        offsets = self._memory[words + _OFFSET].view(np.int64)
        return offsets, offsets[self._memory[words + _PAYLOAD] == 0], end_of_log, error


def events_among(events: Iterable[Event]) -> tuple[int | None, Event | None]:
    """Return the end of the log, if one of the events is about it, and the last error that concerns reading."""
    end_of_log, error = None, None
    for event in events:
        kafka_error = event.error()
        if kafka_error is not None and kafka_error.code() == KafkaError._PARTITION_EOF:
            end_of_log = event.offset()
        elif concerns_reading(event):
            error = event
    return end_of_log, error
