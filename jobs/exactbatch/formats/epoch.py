"""Decode timestamps and dates that are numbers of units since 1970."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.postgres_limits import EARLIEST_DATE, EARLIEST_TIMESTAMP, LATEST_DATE

_MICROSECONDS: Final = {"s": 10**6, "ms": 1000, "us": 1}


def from_epoch(numbers: pa.ChunkedArray, unit: str, type_: pa.DataType) -> pa.ChunkedArray:
    """Return numbers of units since 1970 as timestamps in microseconds, or as dates.

    Nanoseconds are rounded down to the microsecond. Raises ValueError for a number that overflows 64 bits, or a
    date's 32.
    """
    if unit == "d":
        return numbers.cast(pa.int32()).cast(type_)
    if unit == "ns":
        numbers, unit = floor_divide(numbers, 1000), "us"
    return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)


def is_out_of_range(number: int, unit: str) -> bool:
    """True for a number of units since 1970 that is no timestamp, or date, which Postgres can store."""
    if unit == "d":
        return not EARLIEST_DATE <= number <= LATEST_DATE
    microseconds = number // 1000 if unit == "ns" else number * _MICROSECONDS[unit]
    return not EARLIEST_TIMESTAMP <= microseconds < 2**63


def floor_divide(numbers: pa.ChunkedArray | pa.Array, divisor: int) -> Any:
    """Return integers divided and rounded down; Arrow's own rounding of times overflows near the lowest."""
    quotient = pc.divide(numbers, divisor)
    is_above = pc.less(numbers, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, is_above.cast(quotient.type))
