"""The protocol of a value format, and the block decoder that formats share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from exactbatch.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outcome of decoding n values: every value is a row, a reject or a tombstone.

    `rows` has the format's columns; `kept` holds, for each row, the index of its value (int64, ascending).
    `rejects` pairs the index of a value with the reason. `tombstones` counts null values without a row.
    `deleted` is true for each row that deletes its key; None if the format has no deletes. `unchanged` lists, for
    each row, the columns whose values the source left out because they had not changed, which are null in the row;
    null for a whole row, and None if all rows are whole.
    """

    rows: "pa.RecordBatch"
    kept: "pa.Int64Array"
    rejects: tuple[tuple[int, str], ...] = ()
    tombstones: int = 0
    deleted: "pa.BooleanArray | None" = None
    unchanged: "pa.ListArray | None" = None


@runtime_checkable
class Format(Protocol):
    """Turns value bytes into columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row, in the order of the target."""
        ...

    @property
    def null_is_tombstone(self) -> bool:
        """True if a null value gives no row; otherwise it gives a row with null."""
        ...

    @property
    def tombstone_deletes(self) -> bool:
        """True if a null value deletes its key in an Upsert; otherwise the values themselves carry deletes."""
        ...

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values; a value that is not of this format becomes a reject, never an error."""
        ...


@runtime_checkable
class LeavesValuesOut(Protocol):
    """A format whose values may lack columns that have not changed. Its decode() rejects such values."""

    def decode_with_unchanged(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values as decode() does, but keep rows that lack columns."""
        ...


def positions(values: "pa.Array") -> "pa.Int64Array":
    """Return the index of each value: 0, 1, … n-1."""
    import numpy as np
    import pyarrow as pa

    return pa.array(np.arange(len(values)))


def decode_present(values: "pa.BinaryArray", decode: "Callable[[pa.BinaryArray], pa.RecordBatch]") -> Decoded:
    """Decode the values that are not null as decode_block_or_halves() does; count the others as tombstones."""
    import pyarrow.compute as pc

    present = positions(values)
    if tombstones := values.null_count:
        present = pc.filter(present, values.is_valid())
        values = values.drop_null()
    return replace(decode_block_or_halves(values, present, decode), tombstones=tombstones)


def decode_block_or_halves(
    values: "pa.BinaryArray",
    indexes: "pa.Int64Array",
    decode: "Callable[[pa.BinaryArray], pa.RecordBatch]",
) -> Decoded:
    """Decode all values at once; if that fails, halve the block until each refused value is alone.

    `decode` returns one row for each value or raises ValueError, whose text becomes the reason. Each bad value
    among n costs about log2(n) additional decodes; good values are never decoded one by one.
    """
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    kept: list[pa.Int64Array] = []
    rejects: list[tuple[int, str]] = []
    waiting = [(values, indexes)]
    while waiting:
        part, positions = waiting.pop()
        try:
            batches.append(decode(part))
            kept.append(positions)
        except ValueError as error:
            if len(part) == 1:
                rejects.append((positions[0].as_py(), str(error)))
                continue
            half = len(part) // 2
            waiting.append((part[half:], positions[half:]))
            waiting.append((part[:half], positions[:half]))
    if not batches:
        batches, kept = [decode(values[:0])], [indexes[:0]]
    return Decoded(
        rows=pa.concat_batches(batches),
        kept=pa.concat_arrays(kept),
        rejects=tuple(rejects),
    )
