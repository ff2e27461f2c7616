"""The format Text: UTF-8, unchanged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from exactbatch.columns import Column
from exactbatch.formats.format import Decoded, decode_block_or_halves, positions
from exactbatch.formats.postgres_limits import NUL
from exactbatch.formats.unreadable_text import text_of
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Text:
    """Values are UTF-8 text for one column. A null value gives a row with null. Invalid UTF-8, and U+0000, which
    Postgres cannot store, make the record a reject."""

    null_is_tombstone: ClassVar[bool] = False
    tombstone_deletes: ClassVar[bool] = False

    column: str = "value"

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def columns(self) -> tuple[Column, ...]:
        """One column of type text."""
        return (Column(self.column, "text"),)

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values."""
        return decode_block_or_halves(values, positions(values), self._decode_block)

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        import pyarrow as pa
        import pyarrow.compute as pc

        text = text_of(values)
        if pc.any(pc.match_substring(text, "\0")).as_py():
            raise ValueError(NUL)
        return pa.RecordBatch.from_arrays([text], [self.column])
