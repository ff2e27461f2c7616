"""Fold old batches: merge their coverage, delete their ranges, and find what they wrote afterwards."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from exactbatch.coverage import Coverage, covered_parts
from exactbatch.ledger.covered_offsets import CoveredOffsets
from exactbatch.ledger.rows import Batch
from exactbatch.ledger.statements import columns, load_queries, read_row, read_rows
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.lineage_table import Part

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


class FoldedBatches(CoveredOffsets):
    """Folded batches: rows of exactbatch.batch without rows of batch_range."""

    def prunable(self, pipeline: Pipeline, before: datetime, *, after: int, limit: int) -> list[Prunable]:
        """Return the oldest batches above `after` that may be folded, the first `limit` of them.

        They committed, or were superseded and planned, before a time. Left out are batches that an asset event is
        still to announce, and those of an earlier topic of the same name.
        """
        rows = _QUERIES.prunable(
            self._connection, pipeline=pipeline.name, before=before, after=after, limit=limit
        )
        return read_rows(Prunable, rows)

    def planned_replays(self, pipeline: Pipeline) -> list[Batch]:
        """Return all replays that have not committed, oldest first."""
        return read_rows(Batch, _QUERIES.planned_replays(self._connection, pipeline=pipeline.name))

    def blocking_replays(self, pipeline: Pipeline, before: datetime) -> list[PlannedReplay]:
        """Return planned replays over results of batches from before a time, or of folded ones, oldest first."""
        rows = _QUERIES.blocking_replays(self._connection, pipeline=pipeline.name, before=before)
        return read_rows(PlannedReplay, rows)

    def planned_replay_over(self, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> PlannedReplay | None:
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

    def folded_batches(self, pipeline: Pipeline, batch_ids: Iterable[int]) -> set[int]:
        """Return those of the batches that belong to the pipeline and are folded."""
        rows = _QUERIES.folded_batches(self._connection, pipeline=pipeline.name, batch_ids=sorted(batch_ids))
        return {row.batch_id for row in rows}

    def mark_partly(self, batch_ids: Iterable[int]) -> None:
        """Record that the results of folded batches stand for a part of their offsets only: a replay retracts some."""
        _QUERIES.mark_partly(self._connection, batch_ids=sorted(batch_ids))

    def batches_of_rejects(self, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> dict[int, set[int]]:
        """Return the batches of the rejects in each range, by the position of the range."""
        rows = _QUERIES.batches_of_rejects(
            self._connection, pipeline=pipeline.name, **columns(ranges, *_RANGE)
        )
        found: dict[int, set[int]] = defaultdict(set)
        for row in rows:
            found[row.number].add(row.batch_id)
        return found

    def parts(
        self, cursor: Cursor, pipeline: Pipeline, ranges: Sequence[OffsetRange], covered: Sequence[Covered]
    ) -> list[Part]:
        """Return each range with the batches that its results come from, ascending; `covered` is its coverage.

        Where batches were folded, these are the folded batches of the pipeline that have rows or rejects in the range.
        With lineage="batch", rows do not tell: folded batches are left out.
        """
        parts: list[Part] = [*covered_parts(ranges, covered)]
        folded = Coverage(row for row in covered if row.kind == "pruned")
        positions = [position for position, range_ in enumerate(ranges) if folded.overlapping(range_)]
        if not positions or pipeline.sink.lineage == "batch":
            return parts
        over_folded = [ranges[position] for position in positions]
        with_rows = pipeline.sink.batches_in(cursor, over_folded)
        with_rejects = self.batches_of_rejects(pipeline, over_folded)
        found = [ids | with_rejects.get(number, set()) for number, ids in enumerate(with_rows)]
        known = self.folded_batches(pipeline, set().union(*found))
        for position, ids in zip(positions, found, strict=True):
            range_, named = parts[position]
            parts[position] = range_, tuple(sorted({*named, *(ids & known)}))
        return parts
