"""Look up which batches cover which offsets. Pure, no I/O."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange, PartitionKey


class Coverage:
    """Rows of exactbatch.coverage that do not overlap; a range finds its rows by binary search."""

    def __init__(self, rows: Iterable[Covered]) -> None:
        self._by_key: dict[PartitionKey, list[Covered]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.from_offset):
            self._by_key[row.key].append(row)

    def overlapping(self, range_: OffsetRange) -> list[Covered]:
        """Return the rows that share an offset with the range, in order."""
        rows = self._by_key.get(range_.key, [])
        first = bisect_right(rows, range_.from_offset, key=lambda row: row.until_offset)
        end = bisect_left(rows, range_.until_offset, key=lambda row: row.from_offset)
        return rows[first:end]

    def cut(self, range_: OffsetRange) -> list[Covered]:
        """Return the rows that share an offset with the range, each cut to the range."""
        return [
            replace(
                row,
                from_offset=max(row.from_offset, range_.from_offset),
                until_offset=min(row.until_offset, range_.until_offset),
            )
            for row in self.overlapping(range_)
        ]

    def without(self, ranges: Iterable[OffsetRange]) -> list[Covered]:
        """Return the parts of the rows outside the ranges, which must not overlap each other."""
        remaining = []
        reached = {row: row.from_offset for rows in self._by_key.values() for row in rows}
        for range_ in sorted(ranges, key=lambda r: r.from_offset):
            for row in self.overlapping(range_):
                if reached[row] < range_.from_offset:
                    remaining.append(replace(row, from_offset=reached[row], until_offset=range_.from_offset))
                reached[row] = range_.until_offset
        return remaining + [
            replace(row, from_offset=end) for row, end in reached.items() if end < row.until_offset
        ]

    def batches(self, range_: OffsetRange) -> set[int]:
        """Return the IDs of the batches that cover some offset of the range."""
        return {row.batch_id for row in self.overlapping(range_) if row.batch_id is not None}


def covered_parts(
    ranges: Sequence[OffsetRange], rows: Sequence[Covered]
) -> list[tuple[OffsetRange, tuple[int, ...]]]:
    """Return each range with the IDs of the batches that cover some of its offsets, ascending."""
    coverage = Coverage(rows)
    return [(range_, tuple(sorted(coverage.batches(range_)))) for range_ in ranges]
