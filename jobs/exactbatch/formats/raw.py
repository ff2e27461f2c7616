"""The format Raw: bytes, unchanged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from exactbatch.columns import Column
from exactbatch.formats.format import Decoded, positions
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Raw:
    """Values are stored as bytes in one column. A null value gives a row with null; no value is rejected."""

    null_is_tombstone: ClassVar[bool] = False
    tombstone_deletes: ClassVar[bool] = False

    column: str = "value"

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def columns(self) -> tuple[Column, ...]:
        """One column of type bytea."""
        return (Column(self.column, "bytea"),)

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Return a row for every value."""
        import pyarrow as pa

        rows = pa.RecordBatch.from_arrays([values], [self.column])
        return Decoded(rows, positions(values))
