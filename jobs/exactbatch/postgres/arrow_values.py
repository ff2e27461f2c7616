"""Values of Arrow arrays for Python and for statements, and dates and times as Postgres writes them: Arrow and Postgres
hold times that Python does not.
"""

from datetime import date
from typing import Any, Final

import pyarrow as pa

_EPOCH: Final = date(1970, 1, 1).toordinal()
_CYCLE: Final = 146_097  # days of 400 years, after which the calendar repeats
_DAY: Final = 86_400_000_000  # microseconds


def day_text(days: int | None) -> str | None:
    """Return a number of days since 1970-01-01 as a date in ISO 8601, with BC after a year before 1."""
    if days is None:
        return None
    day, era = _day(days)
    return day + era


def moment_text(microseconds: int | None, *, offset: str) -> str | None:
    """Return a number of microseconds since 1970 as a date and time; `offset` is "+00" with a time zone, else ""."""
    if microseconds is None:
        return None
    days, of_day = divmod(microseconds, _DAY)
    day, era = _day(days)
    seconds, fraction = divmod(of_day, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        time += f".{fraction:06}".rstrip("0")
    return f"{day} {time}{offset}{era}"


def _day(days: int) -> tuple[str, str]:
    """Return year, month and day, and the era."""
    cycles, of_cycle = divmod(days + _EPOCH - 1, _CYCLE)
    day = date.fromordinal(of_cycle + 1)
    year = day.year + 400 * cycles
    return f"{year if year > 0 else 1 - year:04}-{day:%m-%d}", "" if year > 0 else " BC"


def as_dicts(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return each row with python_values() by the names of the columns."""
    values = [python_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values; as text, as Postgres writes it, those dates and times that Python cannot hold."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        texts = as_text(column)
        return [_value(scalar, text) for scalar, text in zip(column, texts, strict=True)]


def as_text(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return dates and times as text that Postgres reads, and other values as Python values."""
    type_ = column.type
    if pa.types.is_date32(type_):
        return list(map(day_text, column.cast(pa.int32()).to_pylist()))
    if pa.types.is_timestamp(type_):
        offset = "" if type_.tz is None else "+00"
        return [moment_text(time, offset=offset) for time in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_list(type_):
        return [as_text(each.values) if each.is_valid else None for each in column]
    return list(column.to_pylist())


def _value(scalar: Any, text: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return text
