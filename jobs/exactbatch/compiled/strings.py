"""Strings of JSON: where they end, whether they are UTF-8, and what their escapes stand for.

Positions are uint64: numba indexes by a signed integer as Python does, which costs a test for negative numbers, and
makes a float of the sum of a signed and an unsigned one.
"""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.compiler import called, inlined

_U: Final = np.uint64
_1: Final = np.uint64(1)
_2: Final = np.uint64(2)
_4: Final = np.uint64(4)
_6: Final = np.uint64(6)

_QUOTE: Final = 34
_BACKSLASH: Final = 92
_SPACE: Final = 32
_LOWER_U: Final = 117
_HASH_OF_NOTHING: Final = np.uint64(0xCBF29CE484222325)
_HASH_FACTOR: Final = np.uint64(0x100000001B3)


@inlined
def end_of_string(buffer: Any, at: Any, end: Any) -> Any:
    """Return, for a string whose opening quote is before `at`: the position of its closing quote, or `end` if it is
    declined; all its bytes combined by or; and whether it has escapes."""
    combined = np.uint8(0)
    has_escapes = False
    while at < end:
        byte = buffer[at]
        if byte == _QUOTE:
            return at, combined, has_escapes
        if byte == _BACKSLASH:
            has_escapes = True
            at = after_escape(buffer, at, end)
            continue
        if byte < _SPACE:
            break
        combined = np.uint8(combined | byte)
        at += _1
    return end, combined, has_escapes


@inlined
def hash_bytes(buffer: Any, start: Any, stop: Any) -> Any:
    """Return a hash of 64 bits of some bytes: FNV-1a, https://datatracker.ietf.org/doc/html/rfc9923."""
    hash_ = _HASH_OF_NOTHING
    for byte in range(np.int64(stop - start)):
        hash_ = (hash_ ^ _U(buffer[start + _U(byte)])) * _HASH_FACTOR
    return hash_


@called
def after_escape(buffer: Any, at: Any, end: Any) -> Any:
    """Return the position after an escape, and `end` for one that is declined: unknown ones, U+0000, which Postgres
    cannot store, and half a surrogate pair."""
    if at + _1 >= end:
        return end
    letter = buffer[at + _1]
    if letter != _LOWER_U:
        # " \ / b f n r t
        if letter in (34, 92, 47, 98, 102, 110, 114, 116):
            return at + _2
        return end
    code = _hexadecimal(buffer, at + _2, end)
    if code <= 0 or 0xDC00 <= code <= 0xDFFF:
        return end
    if code < 0xD800 or code > 0xDFFF:
        return at + _6
    at += _6
    if at + _1 >= end or buffer[at] != _BACKSLASH or buffer[at + _1] != _LOWER_U:
        return end
    code = _hexadecimal(buffer, at + _2, end)
    if code < 0xDC00 or code > 0xDFFF:
        return end
    return at + _6


@called
def _hexadecimal(buffer: Any, at: Any, end: Any) -> Any:
    """Return the number that four hexadecimal digits stand for, or -1."""
    if at + _4 > end:
        return np.int64(-1)
    code = np.int64(0)
    for _ in range(4):
        digit = np.int64(buffer[at])
        if 48 <= digit <= 57:
            digit -= 48
        elif 65 <= digit <= 70:
            digit -= 55
        elif 97 <= digit <= 102:
            digit -= 87
        else:
            return np.int64(-1)
        code = code * 16 + digit
        at += _1
    return code


@called
def write_unescaped(out: Any, at: Any, buffer: Any, start: Any, stop: Any) -> Any:
    """Write a string whose escapes after_escape() has accepted; return the position after it."""
    while start < stop:
        byte = buffer[start]
        if byte != _BACKSLASH:
            out[at] = byte
            at += 1
            start += _1
            continue
        letter = buffer[start + _1]
        if letter != _LOWER_U:
            if letter == 98:
                letter = np.uint8(8)
            elif letter == 102:
                letter = np.uint8(12)
            elif letter == 110:
                letter = np.uint8(10)
            elif letter == 114:
                letter = np.uint8(13)
            elif letter == 116:
                letter = np.uint8(9)
            out[at] = letter
            at += 1
            start += _2
            continue
        code = _hexadecimal(buffer, start + _2, stop)
        start += _6
        if 0xD800 <= code <= 0xDBFF:
            code = 0x10000 + ((code - 0xD800) << 10) + (_hexadecimal(buffer, start + _2, stop) - 0xDC00)
            start += _6
        if code < 0x80:
            out[at] = code
            at += 1
        elif code < 0x800:
            out[at] = 0xC0 | (code >> 6)
            out[at + 1] = 0x80 | (code & 0x3F)
            at += 2
        elif code < 0x10000:
            out[at] = 0xE0 | (code >> 12)
            out[at + 1] = 0x80 | ((code >> 6) & 0x3F)
            out[at + 2] = 0x80 | (code & 0x3F)
            at += 3
        else:
            out[at] = 0xF0 | (code >> 18)
            out[at + 1] = 0x80 | ((code >> 12) & 0x3F)
            out[at + 2] = 0x80 | ((code >> 6) & 0x3F)
            out[at + 3] = 0x80 | (code & 0x3F)
            at += 4
    return at


@called
def has_unicode_escape(buffer: Any, start: Any, stop: Any) -> Any:
    """True if JSON text that was accepted contains an escape such as \\u00e9."""
    while start < stop:
        if buffer[start] != _BACKSLASH:
            start += _1
            continue
        if buffer[start + _1] == _LOWER_U:
            return True
        start += _2
    return False


@called
def is_utf8(buffer: Any, at: Any, end: Any) -> Any:
    """True if the bytes are UTF-8: no overlong form, no surrogate, nothing above U+10FFFF (RFC 3629, section 4)."""
    while at < end:
        first = buffer[at]
        if first < 0x80:
            at += _1
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        low, high = 0x80, 0xBF  # of the second byte
        if first < 0xE0:
            more = 1
        elif first < 0xF0:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        else:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        if at + _U(more) >= end:
            return False
        second = buffer[at + _1]
        if second < low or second > high:
            return False
        for following in range(2, more + 1):
            byte = buffer[at + _U(following)]
            if byte < 0x80 or byte > 0xBF:
                return False
        at += _U(more + 1)
    return True
