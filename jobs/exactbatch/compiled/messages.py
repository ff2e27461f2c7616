"""Loops over librdkafka's messages: their fields, their bytes in one buffer, and their destruction.

Addresses are numbers; the functions of librdkafka are called through theirs, so that no library has to become visible
to others.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from exactbatch.compiled.compiler import entry, inlined

# Fields of rd_kafka_message_t, in words of 8 bytes. The first is of 4 bytes.
_ERR: Final = 0
_PAYLOAD: Final = 3
_LEN: Final = 4
_KEY: Final = 5
_KEY_LEN: Final = 6
_OFFSET: Final = 7
_LOW_32_BITS: Final = 0xFFFFFFFF
_WORD: Final = ir.IntType(64)
_INT: Final = ir.IntType(32)
# What find_headers() says of a message.
NO_HEADER: Final = 0
HAS_HEADER: Final = 1
NOT_ASCII: Final = 2
_copy_memory: Any = cgutils.raw_memcpy

Codegen = Callable[[Any, Any, Any, Any], Any]


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Mark a function that generates code; compiled loops call it without its first argument."""
    return intrinsic(function)


@_intrinsic
def _load(typing: Any, address: Any, word: Any) -> tuple[Any, Codegen]:
    """Return the word of 8 bytes at an address plus `word` words."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(builder.gep(base, [arguments[1]]))

    return types.uint64(types.uint64, types.int64), codegen


@_intrinsic
def _copy(typing: Any, target: Any, source: Any, size: Any) -> tuple[Any, Codegen]:
    """Copy bytes between addresses."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, from_ = (builder.inttoptr(each, byte) for each in arguments[:2])
        _copy_memory(builder, to, from_, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), codegen


@_intrinsic
def _timestamp(typing: Any, function: Any, message: Any, kind: Any) -> tuple[Any, Codegen]:
    """Call rd_kafka_message_timestamp() at an address; it writes the kind of timestamp to another."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        type_ = ir.FunctionType(_WORD, [_WORD, _WORD])
        return builder.call(builder.inttoptr(arguments[0], type_.as_pointer()), arguments[1:])

    return types.int64(types.uint64, types.uint64, types.uint64), codegen


@_intrinsic
def _destroy(typing: Any, function: Any, message: Any) -> tuple[Any, Codegen]:
    """Call rd_kafka_message_destroy() at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        type_ = ir.FunctionType(ir.VoidType(), [_WORD])
        builder.call(builder.inttoptr(arguments[0], type_.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), codegen


@_intrinsic
def _load_byte(typing: Any, address: Any) -> tuple[Any, Codegen]:
    """Return the byte at an address."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))

    return types.uint8(types.uint64), codegen


@_intrinsic
def _message_headers(typing: Any, function: Any, message: Any, place: Any) -> tuple[Any, Codegen]:
    """Call rd_kafka_message_headers() at an address; it writes the address of the headers to `place`."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        type_ = ir.FunctionType(_INT, [_WORD, _WORD])
        return builder.call(builder.inttoptr(arguments[0], type_.as_pointer()), arguments[1:])

    return types.int32(types.uint64, types.uint64, types.uint64), codegen


@_intrinsic
def _header_at(
    typing: Any, function: Any, headers: Any, index: Any, name: Any, value: Any, size: Any
) -> tuple[Any, Codegen]:
    """Call rd_kafka_header_get_all() at an address; it writes a header's parts to the addresses `name`, `value` and
    `size`."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        type_ = ir.FunctionType(_INT, [_WORD] * 5)
        return builder.call(builder.inttoptr(arguments[0], type_.as_pointer()), arguments[1:])

    word = types.uint64
    return types.int32(word, word, word, word, word, word), codegen


@entry
def read_fields(messages: Any, errors: Any, offsets: Any, sizes: Any, values: Any) -> int:
    """Read the error codes, offsets, and sizes and addresses of values; address 0 for a null value.

    Returns how many messages are events, whose error code is not 0.
    """
    events = 0
    for i in range(len(messages)):
        message = messages[i]
        errors[i] = np.int32(_load(message, _ERR) & np.uint64(_LOW_32_BITS))
        offsets[i] = np.int64(_load(message, _OFFSET))
        values[i] = _load(message, _PAYLOAD)
        sizes[i] = np.int64(_load(message, _LEN)) if values[i] != 0 else 0
        if errors[i] != 0:
            events += 1
    return events


@entry
def read_keys(messages: Any, keys: Any, sizes: Any) -> None:
    """Read the addresses of keys and their sizes; address 0 for a null key."""
    for i in range(len(messages)):
        keys[i] = _load(messages[i], _KEY)
        sizes[i] = np.int64(_load(messages[i], _KEY_LEN)) if keys[i] != 0 else 0


@inlined
def _read_header(at_index: Any, headers: Any, index: Any, place: Any) -> Any:
    """Write the addresses of a header's name and value, and its size, to the second to fourth word at `place`; return
    0 unless there is no such header."""
    word = np.uint64(8)
    return _header_at(
        at_index, headers, index, place + word, place + word * np.uint64(2), place + word * np.uint64(3)
    )


@entry
def add_keys_and_headers(messages: Any, of_message: Any, at_index: Any, place: Any, sizes: Any) -> None:
    """Add to `sizes` the bytes of each message's key and headers. The arguments are the same as for find_headers()."""
    for i in range(len(messages)):
        if _load(messages[i], _KEY) != 0:
            sizes[i] += np.int64(_load(messages[i], _KEY_LEN))
        if _message_headers(of_message, messages[i], place) == 0:
            headers = _load(place, 0)
            index = np.uint64(0)
            while _read_header(at_index, headers, index, place) == 0:
                name = _load(place, 1)
                while _load_byte(name) != 0:
                    name += np.uint64(1)
                sizes[i] += np.int64(name - _load(place, 1)) + np.int64(_load(place, 3))
                index += np.uint64(1)


@entry
def read_timestamps(
    messages: Any, function: Any, times: Any, kind: Any, kind_address: Any, none: Any
) -> None:
    """Read the timestamps in milliseconds, `none` for a message without one.

    `function` is the address of rd_kafka_message_timestamp(), and `kind_address` the address of the array `kind`.
    """
    for i in range(len(messages)):
        kind[0] = 0
        time = _timestamp(function, messages[i], kind_address)
        times[i] = time if kind[0] != 0 else none


@inlined
def _compare(address: Any, name: Any) -> int:
    """Compare the text at an address, which ends with a byte 0, with a name: NO_HEADER if it differs."""
    at = 0
    is_name = True
    while True:
        byte = _load_byte(address + np.uint64(at))
        if byte == 0:
            return HAS_HEADER if is_name and at == len(name) else NO_HEADER
        if byte >= 128:
            return NOT_ASCII
        is_name = is_name and at < len(name) and byte == name[at]
        at += 1


@entry
def find_headers(
    messages: Any, of_message: Any, at_index: Any, name: Any, place: Any, found: Any, values: Any, sizes: Any
) -> int:
    """Find the last header of a name: HAS_HEADER with the address of its value, 0 if it is null, and its size.

    NOT_ASCII for a message with a header whose name is not ASCII: it may not be readable. `of_message` and `at_index`
    are the addresses of rd_kafka_message_headers() and rd_kafka_header_get_all(), and `place` that of 4 words, which
    these write. Returns how many messages have neither.
    """
    none = 0
    for i in range(len(messages)):
        found[i] = NO_HEADER
        if _message_headers(of_message, messages[i], place) == 0:
            headers = _load(place, 0)
            index = np.uint64(0)
            while _read_header(at_index, headers, index, place) == 0:
                compared = _compare(_load(place, 1), name)
                if compared == HAS_HEADER and found[i] != NOT_ASCII:
                    found[i], values[i], sizes[i] = HAS_HEADER, _load(place, 2), np.int64(_load(place, 3))
                elif compared == NOT_ASCII:
                    found[i] = NOT_ASCII
                index += np.uint64(1)
        if found[i] == NO_HEADER:
            none += 1
    return none


@entry
def gather(addresses: Any, sizes: Any, target: Any, ends: Any) -> None:
    """Copy bytes one after the other to the address `target`; `ends` gets where each ends there."""
    end = np.int64(0)
    for i in range(len(addresses)):
        _copy(target + np.uint64(end), addresses[i], sizes[i])
        end += sizes[i]
        ends[i] = end


@entry
def destroy(messages: Any, function: Any) -> None:
    """Destroy messages; `function` is the address of rd_kafka_message_destroy()."""
    for i in range(len(messages)):
        _destroy(function, messages[i])
