"""Fold old batches: merge their coverage and delete their ranges."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from exactbatch.ledger.row_types import Batch
from exactbatch.ledger.statements import Store, columns, load_queries, read_row, read_rows
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("pruning")
_RANGE: Final = ("topic_id", "partition", "from_offset", "until_offset")


@dataclass(frozen=True, slots=True)
class Prunable:
    """A batch that may be folded, with the number of its ranges."""

    batch_id: int
    ranges: int


@dataclass(frozen=True, slots=True)
class PlannedReplay:
    """A replay that was planned and has not committed."""

    batch_id: int
    planned_at: datetime


@dataclass(frozen=True, slots=True)
class FoldedCoverage:
    """The merged rows of coverage, and the numbers of offsets that coverage had before and has after."""

    ranges: tuple[OffsetRange, ...]
    before: int
    after: int


class FoldedBatches(Store):
    """Folded batches: rows of exactbatch.batch without rows of batch_range; and the batches that may be folded."""

    def find_prunable(
        self, pipeline: Pipeline, before: datetime, *, after: int, limit: int
    ) -> list[Prunable]:
        """Return the oldest batches above `after` that may be folded, the first `limit` of them.

        They committed, or were superseded and planned, before a time. Left out are batches that an asset event is
        still to announce, and those of an earlier topic of the same name.
        """
        rows = _QUERIES.prunable(
            self._connection, pipeline=pipeline.name, before=before, after=after, limit=limit
        )
        return read_rows(Prunable, rows)

    def read_planned_replays(self, pipeline: Pipeline) -> list[Batch]:
        """Return all replays that have not committed, oldest first."""
        return read_rows(Batch, _QUERIES.planned_replays(self._connection, pipeline=pipeline.name))

    def find_blocking_replays(self, pipeline: Pipeline, before: datetime) -> list[PlannedReplay]:
        """Return planned replays over results of batches from before a time, or of folded ones, oldest first."""
        rows = _QUERIES.blocking_replays(self._connection, pipeline=pipeline.name, before=before)
        return read_rows(PlannedReplay, rows)

    def find_planned_replay(self, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> PlannedReplay | None:
        """Return a planned replay that overlaps the ranges; None if there is none."""
        rows = _QUERIES.planned_replay_over(
            self._connection, pipeline=pipeline.name, **columns(ranges, *_RANGE)
        )
        return next((read_row(PlannedReplay, row) for row in rows), None)

    def fold(self, pipeline: Pipeline, batch_ids: Sequence[int]) -> FoldedCoverage:
        """Mark batches as folded, and merge their rows of coverage with each other and with the rows beside them."""
        ids = list(batch_ids)
        _QUERIES.mark_pruned(self._connection, pipeline=pipeline.name, batch_ids=ids)
        rows = list(_QUERIES.fold_coverage(self._connection, pipeline=pipeline.name, batch_ids=ids))
        return FoldedCoverage(
            tuple(
                OffsetRange(row.topic, row.partition, row.from_offset, row.until_offset, row.topic_id)
                for row in rows
                if row.topic is not None
            ),
            before=rows[0].before,
            after=rows[0].after,
        )

    def delete_ranges(self, batch_ids: Sequence[int]) -> int:
        """Delete the ranges of folded batches, and what is known about their failures; return how many ranges."""
        _QUERIES.delete_failures(self._connection, batch_ids=list(batch_ids))
        return int(_QUERIES.delete_ranges(self._connection, batch_ids=list(batch_ids)))

    def count_empty_runs(self, pipeline: Pipeline, before: datetime) -> int:
        """Return how many DAG runs found nothing to process before a time."""
        return int(_QUERIES.count_empty_runs(self._connection, pipeline=pipeline.name, before=before))

    def forget_empty_runs(self, pipeline: Pipeline, before: datetime, *, limit: int) -> int:
        """Delete the oldest DAG runs that found nothing to process before a time; return how many."""
        return int(
            _QUERIES.forget_empty_runs(self._connection, pipeline=pipeline.name, before=before, limit=limit)
        )
