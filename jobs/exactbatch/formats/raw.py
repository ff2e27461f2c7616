"""The format Raw: bytes, unchanged or as one number or UUID."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.format import Decoded, positions
from exactbatch.formats.one_column import one_column
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

# Types of fixed width: their bytes, and the name that numpy has for them, the highest byte first.
_WIDTHS: Final[Mapping[str, tuple[int, str]]] = {
    "smallint": (2, ">i2"),
    "integer": (4, ">i4"),
    "bigint": (8, ">i8"),
    "real": (4, ">f4"),
    "double precision": (8, ">f8"),
    "uuid": (16, "V16"),
}


@dataclass(frozen=True)
class Raw:
    """Values are bytes for one column: its name, for a column of type bytea, or its name and type, such as
    `"id bigint"`.

    A smallint, integer, bigint, real or double precision is its 2, 4 or 8 bytes, the highest first, as Kafka's
    serializers of numbers write it, and a uuid its 16 bytes. A value of another length is a reject.

    A null value gives a row with null. Raises ConfigurationError for another type, and for several columns.
    """

    null_is_tombstone: ClassVar[bool] = False
    tombstone_deletes: ClassVar[bool] = False

    column: str = "value"

    def __post_init__(self) -> None:
        check_types(self)
        (column,) = self.columns
        if column.type != "bytea" and column.type not in _WIDTHS:
            raise ConfigurationError(
                f"column {column.name!r}, {column.type}: Raw has bytea and types of a fixed width, "
                f"{', '.join(_WIDTHS)}. Use Text for text, or Custom."
            )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One column, of type bytea unless another is declared."""
        return (one_column(self.column, "bytea"),)

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Return a row for every value that has the width of the type."""
        import pyarrow as pa
        import pyarrow.compute as pc

        (column,) = self.columns
        kept = positions(values)
        if column.type == "bytea":
            return Decoded(pa.RecordBatch.from_arrays([values], [column.name]), kept)
        width, _ = _WIDTHS[column.type]
        lengths = pc.binary_length(values)
        fits = pc.fill_null(pc.equal(lengths, width), True)
        rejects = []
        if not pc.all(fits, min_count=0).as_py():
            wrong = pc.invert(fits)
            reason = f"column {column.name!r}, {column.type}: expected {width} bytes, found"
            pairs = zip(kept.filter(wrong).to_pylist(), lengths.filter(wrong).to_pylist(), strict=True)
            rejects = [(at, f"{reason} {length}") for at, length in pairs]
            values, kept = values.filter(fits), kept.filter(fits)
        rows = pa.RecordBatch.from_arrays([_of_bytes(values, column)], [column.name])
        return Decoded(rows, kept, tuple(rejects))


def _of_bytes(values: "pa.BinaryArray", column: Column) -> "pa.Array":
    """Return bytes, all of the column's width or null, as values of the column."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    present = b"".join(values.drop_null().to_pylist())
    width, kind = _WIDTHS[column.type]
    if column.type == "uuid":
        starts = range(0, len(present), width)
        found = pa.array([str(uuid.UUID(bytes=present[at : at + width])) for at in starts], pa.string())
    else:
        numbers = np.frombuffer(present, kind)
        found = pa.array(numbers.astype(numbers.dtype.newbyteorder("=")), column.arrow_type)
    return pc.replace_with_mask(pa.nulls(len(values), found.type), values.is_valid(), found)
