"""Which batch covers each offset, according to the ledger: sorted arrays of intervals. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from exactbatch.audit.audit_result import Offsets

NOT_COVERED: Final = -2  # in place of the ID of a batch: no batch covers the offset
FOLDED: Final = 0  # in place of the ID of a batch: exactbatch prune has folded it


@dataclass(frozen=True, slots=True)
class Covering:
    """Intervals [starts, ends), ordered by their starts, and the batch of each; NOT_COVERED where offsets were lost."""

    starts: Offsets
    ends: Offsets
    batches: Offsets
    is_loss: npt.NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Iterable[tuple["Covering", int, int, int]]) -> "Covering":
        """Return several coverings one after the other: of each, the offsets [start, end), moved to begin at `base`.

        The parts are (covering, start, end, base), in the order of their bases.
        """
        cut = [covering._moved(start, end, base) for covering, start, end, base in parts]
        return cls(
            np.concatenate([part.starts for part in cut]),
            np.concatenate([part.ends for part in cut]),
            np.concatenate([part.batches for part in cut]),
            np.concatenate([part.is_loss for part in cut]),
        )

    def _moved(self, start: int, end: int, base: int) -> "Covering":
        kept = (self.starts < end) & (self.ends > start)
        starts = np.maximum(self.starts[kept], start) - start + base
        ends = np.minimum(self.ends[kept], end) - start + base
        return Covering(starts, ends, self.batches[kept], self.is_loss[kept])

    def at(self, offsets: Offsets) -> Offsets:
        """Return the batch that covers each offset; NOT_COVERED if none does."""
        index, is_inside = self._find_interval(offsets)
        if not len(self.starts):
            return np.full(len(offsets), NOT_COVERED, np.int64)
        return np.where(is_inside, self.batches[index], NOT_COVERED)

    def is_lost(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return which of the offsets the ledger records as lost."""
        index, is_inside = self._find_interval(offsets)
        if not len(self.starts):
            return is_inside
        lost: npt.NDArray[np.bool_] = is_inside & self.is_loss[index]
        return lost

    def lost_in(self, start: int, end: int) -> int:
        """Return how many offsets of [start, end) the ledger records as lost."""
        spans = np.minimum(self.ends, end) - np.maximum(self.starts, start)
        return int(np.maximum(spans, 0)[self.is_loss].sum())

    def gaps_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the intervals of [start, end) that neither a batch nor a loss covers."""
        reached = np.maximum.accumulate(np.concatenate([[start], np.maximum(self.ends, start)]))
        following = np.minimum(np.concatenate([self.starts, [end]]), end)
        is_gap = reached < following
        return list(zip(reached[is_gap].tolist(), following[is_gap].tolist(), strict=True))

    def _find_interval(self, offsets: Offsets) -> tuple[Offsets, npt.NDArray[np.bool_]]:
        """Return the last interval that begins at or before each offset, and whether it contains the offset."""
        if not len(self.starts):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        index = np.searchsorted(self.starts, offsets, side="right") - 1
        return index, (index >= 0) & (offsets < self.ends[index])
