"""The interface of decoders, and the decoding in blocks that formats share."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.bounds import TooManyTogether, join_batches
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.format import Format
from exactbatch.formats.json.raw_fields import TOO_DEEP

FindRefused = Callable[[pa.BinaryArray], Iterable[tuple[int, str]]]


V = TypeVar("V")
AnyFormat = TypeVar("AnyFormat", bound=Format)
_FEW: Final = 8  # values that are checked one by one if one of them is refused: half of them often are, too


class Decoder(Generic[AnyFormat]):
    """Decodes the values of one format, its `spec`."""

    def __init__(self, spec: AnyFormat) -> None:
        self.spec = spec

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values; a value that is not of this format becomes a reject, never an error."""
        raise NotImplementedError

    def decode_with_unavailable(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values as decode() does, but keep rows that have unavailable values."""
        return self.decode(values)


def positions(values: pa.Array) -> pa.Int64Array:
    """Return the index of each value: 0, 1, … n-1."""
    return pa.array(np.arange(len(values)))


def without_values(decoded: Decoded, refused: Iterable[tuple[int, str]]) -> Decoded:
    """Return what was decoded without all rows of some values, which become rejects for the first reason of each."""
    reasons: dict[int, str] = {}
    for index, reason in refused:
        reasons.setdefault(index, reason)
    good = pc.invert(pc.is_in(decoded.kept, pa.array(list(reasons), pa.int64())))
    return Decoded(
        rows=decoded.rows.filter(good),
        kept=decoded.kept.filter(good),
        rejects=tuple(sorted([*decoded.rejects, *reasons.items()])),
        tombstones=decoded.tombstones,
        deleted=None if decoded.deleted is None else decoded.deleted.filter(good),
        unavailable=None if decoded.unavailable is None else decoded.unavailable.filter(good),
        truncated=None if decoded.truncated is None else decoded.truncated.filter(good),
        written_nulls=decoded.written_nulls,
    )


def decode_present(
    values: pa.BinaryArray,
    decode: Callable[[pa.BinaryArray], pa.RecordBatch],
    find_refused: FindRefused,
) -> Decoded:
    """Decode the values that are not null as decode_block_or_halves() does; count the others as tombstones."""
    return decode_several(values, lambda part: (decode(part), None), find_refused)


def in_order(parts: Sequence[Decoded], tombstones: int) -> Decoded:
    """Join parts of one block of values, with further tombstones; none of the parts says which rows are deletes."""
    kept = pa.concat_arrays([part.kept for part in parts])
    rows = join_batches([part.rows for part in parts])
    if sum(len(part.kept) > 0 for part in parts) > 1:
        order = pc.sort_indices(kept)
        kept, rows = kept.take(order), rows.take(order)
    rejects = tuple(sorted(reject for part in parts for reject in part.rejects))
    return Decoded(rows, kept, rejects, tombstones + sum(part.tombstones for part in parts))


def decode_several(
    values: pa.BinaryArray,
    decode: Callable[[pa.BinaryArray], tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]],
    find_refused: FindRefused,
) -> Decoded:
    """Decode as decode_present() does, where a value gives any number of rows: `decode` also returns the value that
    each row is of, ascending, or None if each value gives one row."""
    present, tombstones = positions(values), values.null_count
    if tombstones:
        present, values = present.filter(values.is_valid()), values.drop_null()
    return replace(_decoded_in_parts(values, present, decode, find_refused), tombstones=tombstones)


def decode_block_or_halves(
    values: pa.BinaryArray,
    indexes: pa.Int64Array,
    decode: Callable[[pa.BinaryArray], pa.RecordBatch],
    find_refused: FindRefused,
) -> Decoded:
    """Decode all values at once; if that fails, halve the block until each refused value is alone.

    `decode` returns one row for each value or raises ValueError, whose text becomes the reason, or RecursionError for a
    value that nests too deeply. Each bad value among n costs about log2(n) additional decodes; good values are never
    decoded one by one. `find_refused` finds most bad values of a block that fails much faster: it yields the index of
    each that is surely refused, and the reason that `decode` gives for it alone.
    """
    return _decoded_in_parts(values, indexes, lambda part: (decode(part), None), find_refused)


def _decoded_in_parts(
    values: pa.BinaryArray,
    indexes: pa.Int64Array,
    decode: Callable[[pa.BinaryArray], tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]],
    find_refused: FindRefused,
) -> Decoded:
    batches: list[pa.RecordBatch] = []
    kept: list[pa.Int64Array] = []
    rejects: list[tuple[int, str]] = []
    waiting = [(values, indexes, False)]
    while waiting:
        part, positions, is_searched = waiting.pop()
        try:
            rows, origins = decode(part)
            batches.append(rows)
            kept.append(positions if origins is None else positions.take(pa.array(origins)))
        except (ValueError, RecursionError) as error:
            if len(part) == 1:
                reason = TOO_DEEP if isinstance(error, RecursionError) else str(error)
                rejects.append((positions[0].as_py(), reason))
                continue
            if not is_searched and not isinstance(error, TooManyTogether):
                is_searched = True
                found: dict[int, str] = {}
                for index, reason in find_refused(part):
                    found.setdefault(index, reason)
                if found:
                    refused = pa.array(list(found), pa.int64())
                    rejects += zip(positions.take(refused).to_pylist(), found.values(), strict=True)
                    left = pc.invert(pc.is_in(pa.array(np.arange(len(part))), refused))
                    waiting.append((part.filter(left), positions.filter(left), is_searched))
                    continue
            half = len(part) // 2
            waiting.append((part[half:], positions[half:], is_searched))
            waiting.append((part[:half], positions[:half], is_searched))
    if not batches:
        batches, kept = [decode(values[:0])[0]], [indexes[:0]]
    return Decoded(
        rows=join_batches(batches),
        kept=pa.concat_arrays(kept),
        rejects=tuple(sorted(rejects)),
    )


def find_reasons(
    reason_of: Callable[[bytes], str | None], values: pa.BinaryArray
) -> Iterator[tuple[int, str]]:
    """Yield the index of each value that is refused, and the reason, which `reason_of` has; a null never is."""
    for index, value in enumerate(values.to_pylist()):
        if value is not None and (reason := reason_of(value)) is not None:
            yield index, reason


def refused_by(
    checks: Iterable[Callable[[Sequence[V]], object]],
    values: dict[int, V],
    alike: Callable[[V], Hashable] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield the index of each value that one of the checks refuses, in parts until it is alone, and the text of the
    first check's ValueError. Removes these values.

    The checks treat values in the same way for which `alike` returns equal results.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, value in values.items():
        groups.setdefault(index if alike is None else alike(value), []).append(index)
    left = {group[0]: group for group in groups.values()}
    for check in checks:
        waiting = [list(left)] if left else []
        while waiting:
            part = waiting.pop()
            try:
                check([values[index] for index in part])
            except ValueError as error:
                if (count := len(part)) > 1:
                    size = count // 2 if count > _FEW else 1
                    waiting += [part[start : start + size] for start in range(0, count, size)][::-1]
                    continue
                for index in left.pop(part[0]):
                    del values[index]
                    yield index, str(error)
