"""A trial of the machine code before any record is entrusted to it. It also makes numba load or compile it."""

import ctypes as c
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exactbatch.columns import Column
from exactbatch.compiled import messages
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.row_frame import row_frame
from exactbatch.compiled.rows_arrow import RowsAsArrow

_VALUES: Final = (b'{"a": -7, "b": "\\u00e9x", "c": [1]}', b'{"b": null, "a": "x"}')
_FIELDS: Final = b"\x00\x00\x00\x04\xff\xff\xff\xf9\x00\x00\x00\x03\xc3\xa9x"
_ROW: Final = (
    b"\x00\x08"
    b"\x00\x00\x00\x04\x00\x00\x00\x02"
    b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x05"
    b"\x00\x00\x00\x01t"
    b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x0f\x42\x40" + _FIELDS + b"\xff\xff\xff\xff\x00\x00\x00\x04\x01[1]"
)
_SCHEMA: Final = pa.schema([("a", pa.int32()), ("b", pa.string())])


def check_machine_code() -> None:
    """Raise RuntimeError unless the loops give what they should."""
    columns = [Column("a", "integer"), Column("b", "text"), Column("c", "jsonb")]
    kernel = JsonKernel(columns, {}, row_frame(8, "t", 2, {}), checked=["c"])
    data, sizes = b"".join(_VALUES), np.array([len(value) for value in _VALUES], np.uint64)
    ends = np.cumsum(sizes, dtype=np.uint64)
    taken = kernel.take(
        np.frombuffer(data, np.uint8),
        ends - sizes,
        ends,
        np.ones(2, np.bool_),
        np.array([5, 6], np.int64),
        np.full(2, 946_684_801_000, np.int64),
    )
    read = RowsAsArrow(_SCHEMA).read(_FIELDS, 1).to_pylist()
    if not _gathers_messages() or (taken.data, taken.declined_indexes.tolist(), read) != (
        _ROW,
        [1],
        [{"a": -7, "b": "éx"}],
    ):
        raise RuntimeError("the compiled code does not give what it should")


def _gathers_messages() -> bool:
    """True if the loops over librdkafka's messages read two that are built here, one of them without a value."""
    text = np.frombuffer(b"keyvalue", np.uint8)
    key = text.ctypes.data
    # err, rkt, partition, payload, len, key, key_len, offset, _private
    words = np.array([[0, 0, 0, key + 3, 5, key, 3, 41, 0], [0, 0, 0, 0, 0, 0, 0, 42, 0]], np.uint64)
    addresses = np.uint64(words.ctypes.data) + np.array([0, words.itemsize * 9], np.uint64)
    errors, offsets = np.empty(2, np.int32), np.empty(2, np.int64)
    sizes, values = np.empty(2, np.int64), np.empty(2, np.uint64)
    events = messages.read_fields(addresses, errors, offsets, sizes, values)
    keys, key_sizes = np.empty(2, np.uint64), np.empty(2, np.int64)
    messages.read_keys(addresses, keys, key_sizes)
    data, ends = np.empty(8, np.uint8), np.empty(4, np.int64)
    parts, part_sizes = np.concatenate([keys, values]), np.concatenate([key_sizes, sizes])
    messages.gather(parts, part_sizes, np.uint64(data.ctypes.data), ends)
    destroyed: list[int] = []
    destroy = c.CFUNCTYPE(None, c.c_uint64)(destroyed.append)
    messages.destroy(addresses, _find_address(destroy))
    timestamp = c.CFUNCTYPE(c.c_int64, c.c_uint64, c.POINTER(c.c_int32))(_timestamp)
    times, kind = np.empty(2, np.int64), np.zeros(1, np.int32)
    messages.read_timestamps(
        addresses, _find_address(timestamp), times, kind, np.uint64(kind.ctypes.data), np.int64(-1)
    )
    return _finds_headers(addresses, text) and (
        events,
        offsets.tolist(),
        bytes(data),
        ends.tolist(),
        destroyed,
        times.tolist(),
    ) == (
        0,
        [41, 42],
        b"keyvalue",
        [3, 3, 8, 8],
        addresses.tolist(),
        [1_700_000_000_041, -1],
    )


def _finds_headers(addresses: Any, text: Any) -> bool:
    """True if the loops over headers find the header of the first of two messages."""
    name = np.array([97, 98, 0], np.uint8)

    def of_message(message: int, place: int) -> int:
        c.c_uint64.from_address(place).value = message
        return 0 if message == int(addresses[0]) else 1

    def at_index(_headers: int, index: int, *places: int) -> int:
        for place, word in zip(places, (name.ctypes.data, text.ctypes.data, 3), strict=True):
            c.c_uint64.from_address(place).value = word
        return int(index)

    first = c.CFUNCTYPE(c.c_int, c.c_uint64, c.c_uint64)(of_message)
    second = c.CFUNCTYPE(c.c_int, *[c.c_uint64] * 5)(at_index)
    found, place = np.empty(2, np.int8), np.zeros(4, np.uint64)
    values, sizes = np.zeros(2, np.uint64), np.zeros(2, np.int64)
    none = messages.find_headers(
        addresses,
        _find_address(first),
        _find_address(second),
        name[:2].copy(),
        np.uint64(place.ctypes.data),
        found,
        values,
        sizes,
    )
    whole = np.zeros(2, np.int64)
    messages.add_keys_and_headers(
        addresses, _find_address(first), _find_address(second), np.uint64(place.ctypes.data), whole
    )
    return (none, found.tolist(), values.tolist(), sizes.tolist(), whole.tolist()) == (
        1,
        [messages.HAS_HEADER, messages.NO_HEADER],
        [text.ctypes.data, 0],
        [3, 0],
        [3 + 2 + 3, 0],
    )


def _timestamp(message: int, kind: Any) -> int:
    """As rd_kafka_message_timestamp(): the second message has no time."""
    offset = c.c_int64.from_address(message + 7 * 8).value
    kind[0] = 1 if offset == 41 else 0
    return 1_700_000_000_000 + offset


def _find_address(function: Any) -> np.uint64:
    return np.uint64(c.cast(function, c.c_void_p).value or 0)
