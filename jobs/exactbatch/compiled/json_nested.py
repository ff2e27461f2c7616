"""Pass over a JSON object or array that is a value of a field."""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.compiler import called, inlined
from exactbatch.compiled.numbers import read_number
from exactbatch.compiled.strings import end_of_string, hash_bytes

_U: Final = np.uint64
_1: Final = np.uint64(1)

_QUOTE: Final = 34
_COMMA: Final = 44
_COLON: Final = 58
_MINUS: Final = 45
_OPEN_BRACKET: Final = 91
_CLOSE_BRACKET: Final = 93
_OPEN_BRACE: Final = 123
_CLOSE_BRACE: Final = 125
_LETTER_F: Final = 102
_LETTER_N: Final = 110
_LETTER_T: Final = 116

_DEEPEST: Final = 60  # levels: one bit of 64 says of each level whether it is an object
# Digits before and after the point, and the exponent, of a number that no column takes: far from the limits at which
# Arrow's reader refuses a number.
_MOST_PASSED_DIGITS: Final = 100
_GREATEST_PASSED_POWER: Final = 100

# Entries for open objects: one for each of them, and one for each of its names. Documents with more are not checked.
MOST_NAMES: Final = 512

# What may come next.
_A_VALUE: Final = 0
_A_VALUE_OR_END: Final = 1
_A_NAME: Final = 2
_A_NAME_OR_END: Final = 3
_A_COMMA_OR_END: Final = 4


@inlined
def is_space(byte: Any) -> Any:
    """True for the white space of JSON."""
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


@called
def after_literal(buffer: Any, at: Any, end: Any) -> Any:
    """Return the position after `true`, `false` or `null`, and `end` for anything else."""
    first = buffer[at]
    if first == _LETTER_F:
        if (
            at + _U(5) < end
            and buffer[at + _1] == 97
            and buffer[at + _U(2)] == 108
            and buffer[at + _U(3)] == 115
            and buffer[at + _U(4)] == 101
        ):
            return at + _U(5)
        return end
    if at + _U(4) >= end:
        return end
    second, third, fourth = buffer[at + _1], buffer[at + _U(2)], buffer[at + _U(3)]
    if first == _LETTER_T and second == 114 and third == 117 and fourth == 101:
        return at + _U(4)
    if first == _LETTER_N and second == 117 and third == 108 and fourth == 108:
        return at + _U(4)
    return end


@inlined
def is_passed(power: Any, before: Any, after: Any) -> Any:
    """True for a number that a field which no column takes, or a jsonb column, may have."""
    return (
        0 < before <= _MOST_PASSED_DIGITS
        and after <= _MOST_PASSED_DIGITS
        and -_GREATEST_PASSED_POWER <= power <= _GREATEST_PASSED_POWER
    )


@called
def after_nested(buffer: Any, at: Any, end: Any, hashes: Any) -> Any:
    """Return the position after the object or array that begins at `at`, or `end` if it is declined; all bytes of its
    strings combined by or; and whether the names in each of its objects are certainly different.

    `hashes`, uint64[MOST_NAMES], is memory for the names of open objects; without any, names are not compared. A
    record's last byte is `}`, which ends every number.
    """
    kinds = _U(0)
    depth = 0
    combined = np.uint8(0)
    expected = _A_VALUE
    is_unique: Any = len(hashes) > 0
    # The names of the object that is read are hashes[first:top]; hashes[first - 1] is `first` of the one around it.
    first = top = np.int64(0)
    while True:
        while at < end and is_space(buffer[at]):
            at += _1
        if at >= end:
            return end, combined, False
        byte = buffer[at]
        in_object = (kinds & _1) == _1
        closes = (
            byte == _CLOSE_BRACE and depth > 0 and in_object and expected in (_A_NAME_OR_END, _A_COMMA_OR_END)
        ) or (byte == _CLOSE_BRACKET and not in_object and expected in (_A_VALUE_OR_END, _A_COMMA_OR_END))
        if closes:
            at += _1
            depth -= 1
            kinds >>= _1
            if is_unique and byte == _CLOSE_BRACE:
                top = first - 1
                first = np.int64(hashes[top])
            if depth == 0:
                return at, combined, is_unique
            expected = _A_COMMA_OR_END
        elif expected == _A_COMMA_OR_END:
            if byte != _COMMA:
                return end, combined, False
            at += _1
            expected = _A_NAME if in_object else _A_VALUE
        elif expected in (_A_NAME, _A_NAME_OR_END):
            if byte != _QUOTE:
                return end, combined, False
            name = at + _1
            at, high, has_escapes = end_of_string(buffer, name, end)
            if is_unique:
                hash_ = hash_bytes(buffer, name, at)
                is_unique = not has_escapes and top < len(hashes)
                for other in range(first, top):
                    if hashes[other] == hash_:
                        is_unique = False
                if is_unique:
                    hashes[top] = hash_
                    top += 1
            combined = np.uint8(combined | high)
            at += _1
            while at < end and is_space(buffer[at]):
                at += _1
            if at >= end or buffer[at] != _COLON:
                return end, combined, False
            at += _1
            expected = _A_VALUE
        elif byte == _OPEN_BRACE or byte == _OPEN_BRACKET:
            if depth == _DEEPEST:
                return end, combined, False
            depth += 1
            kinds = (kinds << _1) | (_1 if byte == _OPEN_BRACE else _U(0))
            at += _1
            expected = _A_NAME_OR_END if byte == _OPEN_BRACE else _A_VALUE_OR_END
            if is_unique and byte == _OPEN_BRACE:
                is_unique = top < len(hashes)
                if is_unique:
                    hashes[top] = _U(first)
                    first = top = top + 1
        else:
            expected = _A_COMMA_OR_END
            if byte == _QUOTE:
                at, high, _ = end_of_string(buffer, at + _1, end)
                combined = np.uint8(combined | high)
                at += _1
            elif byte == _MINUS or 48 <= byte <= 57:
                at, _, _, power, before, after, _ = read_number(buffer, at)
                if not is_passed(power, before, after):
                    return end, combined, False
            else:
                at = after_literal(buffer, at, end)
