"""Bound the rows that a record may become, in every format; a record beyond the bounds is a reject.

A small record may become any number of bytes: decompressed, as a row for each of its documents or elements, which
repeats what is around them, or by values that take no bytes. Arrow's arrays of text end at 2 GiB, and a worker's memory
before that.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.errors import ExactbatchError
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.json.raw_fields import TOO_DEEP

# A batch of the largest records: they take as long as a hundred full blocks of records with one row each.
MOST_ROWS: Final = 1_000_000
# Postgres's limit for a jsonb, and four times what a value may decompress to. Decoding and copying hold some three
# times as much.
MOST_BYTES: Final = 256 * 1024 * 1024
# Bytes of the rows that records decoded together should have; records are cut by what those before them became.
_TOGETHER: Final = 64 * 1024 * 1024
# Bytes of values that Python decodes together: it may take hundreds of bytes for one of theirs.
_OF_OBJECTS: Final = 1024 * 1024
_MOST_CHARACTERS: Final = 255  # of a name in a schema
_SHOWN: Final = 50  # characters of it
_REASON_LENGTH: Final = 500  # characters

R = TypeVar("R", bound="_Records")


class TooLarge(Exception):
    """What is decoded together becomes more than a record may become. The message is the reason to reject it if it is a
    single record; several of them are decoded in parts.

    It is no ValueError: a format must not take it for a broken value.
    """


class TooManyTogether(ValueError):
    """Python would create too many objects for values that are decoded together: each half has fewer."""


def check_size(rows: int, bytes_: int = 0) -> None:
    """Raise TooLarge for more rows, or bytes of rows, than a record may become."""
    if rows > MOST_ROWS:
        raise TooLarge(f"the record becomes {rows:,} rows, and a record may become at most {MOST_ROWS:,}")
    if bytes_ > MOST_BYTES:
        raise TooLarge(
            f"the record becomes rows of {bytes_:,} bytes, and a record may become at most {MOST_BYTES:,}"
        )


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for long names in a schema: a small value could repeat them in JSON and text until these fill
    the memory."""
    for name in names:
        if len(name) > _MOST_CHARACTERS:
            raise ValueError(
                f"expected names in a schema of at most {_MOST_CHARACTERS} characters, found one of "
                f"{len(name):,}: {name[:_SHOWN]}…"
            )


def check_together(values: pa.BinaryArray) -> None:
    """Raise TooManyTogether for several values that would become too many objects of Python."""
    if len(values) > 1 and values.nbytes > _OF_OBJECTS:
        raise TooManyTogether


def measure_size(values: pa.Array, at: npt.NDArray[np.int64]) -> int:
    """Return how many bytes the values at some positions take; a position may occur any number of times."""
    return int(_sizes(values)[at].sum())


def _sizes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return how many bytes each value takes in an array, without its bit that says whether it is null."""
    sizes: npt.NDArray[np.int64]
    if pa.types.is_list(values.type):
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(_sizes(values.values))])
        bounds = values.offsets.to_numpy()
        sizes = ends[bounds[1:]] - ends[bounds[:-1]] + 4
    elif pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64) + 4
    else:
        sizes = np.full(len(values), max(1, values.type.bit_width // 8), np.int64)
    return sizes


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches of the same columns as one; raise TooLarge for more than a record may become."""
    if len(batches) == 1:
        return batches[0]
    check_size(sum(map(len, batches)), sum(batch.nbytes for batch in batches))
    return pa.concat_batches(batches)


class _Records(Protocol):
    """Records in their order."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Return the records [start, stop) of these."""
        ...


class InParts:
    """Decodes blocks of records, each in parts whose rows should be about as large as they may be."""

    def __init__(self) -> None:
        self._fitting: int | None = None  # records, of those that were decoded last

    def decode(self, block: R, decode: Callable[[R], Decoded]) -> Iterator[tuple[R, Decoded]]:
        """Yield the parts of a block, in order, and what each became.

        If `decode` raises an error, or the rows are too large, the part is halved until each record at fault is alone:
        that record is a reject. So no value can end a batch, whatever library fails for it. Raises the errors of
        servers and of the configuration, and any error of no record at all.
        """
        start = 0
        while start < len(block):
            stop = len(block) if self._fitting is None else min(len(block), start + self._fitting)
            whole = block if stop - start == len(block) else block.part(start, stop)
            for records, decoded in _halved(whole, decode):
                yield records, decoded
                size = decoded.rows.nbytes
                self._fitting = max(1, _TOGETHER * len(records) // size) if size else None
            start = stop


def _halved(whole: R, decode: Callable[[R], Decoded]) -> Iterator[tuple[R, Decoded]]:
    waiting = [whole]
    while waiting:
        records = waiting.pop()
        try:
            decoded = decode(records)
            check_size(len(decoded.rows), decoded.rows.nbytes)
        except (ExactbatchError, OSError, ImportError):
            raise
        except Exception as error:
            if (count := len(records)) > 1:
                waiting += [records.part(count // 2, count), records.part(0, count // 2)]
                continue
            decoded = replace(decode(records.part(0, 0)), rejects=((0, _reason(error)),))
        yield records, decoded


def _reason(error: Exception) -> str:
    match error:
        case TooLarge():
            return str(error)
        case RecursionError():
            return TOO_DEEP
        case MemoryError():
            return "decoding the record takes more memory than the worker may use"
        case _:
            return f"the record cannot be decoded: {type(error).__name__}: {error}"[:_REASON_LENGTH]
