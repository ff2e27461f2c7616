"""A consumer on librdkafka's C interface, which creates no object for a record: their bytes are gathered into one
buffer.

range_consumer.py says what that saves.
"""

import ctypes as c
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from exactbatch.compiled import messages as compiled
from exactbatch.formats.message.record_headers import Header, Unreadable, last_headers
from exactbatch.kafka.client_errors import concerns_reading
from exactbatch.kafka.native_client import Addresses, NativeClient, NativeEvent
from exactbatch.kafka.native_library import MessageStruct, find_address
from exactbatch.kafka.range_consumer import Fetched
from exactbatch.kafka.records import NO_TIMESTAMP, Bytes, Flags, Int64s, KafkaRecord, Records

_MOST_BYTES: Final = 2**31 - 1


class NativeMessages:
    """Messages that librdkafka hands over; they are destroyed once, with this object or before.

    `addresses` are theirs, 0 where there is no message. The consumer's dictionary notes which messages are not
    destroyed yet. Weak references would not do: the garbage collector clears them before it closes a consumer, and
    librdkafka would wait for the messages for ever.
    """

    def __init__(self, library: Any, held: dict[object, Addresses], count: int) -> None:
        """Prepare for up to `count`. `held` has the addresses of all messages of the consumer."""
        self._library, self._held, self._key = library, held, object()
        self.addresses = held[self._key] = np.zeros(count, np.uint64)

    def destroy(self) -> None:
        """Free them: what was not gathered until then cannot be read any more."""
        addresses = self._held.pop(self._key, None)
        if addresses is not None:
            function = np.uint64(find_address(self._library.message_destroy))
            compiled.destroy(addresses[addresses != 0], function)

    def __del__(self) -> None:
        self.destroy()

    def check_alive(self) -> None:
        """Raise ValueError if the messages are destroyed."""
        if self._key not in self._held:
            raise ValueError("keys, headers and single records can be read only until the consumer is closed")


class NativeRecords(Records):
    """Records among some messages, which are at these addresses.

    Those that part() returns hold their offsets, values and timestamps; keys, headers and single records can be read
    as long as the consumer is open.
    """

    def __init__(
        self,
        library: Any,
        messages: NativeMessages,
        addresses: Addresses,
        offsets: Int64s,
        sizes: Int64s,
        values: Addresses,
    ) -> None:
        """`sizes` and `values` are the sizes and the addresses of the values, 0 for a null value."""
        self._library, self._messages, self._all_addresses = library, messages, addresses
        self.offset_array, self._sizes, self._values = offsets, sizes, values

    @property
    def _addresses(self) -> Addresses:
        self._messages.check_alive()
        return self._all_addresses

    @property
    def _header_functions(self) -> tuple[np.uint64, np.uint64]:
        library = self._library
        return np.uint64(find_address(library.message_headers)), np.uint64(
            find_address(library.header_get_all)
        )

    def sizes(self) -> Int64s:
        """See Records."""
        sizes, place = self._sizes.copy(), np.zeros(4, np.uint64)
        compiled.add_keys_and_headers(
            self._addresses, *self._header_functions, np.uint64(place.ctypes.data), sizes
        )
        return sizes

    @cached_property
    def _milliseconds(self) -> Int64s:
        times, kind = np.empty(len(self), np.int64), np.zeros(1, np.int32)
        function = np.uint64(find_address(self._library.message_timestamp))
        compiled.read_timestamps(
            self._addresses, function, times, kind, np.uint64(kind.ctypes.data), np.int64(NO_TIMESTAMP)
        )
        return times

    def milliseconds(self) -> Int64s:
        """See Records."""
        return self._milliseconds

    @cached_property
    def _gathered(self) -> tuple[Bytes, Int64s]:
        self._messages.check_alive()
        return _gather(self._values, self._sizes)

    def joined_values(self) -> tuple[Bytes, Int64s, Flags]:
        """See Records."""
        return *self._gathered, self._values != 0

    def values(self) -> pa.BinaryArray:
        """See Records."""
        return _binary(*self._gathered, self._values)

    def keys(self) -> pa.BinaryArray:
        """See Records."""
        keys, sizes = np.empty(len(self), np.uint64), np.empty(len(self), np.int64)
        compiled.read_keys(self._addresses, keys, sizes)
        return _binary(*_gather(keys, sizes), keys)

    def headers(self) -> list[Any]:
        """See Records."""
        return [_headers(self._library, int(address)) for address in self._addresses]

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See Records."""
        count = len(self)
        found, values, sizes = np.empty(count, np.int8), np.zeros(count, np.uint64), np.zeros(count, np.int64)
        place = np.zeros(4, np.uint64)
        none = compiled.find_headers(
            self._addresses,
            *self._header_functions,
            np.array(list(name.encode()), np.uint8),
            np.uint64(place.ctypes.data),
            found,
            values,
            sizes,
        )
        if none == count:
            return {}
        at = np.flatnonzero(found == compiled.HAS_HEADER)
        headers: dict[int, Header] = dict(
            zip(at.tolist(), _binary(*_gather(values[at], sizes[at]), values[at]).to_pylist(), strict=True)
        )
        for index in np.flatnonzero(found == compiled.NOT_ASCII).tolist():
            of_record = last_headers([_headers(self._library, int(self._addresses[index]))], name)
            if of_record:
                headers[index] = of_record[0]
        return headers

    def leader_epoch(self, index: int) -> int | None:
        """See Records."""
        epoch: int = self._library.message_leader_epoch(int(self._addresses[index]))
        return None if epoch < 0 else epoch

    def record(self, index: int) -> KafkaRecord:
        """See Records."""
        address = int(self._addresses[index])
        message = MessageStruct.from_address(address)
        return KafkaRecord(
            message.offset,
            None if message.key is None else c.string_at(message.key, message.key_len),
            None if message.payload is None else c.string_at(message.payload, message.len),
            _headers(self._library, address),
        )

    def part(self, start: int, stop: int) -> "NativeRecords":
        """See Records."""
        return self._selected(slice(start, stop))

    def take(self, indexes: Sequence[int]) -> "NativeRecords":
        """See Records."""
        return self._selected(list(indexes))

    def _selected(self, which: slice | list[int]) -> "NativeRecords":
        selected = NativeRecords(
            self._library,
            self._messages,
            self._all_addresses[which],
            self.offset_array[which],
            self._sizes[which],
            self._values[which],
        )
        _ = selected._gathered, selected._milliseconds  # gathered now, they outlive the consumer
        return selected


def _gather(addresses: Addresses, sizes: Int64s) -> tuple[Bytes, Int64s]:
    """Return the bytes, one after the other, and where each begins; the last item is where they end."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    data = np.empty(int(sizes.sum()), np.uint8)
    compiled.gather(addresses, sizes, np.uint64(data.ctypes.data), ends[1:])
    return data, ends


def _binary(data: Bytes, ends: Int64s, addresses: Addresses) -> pa.BinaryArray:
    """Return bytes as an array without copying them; null where the address is 0. Raises ValueError for more bytes than
    the offsets of an array count."""
    if len(data) > _MOST_BYTES:
        raise ValueError(
            f"{len(addresses)} keys, values or headers have {len(data):,} bytes: an array has less than 2 GiB"
        )
    offsets = pa.py_buffer(ends.astype(np.int32))
    nulls = addresses == 0
    validity = pa.array(~nulls).buffers()[1] if nulls.any() else None
    return pa.Array.from_buffers(pa.binary(), len(addresses), [validity, offsets, pa.py_buffer(data)])


def _headers(library: Any, message: int) -> Any:
    """Return the headers of a message, as read_headers() does."""
    headers = c.c_void_p()
    if library.message_headers(message, c.byref(headers)) != 0:
        return None  # there are none
    name, value, size = c.c_char_p(), c.c_void_p(), c.c_size_t()
    pairs: list[tuple[str, bytes | None]] = []
    try:
        while not library.header_get_all(headers, len(pairs), c.byref(name), c.byref(value), c.byref(size)):
            content = None if value.value is None else c.string_at(value.value, size.value)
            pairs.append(((name.value or b"").decode(), content))
    except UnicodeDecodeError:
        return Unreadable()
    return pairs


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
