"""Values of Arrow arrays for Python and for statements: Arrow and Postgres hold times that Python does not."""

from typing import Any

import pyarrow as pa

from exactbatch.postgres.moments import day_text, moment_text


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
