"""Numbers of JSON: their digits, and the float that is nearest to them."""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.compiler import inlined

_U: Final = np.uint64
_1: Final = np.uint64(1)
_10: Final = np.uint64(10)

_ZERO: Final = 48
_NINE: Final = 57
_MINUS: Final = 45
_PLUS: Final = 43
_POINT: Final = 46
_LOWER_E: Final = 101
_UPPER_E: Final = 69

# More digits than that do not fit an unsigned number of 64 bits.
MOST_DIGITS: Final = 19
# Up to here, every integer is a double, and so is every power of ten up to 10^22.
_EXACT: Final = np.uint64(2**53)
_EXACT_POWER: Final = 22
# The doubles between which every value has a nearest float of 32 bits that is neither subnormal nor infinite.
_LEAST_REAL: Final = 2.0**-126
_GREATEST_REAL: Final = float(np.finfo(np.float32).max)
# In a double, the bits that a float of 32 bits has no room for; with the first of them alone set, the double lies in
# the middle between two such floats.
_REST_OF_REAL: Final = np.int64(2**29 - 1)
_MIDDLE_OF_REAL: Final = np.int64(2**28)
_EXPONENT_SHIFT: Final = np.int64((1023 - 127) << 23)  # between the exponents of the two


@inlined
def read_number(buffer: Any, at: Any) -> Any:
    """Read a number; the byte after it must exist.

    Returns the position after it, whether it is negative, its digits as one integer (which wraps above MOST_DIGITS),
    the power of ten to multiply that with, how many digits it has before and after the point, and whether it is
    written as an integer. The digits before the point are 0 for what is not a number of JSON, and for an exponent of
    more than three digits.
    """
    negative = buffer[at] == _MINUS
    if negative:
        at += _1
    digits = _U(0)
    power = np.int64(0)
    first = at
    while _ZERO <= buffer[at] <= _NINE:
        digits = digits * _10 + _U(buffer[at] - _ZERO)
        at += _1
    before = np.int64(at - first)
    after = np.int64(0)
    is_integer = True
    if before > 1 and buffer[first] == _ZERO:
        before = np.int64(0)
    if buffer[at] == _POINT:
        is_integer = False
        at += _1
        first = at
        while _ZERO <= buffer[at] <= _NINE:
            digits = digits * _10 + _U(buffer[at] - _ZERO)
            at += _1
        after = np.int64(at - first)
        power = -after
        if after == 0:
            before = np.int64(0)
    if buffer[at] == _LOWER_E or buffer[at] == _UPPER_E:
        is_integer = False
        at += _1
        is_small = buffer[at] == _MINUS
        if is_small or buffer[at] == _PLUS:
            at += _1
        first = at
        exponent = np.int64(0)
        while _ZERO <= buffer[at] <= _NINE:
            exponent = exponent * np.int64(10) + np.int64(buffer[at] - _ZERO)
            at += _1
        if at == first or at > first + _U(3):
            before = np.int64(0)
        power += -exponent if is_small else exponent
    return at, negative, digits, power, before, after, is_integer


@inlined
def nearest_double(digits: Any, power: Any, powers_of_ten: Any) -> Any:
    """Return the double nearest to digits × 10^power, and whether that is certain.

    Both operands are exact, so that the one multiplication or division rounds correctly (W. D. Clinger, "How to Read
    Floating Point Numbers Accurately", 1990).
    """
    if digits > _EXACT or power > _EXACT_POWER or power < -_EXACT_POWER:
        return 0.0, False
    if power < 0:
        return np.float64(digits) / powers_of_ten[-power], True
    return np.float64(digits) * powers_of_ten[power], True


@inlined
def nearest_real_bits(double: Any, bits: Any) -> Any:
    """Return the bits of the float of 32 bits that is nearest to this double, which has `bits` and is not negative;
    and whether that is also the one nearest to the number that the double was rounded from: unless the double is in
    the middle between two of them."""
    if double == 0.0:
        return np.int64(0), True
    if not _LEAST_REAL <= double <= _GREATEST_REAL or (bits & _REST_OF_REAL) == _MIDDLE_OF_REAL:
        return np.int64(0), False
    return (bits >> 29) - _EXPONENT_SHIFT + ((bits >> 28) & 1), True
