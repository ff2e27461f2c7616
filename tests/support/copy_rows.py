"""Read rows of Postgres's binary COPY in plain Python, without the code that writes them."""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from exactbatch.columns import Column

_EPOCH_US = 946_684_800_000_000  # from 1970 to 2000
_EPOCH_DAYS = 10_957


def fields_of(data: bytes) -> list[list[bytes | None]]:
    """The fields of each row, without header and trailer."""
    rows, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from(">h", data, at)
        at += 2
        fields: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            fields.append(None if length == -1 else data[at : at + length])
            assert length >= -1
            at += max(0, length)
        rows.append(fields)
    assert at == len(data)
    return rows


def _number(format_: str, shift: int = 0) -> Callable[[bytes], int]:
    def read(field: bytes) -> int:
        return int(struct.unpack(format_, field)[0]) + shift

    return read


def _numeric(field: bytes) -> Decimal:
    count, weight, sign, scale, *groups = struct.unpack(f">hhHh{len(field) // 2 - 4}h", field)
    assert count == len(groups)
    assert all(0 <= group < 10_000 for group in groups)
    assert not groups or (groups[0] and groups[-1])
    assert sign in (0, 0x4000)
    number = sum((Decimal(group).scaleb(4 * (weight - at)) for at, group in enumerate(groups)), Decimal(0))
    return (-number if sign else number).quantize(Decimal(1).scaleb(-scale))


_READERS: dict[str, Callable[[bytes], Any]] = {
    "smallint": _number(">h"),
    "integer": _number(">i"),
    "bigint": _number(">q"),
    "boolean": lambda field: {b"\0": False, b"\1": True}[field],
    # As bits: -0.0 is not 0.0.
    "real": _number(">i"),
    "double precision": _number(">q"),
    "date": _number(">i", _EPOCH_DAYS),
    "timestamp without time zone": _number(">q", _EPOCH_US),
    "timestamp with time zone": _number(">q", _EPOCH_US),
    "text": bytes.decode,
    "bytea": bytes,
}


def values_of(fields: Sequence[bytes | None], columns: Sequence[Column]) -> list[Any]:
    """The values of fields as comparable() gives them."""
    assert len(fields) == len(columns)
    return [
        None
        if field is None
        else _READERS.get(column.staged_type, _numeric if "numeric" in column.staged_type else bytes.decode)(
            field
        )
        for field, column in zip(fields, columns, strict=True)
    ]


def comparable(batch: Any) -> list[list[Any]]:
    """The rows of an Arrow batch, with floats as their bits, and moments as numbers since 1970."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type) or pa.types.is_float64(column.type):
            column = column.view(pa.int64())
        elif pa.types.is_date32(column.type) or pa.types.is_float32(column.type):
            column = column.view(pa.int32())
        columns.append(column.to_pylist())
    return [list(row) for row in zip(*columns, strict=True)]
