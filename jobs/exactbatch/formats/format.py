"""The protocol of a value format, and the block decoder that formats share."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from exactbatch.columns import Column
from exactbatch.formats.bounds import TooManyTogether, joined
from exactbatch.formats.raw_json_fields import TOO_DEEP

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    FindRefused = Callable[[pa.BinaryArray], Iterable[tuple[int, str]]]

V = TypeVar("V")
_FEW: Final = 8  # values that are checked one by one if one of them is refused: half of them often are, too


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outcome of decoding n values: every value gives a row, a reject or a tombstone.

    `rows` has the format's columns; `kept` holds, for each row, the index of its value (int64, ascending). In a format
    for which gives_several_rows() is true, an index occurs once for each row of its value, or not at all.
    `rejects` pairs the index of a value with the reason. `tombstones` counts the values that rightly give
    no row: null, or an event that carries none.
    `deleted` is true for each row that deletes its key; None if the format has no deletes. `unchanged` lists, for
    each row, the columns whose values the source left out because they had not changed, which are null in the row;
    null for a whole row, and None if all rows are whole. `truncated` is true for each row that stands for a truncate of
    the whole table, and is a delete, too; None if there is none, as in every format in which null values delete.
    `written_nulls` is true for each of the n values that counts as null although it has bytes; None if there is none.
    `replaced` counts the values that decoded after text that Postgres cannot hold was replaced, and `taken` those that
    compiled code decoded.
    """

    rows: "pa.RecordBatch"
    kept: "pa.Int64Array"
    rejects: tuple[tuple[int, str], ...] = ()
    tombstones: int = 0
    deleted: "pa.BooleanArray | None" = None
    unchanged: "pa.ListArray | None" = None
    truncated: "pa.BooleanArray | None" = None
    written_nulls: "pa.BooleanArray | None" = None
    replaced: int = 0
    taken: int = 0


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


def reads_schema_ids(format_: object) -> bool:
    """True for a format that takes the schemas of its values from a registry: their IDs may be in headers."""
    return bool(getattr(format_, "reads_schema_ids", False))


def gives_several_rows(format_: object) -> bool:
    """True for a format, or WithMessage, in which a value gives any number of rows."""
    return bool(getattr(format_, "gives_several_rows", False))


@runtime_checkable
class LeavesValuesOut(Protocol):
    """A format whose values may lack columns that have not changed. Its decode() rejects such values."""

    def decode_with_unchanged(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values as decode() does, but keep rows that lack columns."""
        ...


def truncate_order(format_: object) -> tuple[str, ...] | None:
    """Return the columns that order truncates among changes, () if there are none; None for a format, or WithMessage,
    in which a truncate is a reject."""
    order: tuple[str, ...] | None = getattr(format_, "truncate_order", None)
    return order


def position_columns(format_: object) -> tuple[str, ...]:
    """Return the columns in which a format gives the position of each change's commit; () if it gives none."""
    columns: tuple[str, ...] = getattr(format_, "position_columns", ())
    return columns


def unordered_columns(format_: object) -> frozenset[str]:
    """Return the columns of a format, or WithMessage, whose values look like an order of changes and are none."""
    columns: frozenset[str] = getattr(format_, "unordered_columns", frozenset())
    return columns


def positions(values: "pa.Array") -> "pa.Int64Array":
    """Return the index of each value: 0, 1, … n-1."""
    import numpy as np
    import pyarrow as pa

    return pa.array(np.arange(len(values)))


def without_values(decoded: Decoded, refused: "Iterable[tuple[int, str]]") -> Decoded:
    """Return what was decoded without all rows of some values, which become rejects for the first reason of each."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
        unchanged=None if decoded.unchanged is None else decoded.unchanged.filter(good),
        truncated=None if decoded.truncated is None else decoded.truncated.filter(good),
        written_nulls=decoded.written_nulls,
    )


def decode_present(
    values: "pa.BinaryArray",
    decode: "Callable[[pa.BinaryArray], pa.RecordBatch]",
    find_refused: "FindRefused | None" = None,
) -> Decoded:
    """Decode the values that are not null as decode_block_or_halves() does; count the others as tombstones."""
    import pyarrow.compute as pc

    present = positions(values)
    if tombstones := values.null_count:
        present = pc.filter(present, values.is_valid())
        values = values.drop_null()
    return replace(decode_block_or_halves(values, present, decode, find_refused), tombstones=tombstones)


def in_order(parts: "Sequence[Decoded]", tombstones: int) -> Decoded:
    """Join parts of one block of values, with further tombstones; none of the parts says which rows are deletes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = pa.concat_arrays([part.kept for part in parts])
    rows = joined([part.rows for part in parts])
    if sum(len(part.kept) > 0 for part in parts) > 1:
        order = pc.sort_indices(kept)
        kept, rows = kept.take(order), rows.take(order)
    rejects = tuple(sorted(reject for part in parts for reject in part.rejects))
    return Decoded(rows, kept, rejects, tombstones + sum(part.tombstones for part in parts))


def decode_several(
    values: "pa.BinaryArray",
    decode: "Callable[[pa.BinaryArray], tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]]",
    find_refused: "FindRefused | None" = None,
) -> Decoded:
    """Decode as decode_present() does, where a value gives any number of rows: `decode` also returns the value that
    each row is of, ascending, or None if each value gives one row."""
    present = positions(values).filter(values.is_valid())
    tombstones = values.null_count
    return replace(
        _decoded_in_parts(values.drop_null(), present, decode, find_refused), tombstones=tombstones
    )


def decode_block_or_halves(
    values: "pa.BinaryArray",
    indexes: "pa.Int64Array",
    decode: "Callable[[pa.BinaryArray], pa.RecordBatch]",
    find_refused: "FindRefused | None" = None,
) -> Decoded:
    """Decode all values at once; if that fails, halve the block until each refused value is alone.

    `decode` returns one row for each value or raises ValueError, whose text becomes the reason, or RecursionError for a
    value that nests too deeply. Each bad value among n costs about log2(n) additional decodes; good values are never
    decoded one by one. `find_refused` finds most bad values of a block that fails much faster: it yields the index of
    each that is surely refused, and the reason that `decode` gives for it alone.
    """
    return _decoded_in_parts(values, indexes, lambda part: (decode(part), None), find_refused)


def _decoded_in_parts(
    values: "pa.BinaryArray",
    indexes: "pa.Int64Array",
    decode: "Callable[[pa.BinaryArray], tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]]",
    find_refused: "FindRefused | None",
) -> Decoded:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    batches: list[pa.RecordBatch] = []
    kept: list[pa.Int64Array] = []
    rejects: list[tuple[int, str]] = []
    waiting = [(values, indexes, find_refused is None)]
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
            if find_refused is not None and not is_searched and not isinstance(error, TooManyTogether):
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
        rows=joined(batches),
        kept=pa.concat_arrays(kept),
        rejects=tuple(sorted(rejects)),
    )


def find_reasons(
    reason_of: Callable[[bytes], str | None], values: "pa.BinaryArray"
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
