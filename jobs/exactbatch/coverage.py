"""Which batches cover which offsets. Pure, no I/O."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from exactbatch.model import Covered
from exactbatch.offsets import Log, OffsetRange


class Coverage:
    """Rows of exactbatch.coverage, none of which overlaps another; those of a range are found without a scan."""

    def __init__(self, rows: Iterable[Covered]) -> None:
        self._of_log: dict[Log, list[Covered]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.from_offset):
            self._of_log[row.log].append(row)

    def overlapping(self, range_: OffsetRange) -> list[Covered]:
        """The rows that have an offset of the range, in their order."""
        rows = self._of_log.get(range_.log, [])
        first = bisect_right(rows, range_.from_offset, key=lambda row: row.until_offset)
        end = bisect_left(rows, range_.until_offset, key=lambda row: row.from_offset)
        return rows[first:end]

    def cut(self, range_: OffsetRange) -> list[Covered]:
        """As overlapping(), of each row what lies in the range."""
        return [
            replace(
                row,
                from_offset=max(row.from_offset, range_.from_offset),
                until_offset=min(row.until_offset, range_.until_offset),
            )
            for row in self.overlapping(range_)
        ]

    def without(self, ranges: Iterable[OffsetRange]) -> list[Covered]:
        """What the rows cover beside ranges, none of which overlaps another."""
        rest = []
        reached = {row: row.from_offset for rows in self._of_log.values() for row in rows}
        for range_ in sorted(ranges, key=lambda each: each.from_offset):
            for row in self.overlapping(range_):
                if reached[row] < range_.from_offset:
                    rest.append(replace(row, from_offset=reached[row], until_offset=range_.from_offset))
                reached[row] = range_.until_offset
        return rest + [
            replace(row, from_offset=end) for row, end in reached.items() if end < row.until_offset
        ]

    def batches(self, range_: OffsetRange) -> set[int]:
        """The batches whose results stand for some offsets of the range."""
        return {row.batch_id for row in self.overlapping(range_) if row.batch_id is not None}


def covered_parts(
    ranges: Sequence[OffsetRange], coverage: Sequence[Covered]
) -> list[tuple[OffsetRange, tuple[int, ...]]]:
    """Each range, and the batches whose results stand for some of its offsets."""
    found = Coverage(coverage)
    return [(range_, tuple(sorted(found.batches(range_)))) for range_ in ranges]
