"""What every value format offers."""

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
    `deleted` says of each row whether it tells that its key is gone; None where a format knows no deletes.
    """

    rows: "pa.RecordBatch"
    kept: "pa.Int64Array"
    rejects: tuple[tuple[int, str], ...] = ()
    tombstones: int = 0
    deleted: "pa.BooleanArray | None" = None


@runtime_checkable
class Format(Protocol):
    """Turns value bytes into columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row, in the order of the target."""
        ...

    @property
    def null_is_tombstone(self) -> bool:
        """Whether a null value gives no row; otherwise it gives a row with null."""
        ...

    @property
    def tombstone_deletes(self) -> bool:
        """Whether, for an Upsert, a null value deletes the row of its key; otherwise values tell of deletes."""
        ...

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values; a value that is not of this format becomes a reject, never an error."""
        ...


def positions(values: "pa.Array") -> "pa.Int64Array":
    """The index of each value: 0, 1, … n-1."""
    import numpy as np
    import pyarrow as pa

    return pa.array(np.arange(len(values)))


def decode_present(values: "pa.BinaryArray", decode: "Callable[[pa.BinaryArray], pa.RecordBatch]") -> Decoded:
    """As decode_block_or_halves() over the values that are not null; the null ones are tombstones."""
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
    """Decode all values at once; where that fails, halve until the refused ones stand alone.

    `decode` returns one row for each value or raises ValueError, whose text becomes the reason. A few bad
    values among n cost about log2(n) more decodes each, and good ones never pay one by one.
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
