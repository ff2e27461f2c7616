"""The agreement between compiled code and its callers: how a row begins, and how values of Arrow types are written.

A row begins with the number of its fields, and the columns that say where it comes from. This module does not import
numba: the driver need not load it.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

# Postgres stores timestamps and dates since 2000-01-01 (src/include/datatype/timestamp.h).
EPOCH_US: Final = 946_684_800_000_000  # microseconds from 1970 to 2000
EPOCH_DAYS: Final = 10_957
# An offset and a timestamp are the same for no two rows: these stand for them.
_PLACEHOLDER: Final = struct.pack(">iq", 8, 0)
BYTES: Final = 0
NUMERIC: Final = -1
JSONB: Final = -3  # the text of a document, for a column of type jsonb
# A decimal of this type fits 64 bits, and so does its fraction with zeros up to a whole group of four digits.
MOST_PRECISION: Final = 18
MOST_SCALE: Final = 15
NUMERIC_BOUND: Final = 8 + 2 * 9  # bytes: 19 digits take part in at most 9 groups of four
_FORMATS: Final = {
    pa.int16(): 2,
    pa.int32(): 4,
    pa.int64(): 8,
    pa.float32(): 4,
    pa.float64(): 8,
    pa.bool_(): 1,
    pa.date32(): 4,
    pa.timestamp("us"): 8,
    pa.timestamp("us", "UTC"): 8,
    pa.string(): BYTES,
    pa.binary(): BYTES,
}


class Frame(NamedTuple):
    """What every row has besides the values: `head` comes before them, with an offset and, as its last field, a
    timestamp that are set for each row; `tail` comes after them. Both are empty for the fields of the values alone."""

    head: Any  # uint8
    offset_at: Any  # int64: the position of the offset in `head`
    tail: Any  # uint8


NO_FRAME: Final = Frame(np.frombuffer(b"", np.uint8), 0, np.frombuffer(b"", np.uint8))


def copied_names(names: Sequence[str], constants: Mapping[str, int]) -> list[str]:
    """Return the names of a row's columns in the order of a frame: constants, lineage, then the others.

    Raises ValueError if `names` lacks one of the first.
    """
    first = [*constants, "kafka_partition", "kafka_offset", "kafka_topic", "kafka_timestamp"]
    if missing := set(first) - set(names):
        raise ValueError(f"expected the columns {', '.join(sorted(missing))} among {', '.join(names)}")
    return [*first, *(name for name in names if name not in first)]


def row_frame(
    fields: int, topic: str, partition: int, constants: Mapping[str, int], tail: bytes = b""
) -> Frame:
    """Return the frame of rows with `fields` fields in all, those of `tail` included; `constants` are the values of
    bigints that all rows share."""
    head = struct.pack(">h", fields)
    for constant in constants.values():
        head += struct.pack(">iq", 8, constant)
    head += struct.pack(">ii", 4, partition)
    offset_at = len(head) + 4
    name = topic.encode()
    head += _PLACEHOLDER + struct.pack(">i", len(name)) + name + _PLACEHOLDER
    return Frame(head=np.frombuffer(head, np.uint8), offset_at=offset_at, tail=np.frombuffer(tail, np.uint8))


def row_format(type_: pa.DataType) -> int | None:
    """Return how binary_rows writes values of an Arrow type: 1 to 8 bytes, BYTES or NUMERIC; None if it does not."""
    if pa.types.is_decimal128(type_):
        fits = type_.precision <= MOST_PRECISION and 0 <= type_.scale <= MOST_SCALE
        return NUMERIC if fits else None
    return _FORMATS.get(type_)


def cell_bound(format_: int) -> int:
    """Return the most bytes that a field takes besides a text's own."""
    if format_ == JSONB:
        return 4 + 1
    return 4 + (NUMERIC_BOUND if format_ == NUMERIC else format_)
