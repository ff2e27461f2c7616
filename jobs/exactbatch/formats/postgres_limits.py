"""The values that Arrow can hold and Postgres cannot store."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.decimals import check_digits, has_decimals

# Postgres's documentation, "Date/Time Types": from 4713 BC to 294276 AD for timestamps, to 5874897 AD for dates.
# The latest timestamp exceeds 64 bits of microseconds since 1970, which is what Arrow holds.
EARLIEST_TIMESTAMP: Final = -210_866_803_200_000_000  # microseconds since 1970
# The same in milliseconds since 1970, the unit of Kafka, and the latest whose microseconds fit 64 bits.
EARLIEST_TIMESTAMP_MS: Final = EARLIEST_TIMESTAMP // 1000
LATEST_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
EARLIEST_DATE: Final = -2_440_588  # days since 1970
LATEST_DATE: Final = 2_145_042_905
_TOO_FINE: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d{7,}(?:Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
NUL: Final = "Postgres cannot store U+0000 in text"
OUT_OF_RANGE: Final = "expected a number in the range of the type, found NaN or infinity"
OUT_OF_TIME: Final = "expected a date or time that Postgres can store (from 4713 BC), found one out of range"


def check_rows(rows: pa.RecordBatch, columns: Sequence[Column], *, finite: bool = False) -> None:
    """Check all columns with check_storable(), and with refuse_infinity() if `finite`; errors name the column."""
    for column, values in zip(columns, rows.columns, strict=True):
        check_column(column, values, finite=finite)


def check_column(column: Column, values: pa.Array, *, finite: bool = False) -> None:
    """Check one column as check_rows() does."""
    try:
        check_storable(values)
        if finite:
            refuse_infinity(values)
    except ValueError as error:
        raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None


def find_unstorable(column: Column, values: pa.Array) -> Iterator[tuple[int, str]]:
    """Yield the place of each value that check_column() refuses, and the reason, for many at once."""
    try:
        check_column(column, values)
    except ValueError as error:
        for place in _unstorable(values).to_pylist():
            if not has_decimals(values.type):
                yield place, str(error)
                continue
            try:  # the reason names the number
                check_column(column, values.slice(place, 1))
            except ValueError as of_value:
                yield place, str(of_value)


def _unstorable(values: pa.Array) -> pa.Array:
    """Return the places of values that check_storable() refuses, in their order; of decimals, all places."""
    if pa.types.is_list(values.type):
        return pc.unique(pc.list_parent_indices(values).take(_unstorable(pc.list_flatten(values))))
    if pa.types.is_string(values.type):
        refused = pc.match_substring(values, "\0")
    elif pa.types.is_timestamp(values.type):
        refused = pc.less(values.cast(pa.int64()), EARLIEST_TIMESTAMP)
    elif pa.types.is_date32(values.type):
        days = values.cast(pa.int32())
        refused = pc.or_(pc.less(days, EARLIEST_DATE), pc.greater(days, LATEST_DATE))
    else:
        refused = values.is_valid()
    return pc.indices_nonzero(pc.fill_null(refused, False))


def check_storable(column: pa.ChunkedArray | pa.Array) -> None:
    """Raise ValueError for a value that Postgres cannot store: U+0000 in text, a decimal with more digits than its
    type has, a date or timestamp out of Postgres's range. Lists are checked element by element."""
    if pa.types.is_list(column.type):
        check_storable(pc.list_flatten(column))
    elif pa.types.is_string(column.type):
        # Searching the JSON objects for an escaped U+0000 instead takes six times as long: they are larger.
        if pc.any(pc.match_substring(column, "\0")).as_py():
            raise ValueError(NUL)
    elif pa.types.is_decimal(column.type):
        check_digits(column)
    elif pa.types.is_timestamp(column.type):
        _check_range(column.cast(pa.int64()), EARLIEST_TIMESTAMP, None)
    elif pa.types.is_date32(column.type):
        _check_range(column.cast(pa.int32()), EARLIEST_DATE, LATEST_DATE)


def _check_range(numbers: Any, lowest: int, highest: int | None) -> None:
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is not None and (
        extremes["min"] < lowest or (highest is not None and extremes["max"] > highest)
    ):
        raise ValueError(OUT_OF_TIME)


def refuse_infinity(column: pa.ChunkedArray | pa.Array) -> None:
    """Raise ValueError for NaN and infinity: Arrow's readers return infinity for a number too large for a float."""
    if pa.types.is_list(column.type):
        refuse_infinity(pc.list_flatten(column))
    elif pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        raise ValueError(OUT_OF_RANGE)


def is_too_fine(text: str) -> bool:
    """True for a timestamp in ISO 8601 that is written finer than a microsecond."""
    return _TOO_FINE.fullmatch(text) is not None


def too_fine(text: str) -> str:
    """Return the reason why a timestamp that is_too_fine() is refused."""
    return (
        f"expected at most six digits after the second's point, which is what Postgres holds, found {text}: let the "
        f"producer write six, or declare the column as text"
    )
