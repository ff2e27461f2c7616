"""Read records in librdkafka's own memory, without an object for each: their offsets, and perhaps their bytes.

Their fields are read here, by numpy, and not by the compiled loops of the batch path: a mistake there would hide
itself.
"""

import ctypes as c
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError

from exactbatch.audit.log_records import CopiedRecords, timestamps_of
from exactbatch.audit.report import Offsets
from exactbatch.kafka.consumer import Event, Signals, concerns_reading
from exactbatch.kafka.native_client import Addresses, NativeClient
from exactbatch.kafka.native_library import address_of

# All memory of a process as words of 8 bytes, from the second page on: an address is an index. Linux gives a process
# addresses below 2**47 on x86-64, and below 2**48 on arm64. librdkafka aligns its messages to words.
_FIRST: Final = 4096
_WORDS: Final = (2**48 - _FIRST) // 8
_MEMORY: Final = np.ctypeslib.as_array((c.c_uint64 * _WORDS).from_address(_FIRST))
_BYTES: Final = np.ctypeslib.as_array((c.c_uint8 * (8 * _WORDS)).from_address(_FIRST))
# Fields of rd_kafka_message_t, in words. The first is of 4 bytes.
_ERR, _PAYLOAD, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 0, 3, 4, 5, 6, 7
_LOW_32_BITS: Final = 0xFFFFFFFF
# These functions keep the GIL, which each other call would release and take.
_Destroy: Final = c.PYFUNCTYPE(None, c.c_void_p)
_Timestamp: Final = c.PYFUNCTYPE(c.c_int64, c.c_void_p, c.c_void_p)

# A view of Arrow's type binary_view: a size, and either the bytes themselves or their place in one of some buffers.
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("start", "<i4")])
_INLINE_BYTES: Final = 12  # the longest value in a view
_INLINE_AT: Final = 4  # where its bytes begin
# Memory is divided into pieces. Each is a buffer from its beginning on, with what begins in it. Places have 31
# bits, and a record has less than 1 GB.
_PIECE_BITS: Final = 30
_BUFFER_BYTES: Final = 2**31


@dataclass(frozen=True, slots=True)
class NativeBlock:
    """What one read has found: offsets; those of null values; the records, if they are read; how many bytes these
    have; the end of the log, if it was reached; and an error that concerns reading."""

    offsets: Offsets
    nulls: Offsets
    records: CopiedRecords | None
    bytes: int
    end_of_log: int | None
    error: Event | None


class NativeReader:
    """Reads the offsets of one partition, and which of its records have null values; with `values`, also the bytes."""

    def __init__(
        self, library: Any, config: Mapping[str, Any], signals: Signals, *, values: bool = False
    ) -> None:
        """`library` is what load_library() returned. Raises KafkaException for refused properties."""
        self.client = NativeClient(library, config, signals)
        self._values = values
        self._destroy: Any = _Destroy(address_of(library.message_destroy))
        self._timestamp: Any = _Timestamp(address_of(library.message_timestamp))

    def read(self, count: int, timeout: float) -> NativeBlock:
        """Return up to `count` records."""
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

    def _read(self, addresses: Addresses) -> NativeBlock:
        words = ((addresses - np.uint64(_FIRST)) >> np.uint64(3)).astype(np.int64)
        codes = _MEMORY[words + _ERR] & np.uint64(_LOW_32_BITS)
        end_of_log, error = events_among(map(self.client.event, addresses[codes != 0].tolist()))
        is_record = codes == 0
        words = words[is_record]
        offsets = _MEMORY[words + _OFFSET].view(np.int64)
        payloads = _MEMORY[words + _PAYLOAD]
        records, size = None, 0
        if self._values:
            sizes, key_sizes = (_MEMORY[words + field].astype(np.int64) for field in (_LENGTH, _KEY_LENGTH))
            size = int(sizes.sum())
            records = CopiedRecords(
                copied(payloads, sizes),
                copied(_MEMORY[words + _KEY], key_sizes),
                self._timestamps(addresses[is_record]),
            )
        return NativeBlock(offsets, offsets[payloads == 0], records, size, end_of_log, error)

    def _timestamps(self, addresses: Addresses) -> pa.TimestampArray:
        count, kinds = len(addresses), np.zeros(len(addresses), np.int32)
        places = range(kinds.ctypes.data, kinds.ctypes.data + kinds.nbytes, kinds.itemsize)
        times = np.fromiter(map(self._timestamp, addresses.tolist(), places), np.int64, count)
        return timestamps_of(kinds, times)


def copied(addresses: Addresses, sizes: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Return the bytes at these addresses; null where the address is 0."""
    is_null = addresses == 0
    sizes = np.where(is_null, 0, sizes)
    views = np.zeros(len(addresses), _VIEW)
    views["size"] = sizes
    long = np.flatnonzero(sizes > _INLINE_BYTES)
    pieces, views["buffer"][long] = np.unique(addresses[long] >> np.uint64(_PIECE_BITS), return_inverse=True)
    views["start"][long] = addresses[long] & np.uint64(2**_PIECE_BITS - 1)
    _set_inline(views, addresses, np.where(sizes > _INLINE_BYTES, 0, sizes))
    array = pa.Array.from_buffers(
        pa.binary_view(),
        len(views),
        [
            pa.array(~is_null).buffers()[1] if is_null.any() else None,
            pa.py_buffer(views),
            *(pa.foreign_buffer(int(piece) << _PIECE_BITS, _BUFFER_BYTES) for piece in pieces.tolist()),
        ],
    )
    return array.cast(pa.binary())  # copies the bytes


def _set_inline(views: npt.NDArray[np.void], addresses: Addresses, sizes: npt.NDArray[np.int64]) -> None:
    """Write bytes into their views: the first ones at each address, as many as `sizes` says."""
    cells = views.view(np.uint8).reshape(-1, _VIEW.itemsize)
    for place in range(int(sizes.max(initial=0))):
        has = np.flatnonzero(sizes > place)
        cells[has, _INLINE_AT + place] = _BYTES[(addresses[has] - np.uint64(_FIRST)).astype(np.int64) + place]


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
