"""Find the batch that covers each offset, according to the ledger: sorted arrays of intervals.

Of batches that exactbatch prune has folded, the ledger knows the pipelines, and no longer the ranges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from psycopg2 import sql

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.snapshot import Snapshot

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

    def count_lost(self, start: int, end: int) -> int:
        """Return how many offsets of [start, end) the ledger records as lost."""
        spans = np.minimum(self.ends, end) - np.maximum(self.starts, start)
        return int(np.maximum(spans, 0)[self.is_loss].sum())

    def find_uncovered(self, start: int, end: int) -> list[tuple[int, int]]:
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


def has_folded(snapshot: Snapshot, pipelines: Sequence[str]) -> bool:
    """True if any batch of the pipelines is folded."""
    query = sql.SQL(
        "select exists (select from exactbatch.batch where pipeline = any({}::text[]) and pruned is not null)"
    )
    return bool(snapshot.rows(query.format(sql.Literal(list(pipelines))))[0][0])


def is_folded(batch_id: sql.Composable, pipelines: Sequence[str]) -> sql.Composable:
    """Return the condition that a batch belongs to the pipelines and is folded."""
    return sql.SQL(
        "exists (select from exactbatch.batch f where f.batch_id = {} and f.pipeline = any({}::text[]) "
        "and f.pruned is not null)"
    ).format(batch_id, sql.Literal(list(pipelines)))


def find_covering_batch(batch_id: sql.Composable, pipeline: str) -> sql.Composable:
    """Return the batch of a row as coverage names it: FOLDED for a folded batch of the pipeline."""
    return sql.SQL("case when {} then {} else {} end").format(
        is_folded(batch_id, [pipeline]), sql.Literal(FOLDED), batch_id
    )
