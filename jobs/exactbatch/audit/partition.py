"""Compares one partition: records of the log, rows and rejects, offset by offset."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import numpy as np
from psycopg2 import sql

from exactbatch.audit.log_windows import LogWindows
from exactbatch.audit.report import SHOWN, Offsets, PartitionAudit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.values import ExpectedValues
from exactbatch.model import Covered, LogPartition
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings

_WINDOW: Final = 200_000  # offsets that are compared at a time
# Instead of all offsets that a query returns, the first SHOWN of them and their number.
_FIRST: Final = "select q.o, count(*) over () from ({}) q (o, batch_id) order by 1 limit 10"
_NEXT: Final = "select q.o, 1::bigint from ({}) q (o, batch_id) order by 1 limit 1"


class PartitionComparison:
    """The comparison of one partition."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        snapshot: Snapshot,
        partition: LogPartition,
        coverage: list[Covered],
        head: int,
        began: int | None,
        horizon: int,
        *,
        compacted: bool,
        expected: ExpectedValues | None,
        cluster_id: str | None,
    ) -> None:
        self._cluster_id = cluster_id
        self._pipeline, self._settings, self._snapshot = pipeline, settings, snapshot
        self._partition, self._coverage, self._compacted = partition, coverage, compacted
        self._horizon, self._expected = horizon, expected
        self._starts = [covered.from_offset for covered in coverage]
        # Offsets below where the pipeline began are history, which only replays may cover.
        self._began = head if began is None else began
        first = min(self._began, coverage[0].from_offset) if coverage else self._began
        self.result = PartitionAudit(partition.topic, partition.partition, first, head)

    @property
    def span(self) -> int:
        """The number of offsets to compare."""
        return self.result.until_offset - self.result.from_offset

    def run(self, sharing: Sequence[str]) -> Iterator[int]:
        """Compare window by window; yield the number of offsets of each.

        `sharing` are the names of the pipelines whose rows may be in the same table.
        """
        self._sharing = sharing
        begin, head = self.result.from_offset, self.result.until_offset
        self._outside(begin, head)
        self._gaps(begin, head)
        log = LogWindows(
            self._settings.kafka,
            self._partition,
            begin,
            head,
            self._expected,
            self._covering,
            self._cluster_id,
        )
        with closing(log):
            start = begin
            while start < head:
                end = min(start + _WINDOW, head)
                if self._compare(start, end, *log.window(end)) == 0:
                    end = self._end_of_gap(end, min(log.next_offset, head))
                if self._expected is not None and self._pipeline.sink.lineage == "record":
                    first, count = self._expected.differing()
                    self.result.changed.add(np.array(first, np.int64))
                    self.result.changed.count += count - len(first)
                yield end - start
                start = end
            log.check_cluster()

    def _end_of_gap(self, start: int, record: int) -> int:
        """Return the offset of the next record, row or reject from `start` on; `record` is the log's next record.

        The offsets in between can only be recorded as lost, and are counted here.
        """
        for query in (self._rows, self._rejects):
            offsets, _ = query(start, record, _NEXT)
            record = int(offsets[0]) if len(offsets) else record
        self.result.lost += self._lost(start, record)
        return record

    def _outside(self, begin: int, head: int) -> None:
        """Find rows and rejects below where the pipeline began, and at or past its stored offset."""
        for low, high in ((0, begin), (head, np.iinfo(np.int64).max)):
            for query in (self._rows, self._rejects):
                offsets, counts = query(low, high, _FIRST)
                self.result.unexpected.add(offsets)
                self.result.unexpected.count += int(counts[0]) - len(offsets) if len(counts) else 0

    def _gaps(self, begin: int, head: int) -> None:
        """Find gaps in the coverage from where the pipeline began to its stored offset."""
        ends = [
            max(self._began, end) for end in (begin, *(covered.until_offset for covered in self._coverage))
        ]
        for end, start in zip(ends, [*self._starts, head], strict=True):
            if end < start:
                self.result.gaps.count += start - end
                self.result.gaps.first += range(end, min(start, end + SHOWN - len(self.result.gaps.first)))

    def _compare(self, start: int, end: int, records: Offsets, nulls: Offsets) -> int:
        """Compare the offsets of a window; return how many records, rows and rejects it has."""
        result, earliest = self.result, max(start, min(self._partition.earliest, end))
        rows, row_batches = self._rows(start, end)
        rejects, reject_batches = self._rejects(start, end)
        held = len(records) + len(rows) + len(rejects)
        tombstones = np.setdiff1d(nulls, np.union1d(rows, rejects))
        expected = np.setdiff1d(records, tombstones) if self._keeps_no_null else records
        records = self._without_history(records)
        expected = self._without_history(expected)
        lost = self._lost(start, end)
        found = np.concatenate([rows, rejects])
        batches = np.concatenate([row_batches, reject_batches])
        accounted, counts = np.unique(found, return_counts=True)
        # Below the log's start, and in the holes that compaction leaves, the log proves nothing.
        unprovable = accounted[accounted < earliest]
        if self._compacted:
            unprovable = np.union1d(unprovable, np.setdiff1d(accounted, records))
        misplaced = found[batches != self._covering(found)]
        result.records += len(records)
        result.rows += len(rows)
        result.rejected += len(rejects)
        result.tombstones += len(records) - len(expected)
        result.lost += lost
        result.removed += len(unprovable)
        if self._has_a_row_per_record:
            absent = self._not_lost(np.setdiff1d(expected, accounted))
            below = (absent < self._horizon) & (self._covering(absent) >= 0)
            result.compacted += int(below.sum())
            result.missing.add(absent[~below])
            result.duplicated.add(accounted[counts > 1])
        foreign = np.setdiff1d(np.setdiff1d(accounted, records), unprovable)
        result.unexpected.add(np.union1d(foreign, misplaced))
        return held

    def _without_history(self, offsets: Offsets) -> Offsets:
        """Return the offsets without those below where the pipeline began that no replay has covered."""
        kept: Offsets = offsets[(offsets >= self._began) | (self._covering(offsets) >= 0)]
        return kept

    @property
    def _has_a_row_per_record(self) -> bool:
        """True if each record has one row, unless it is a reject or a tombstone."""
        return self._pipeline.sink.lineage == "record" and not self._pipeline.is_transformed

    @property
    def _keeps_no_null(self) -> bool:
        """True if a null value is a tombstone, which has no row."""
        value = self._pipeline.value
        return value.null_is_tombstone and not (value.tombstone_deletes and self._pipeline.sink.keeps_deletes)

    def _rows(self, start: int, end: int, form: str = "{}") -> tuple[Offsets, Offsets]:
        """Return offset and batch of the rows; none if rows do not carry offsets.

        Without rows that another pipeline with this target may have written, and those of an earlier incarnation of
        the topic."""
        if self._pipeline.sink.lineage == "batch":
            return np.array([], np.int64), np.array([], np.int64)
        query = sql.SQL(
            "select t.kafka_offset, coalesce(t.batch_id, -1) from {} t "
            "where t.kafka_topic = $1 and t.kafka_partition = $2 and t.kafka_offset >= $3 "
            "and t.kafka_offset < $4 and not exists ("
            "select from exactbatch.batch b join exactbatch.batch_range r on r.batch_id = b.batch_id "
            "and r.topic = $1 and r.partition = $2 where b.batch_id = t.batch_id "
            "and t.kafka_offset >= r.from_offset and t.kafka_offset < r.until_offset "
            "and (b.pipeline = any({}::text[]) or b.pipeline = $5 and r.topic_id <> $6::uuid))"
        ).format(self._pipeline.sink.lineage_table.in_snapshot, sql.Literal(list(self._sharing)))
        identity = (self._pipeline.name, str(self._partition.topic_id))
        return self._fetch(
            query, form, self._partition.topic, self._partition.partition, start, end, *identity
        )

    def _rejects(self, start: int, end: int, form: str = "{}") -> tuple[Offsets, Offsets]:
        """Return offset and batch of the records that this pipeline rejected in this incarnation of the topic."""
        query = sql.SQL(
            'select "offset", batch_id from exactbatch.rejected_record where pipeline = $1 '
            'and topic_id = $2::uuid and partition = $3 and "offset" >= $4 and "offset" < $5'
        )
        identity = (self._pipeline.name, str(self._partition.topic_id))
        return self._fetch(query, form, *identity, self._partition.partition, start, end)

    def _fetch(self, query: sql.Composable, form: str, *parameters: object) -> tuple[Offsets, Offsets]:
        table = self._snapshot.table(sql.SQL(form).format(query), *parameters)
        return table.column(0).to_numpy(), table.column(1).to_numpy()

    def _covering(self, offsets: Offsets) -> Offsets:
        """Return the batch that covers each offset; -2 if none does."""
        if not self._coverage:
            return np.full(len(offsets), -2)
        index = np.searchsorted(self._starts, offsets, side="right") - 1
        ends = np.array([row.until_offset for row in self._coverage])
        batches = np.array([row.batch_id or -2 for row in self._coverage])
        is_covered = (index >= 0) & (offsets < ends[index])
        covered: Offsets = np.asarray(np.where(is_covered, batches[index], -2), np.int64)
        return covered

    def _lost(self, start: int, end: int) -> int:
        return sum(
            max(0, min(end, row.until_offset) - max(start, row.from_offset))
            for row in self._coverage
            if row.kind == "loss"
        )

    def _not_lost(self, offsets: Offsets) -> Offsets:
        if not self._coverage:
            return offsets
        lost = np.array([self._is_lost(int(offset)) for offset in offsets], bool)
        kept: Offsets = offsets[~lost]
        return kept

    def _is_lost(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        covered = self._coverage[index] if index >= 0 else None
        return covered is not None and covered.kind == "loss" and offset < covered.until_offset
