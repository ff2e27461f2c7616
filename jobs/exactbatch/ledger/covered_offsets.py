"""Read and change which batch's results stand for which offsets, and which offsets are beyond replay."""

from collections.abc import Sequence
from typing import Final, cast
from uuid import UUID

from exactbatch.coverage import Coverage
from exactbatch.ledger.batches import Batches
from exactbatch.ledger.row_types import Batch
from exactbatch.ledger.statements import Store, columns, load_queries, read_rows
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange, PartitionKey
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("covered_offsets")
_RANGE: Final = ("topic_id", "partition", "from_offset", "until_offset")
_COVERED: Final = ("topic", *_RANGE, "kind", "batch_id", "newest_batch_id")


class CoveredOffsets(Store):
    """The rows of exactbatch.coverage and replay_horizon."""

    def read_all(self, pipeline: Pipeline) -> list[Covered]:
        """Return the offsets that the pipeline accounts for, by topic, partition and offset: all of its history."""
        return read_rows(Covered, _QUERIES.coverage(self._connection, pipeline=pipeline.name))

    def read_batch(self, batch: Batch) -> list[Covered]:
        """Return the coverage of the batch's ranges, each row cut to a range."""
        return self.read(batch.pipeline, Batches(self._connection).read_ranges(batch.batch_id))

    def read(self, pipeline: str, ranges: Sequence[OffsetRange]) -> list[Covered]:
        """Return the coverage of ranges, each row cut to a range."""
        coverage = Coverage(self._overlapping(pipeline, ranges))
        return [part for range_ in ranges for part in coverage.cut(range_)]

    def read_touched(self, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> list[Covered]:
        """Return the rows that overlap ranges and all other rows of the batches that these name, in order."""
        touched = self._overlapping(pipeline.name, ranges)
        batch_ids = sorted({row.batch_id for row in touched if row.batch_id is not None})
        of_batches = _QUERIES.coverage_of_batches(
            self._connection, pipeline=pipeline.name, batch_ids=batch_ids
        )
        rows = {*touched, *read_rows(Covered, of_batches)}
        return sorted(rows, key=lambda row: (row.topic, row.topic_id, row.partition, row.from_offset))

    def find_results_outside(self, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> list[Covered]:
        """Return, for each partition, one row with results below the last of the ranges and outside of all.

        It is the first such row if that begins where the pipeline began, or below.
        """
        rows = _QUERIES.results_outside(self._connection, pipeline=pipeline.name, **columns(ranges, *_RANGE))
        return read_rows(Covered, rows)

    def _overlapping(self, pipeline: str, ranges: Sequence[OffsetRange]) -> list[Covered]:
        rows = _QUERIES.coverage_of_ranges(self._connection, pipeline=pipeline, **columns(ranges, *_RANGE))
        return read_rows(Covered, rows)

    def add(self, batch: Batch) -> None:
        """Let the batch's results stand for its ranges."""
        _QUERIES.add_coverage(self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id)

    def cut(self, batch: Batch) -> None:
        """Remove the batch's ranges from the coverage; other batches keep their other offsets."""
        rows = list(
            _QUERIES.delete_coverage(self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id)
        )
        # Restored only now: the database checks at once that no offset is covered twice.
        rest = Coverage(read_rows(Covered, rows)).without(
            Batches(self._connection).read_ranges(batch.batch_id)
        )
        _QUERIES.restore_coverage(self._connection, pipeline=batch.pipeline, **columns(rest, *_COVERED))

    def find_batches(self, pipeline: Pipeline, batch_ids: Sequence[int]) -> list[int]:
        """Return the batches whose results stand for any offset."""
        rows = _QUERIES.coverage_of_batches(
            self._connection, pipeline=pipeline.name, batch_ids=list(batch_ids)
        )
        return sorted({row.batch_id for row in rows})

    def find_overtaking(self, batch: Batch) -> int | None:
        """Return the newest of the later batches whose results stand for all offsets of an uncommitted replay.

        None if some of its offsets remain to be processed again, and for any other batch.
        """
        if batch.kind != "replay" or batch.status == "committed":
            return None
        overtaken_by = _QUERIES.overtaken_by(
            self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id
        )
        return cast("int | None", overtaken_by)

    def has_results(self, pipeline: Pipeline) -> bool:
        """True if the pipeline has committed any batch, or a range of one."""
        return bool(_QUERIES.has_results(self._connection, pipeline=pipeline.name))

    def read_first_offsets(self, pipeline: Pipeline) -> dict[tuple[UUID, int], int]:
        """Return the offset at which the pipeline began, by topic ID and partition; below it lies history."""
        rows = _QUERIES.first_advanced(self._connection, pipeline=pipeline.name)
        return {(row.topic_id, row.partition): row.from_offset for row in rows}

    def read_horizons(self, pipeline: Pipeline) -> dict[PartitionKey, int]:
        """Return the offset of each partition below which nothing can be replayed any more."""
        rows = _QUERIES.horizons(self._connection, pipeline=pipeline.name)
        return {(row.topic, row.partition, row.topic_id): row.offset for row in rows}

    def raise_horizon(self, pipeline: Pipeline, below: OffsetRange) -> None:
        """Allow no replay below the end of a range from now on; a horizon never moves back."""
        _QUERIES.raise_horizon(
            self._connection,
            pipeline=pipeline.name,
            topic=below.topic,
            topic_id=below.topic_id,
            partition=below.partition,
            offset=below.until_offset,
        )
