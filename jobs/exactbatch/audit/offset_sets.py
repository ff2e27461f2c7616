"""The offsets at which a window has records, rows and rejects, one byte each, and how they differ. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from exactbatch.audit.audit_result import Differences, Offsets, PartitionAudit
from exactbatch.audit.covering import FOLDED, NOT_COVERED, Covering
from exactbatch.audit.units import Slice

Flags = npt.NDArray[np.bool_]

# No offsets.
NONE: Final[Offsets] = np.array([], np.int64)


class Positions:
    """Numbers the offsets of several slices, of different partitions, one after the other."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.slices = slices
        self.starts = np.array([slice_.start for slice_ in slices], np.int64)
        self.ends = np.array([slice_.end for slice_ in slices], np.int64)
        self.bases = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        self._of_partition = np.full(max(slice_.partition for slice_ in slices) + 1, -1, np.int64)
        self._of_partition[[slice_.partition for slice_ in slices]] = np.arange(len(slices))

    def __len__(self) -> int:
        return int(self.bases[-1])

    def find_slice(self, partitions: npt.NDArray[np.int32]) -> Offsets:
        """Return the number of the slice of each partition; every partition has one."""
        return self._of_partition[partitions]

    def of(self, number: int) -> slice:
        """Return the positions of the slice of this number."""
        return slice(int(self.bases[number]), int(self.bases[number + 1]))


class FoundOffsets:
    """The rows and rejects in a window: where they are, which offsets have several, and which have another batch than
    the one that covers the offset."""

    def __init__(
        self,
        positions: Positions,
        coverings: Sequence[Covering],
        is_folded: Callable[[Offsets], Flags] = lambda batches: np.zeros(len(batches), bool),
    ) -> None:
        self._positions, self._is_folded = positions, is_folded
        self._covering = Covering.joined(
            (covering, slice_.start, slice_.end, int(base))
            for covering, slice_, base in zip(coverings, positions.slices, positions.bases[:-1], strict=True)
        )
        self._is_found, self._is_reject = np.zeros(len(positions), bool), np.zeros(len(positions), bool)
        self._repeated: list[Offsets] = []
        self._misplaced: list[Offsets] = []
        self._counts = {"rows": np.zeros(len(positions.slices), np.int64)}
        self._counts["rejects"] = self._counts["rows"].copy()
        self._outside = [Differences() for _ in positions.slices]
        self.rows_of_batches: Counter[int] = Counter()  # including those outside of the slices

    def add(self, kind: str, partitions: npt.NDArray[np.int32], offsets: Offsets, batches: Offsets) -> None:
        """Add some "rows" or "rejects": partition, offset and batch of each; -1 without a batch."""
        number = self._positions.find_slice(partitions)
        start = self._positions.starts[number]
        is_inside = (offsets >= start) & (offsets < self._positions.ends[number])
        if not is_inside.all():
            self._add_outside(kind, number[~is_inside], offsets[~is_inside], batches[~is_inside])
            number, start = number[is_inside], start[is_inside]
            offsets, batches = offsets[is_inside], batches[is_inside]
        at = offsets - start + self._positions.bases[number]
        if kind == "rows":
            self.rows_of_batches.update(_times(batches))
        self._counts[kind] += np.bincount(number, minlength=len(self._positions.slices))
        self._repeated.append(at[self._is_found[at]])
        if not (at[1:] > at[:-1]).all():
            different, times = np.unique(at, return_counts=True)
            self._repeated.append(different[times > 1])
        self._is_found[at] = True
        if kind == "rejects":
            self._is_reject[at] = True
        covering = self._covering.at(at)
        is_misplaced = batches != covering
        suspects = np.flatnonzero(is_misplaced & (covering == FOLDED))
        if len(suspects):
            is_misplaced[suspects] = ~self._is_folded(batches[suspects])
        self._misplaced.append(at[is_misplaced])

    def _add_outside(self, kind: str, number: Offsets, offsets: Offsets, batches: Offsets) -> None:
        for index in np.unique(number).tolist():
            slice_, of_slice = self._positions.slices[index], offsets[number == index]
            is_ours = (of_slice < slice_.start) if slice_.is_first else np.zeros(len(of_slice), bool)
            if slice_.is_last:
                is_ours |= of_slice >= slice_.end
            self._outside[index].add(np.sort(of_slice[is_ours]))
            if kind == "rows":
                self.rows_of_batches.update(_times(batches[number == index][is_ours]))

    def in_slice(self, number: int) -> "FoundInSlice":
        """Return what is in the slice of this number, by offset."""
        at = self._positions.of(number)
        return FoundInSlice(
            is_found=self._is_found[at],
            is_reject=self._is_reject[at],
            repeated=self._offsets(self._repeated, number),
            misplaced=self._offsets(self._misplaced, number),
            outside=self._outside[number],
            rows=int(self._counts["rows"][number]),
            rejects=int(self._counts["rejects"][number]),
        )

    def _offsets(self, positions: list[Offsets], number: int) -> Offsets:
        at = self._positions.of(number)
        inside = [each[(each >= at.start) & (each < at.stop)] for each in positions]
        different = np.unique(np.concatenate([*inside, NONE]))
        offsets: Offsets = different - at.start + self._positions.starts[number]
        return offsets


def _times(batches: Offsets) -> dict[int, int]:
    """Return how often each batch occurs; the same one usually occurs many times in a row."""
    if not len(batches):
        return {}
    starts = np.concatenate([[0], np.flatnonzero(np.diff(batches)) + 1])
    different, of_run = np.unique(batches[starts], return_inverse=True)
    times = np.bincount(of_run, np.diff(np.concatenate([starts, [len(batches)]])))
    return dict(zip(different.tolist(), times.astype(np.int64).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class FoundInSlice:
    """The rows and rejects of a slice.

    is_found   for each offset of the slice, whether it has a row or a reject
    is_reject  the same, whether it has a reject
    repeated   offsets with more than one, ascending
    misplaced  offsets of those whose batch does not cover the offset, ascending
    outside    those below the first slice of a partition, or past the last one
    """

    is_found: Flags
    is_reject: Flags
    repeated: Offsets
    misplaced: Offsets
    outside: Differences
    rows: int
    rejects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides whether an offset of a partition may lack a row, or have one.

    began                 the offset at which the pipeline began: below it, only what replays cover counts
    earliest              the offset at which the log starts
    horizon               the offset below which `exactbatch compact` may have dropped changes
    is_compacted          the log may have holes where records were
    has_row_per_record    each record has one row, unless it is a reject or a tombstone
    """

    began: int
    earliest: int
    horizon: int
    is_compacted: bool
    has_row_per_record: bool


def compare(
    result: PartitionAudit,
    slice_: Slice,
    is_record: Flags,
    rowless: Offsets,
    found: FoundInSlice,
    covering: Covering,
    rules: Rules,
    elsewhere: Offsets = NONE,
) -> None:
    """Compare the records of a slice with its rows and rejects, and add the outcome to the result.

    `is_record` says for each offset of the slice whether the log has a record there, and `rowless` are the offsets of
    records that rightly give no row, such as tombstones. So are those `elsewhere`, whose row another target has.
    """
    is_found, start = found.is_found, slice_.start
    is_expected, wrong = is_record, found.misplaced
    is_elsewhere = np.zeros(len(slice_), bool)
    is_elsewhere[elsewhere - start] = True
    is_elsewhere &= ~found.is_reject
    rowless = np.concatenate([rowless, elsewhere])
    if len(rowless):
        rowless = rowless[~found.is_reject[rowless - start]]
        is_expected = is_record.copy()
        is_expected[rowless - start] = False
        wrong = np.union1d(wrong, rowless[is_found[rowless - start]])
    if start < rules.began:
        is_ours = _is_ours(slice_, covering, rules.began)
        is_record, is_expected, is_elsewhere = (
            is_record & is_ours,
            is_expected & is_ours,
            is_elsewhere & is_ours,
        )
    records = int(np.count_nonzero(is_record))
    result.records += records
    result.rows += found.rows
    result.rejected += found.rejects
    result.elsewhere += int(np.count_nonzero(is_elsewhere))
    result.tombstones += records - int(np.count_nonzero(is_expected | is_elsewhere))
    if rules.has_row_per_record:
        absent = np.flatnonzero(is_expected & ~is_found) + start
        absent = absent[~covering.is_lost(absent)]
        is_below = (absent < rules.horizon) & (covering.at(absent) != NOT_COVERED)
        result.compacted += int(is_below.sum())
        result.missing.add(absent[~is_below])
        result.duplicated.add(found.repeated)
    # Below the log's start, and in the holes that compaction leaves, the log proves nothing.
    unproven = max(0, min(rules.earliest - start, len(slice_)))
    # The log may have started lower when it was read.
    result.removed += int(np.count_nonzero(is_found[:unproven] & ~is_record[:unproven]))
    foreign = np.flatnonzero(is_found[unproven:] & ~is_record[unproven:]) + start + unproven
    if rules.is_compacted:
        result.removed += len(foreign)
        foreign = foreign[:0]
    result.unexpected.add(np.union1d(foreign, wrong))
    result.unexpected.merge(found.outside)


def _is_ours(slice_: Slice, covering: Covering, began: int) -> Flags:
    """Return for each offset of the slice whether it counts: from where the pipeline began, or covered by a replay."""
    is_ours = np.ones(len(slice_), bool)
    history = np.arange(slice_.start, min(began, slice_.end))
    is_ours[: len(history)] = covering.at(history) != NOT_COVERED
    return is_ours
