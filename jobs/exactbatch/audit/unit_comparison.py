"""Compares a unit of an audit: the records of some slices of the log with their rows and rejects."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from exactbatch.audit.audit_result import SHOWN, Compared, Differences, PartitionAudit
from exactbatch.audit.covering import Covering
from exactbatch.audit.located_rows import LocatedRows
from exactbatch.audit.log_windows import Block, LogWindows, SmallLogs
from exactbatch.audit.offset_sets import NONE, FoundInSlice, FoundOffsets, Positions, Rules, compare
from exactbatch.audit.rejected_records import RejectedRecords
from exactbatch.audit.routed_elsewhere import RoutedElsewhere
from exactbatch.audit.rowless import find_rowless
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.units import WINDOW, Slice, Unit, group_into_windows
from exactbatch.audit.values import ExpectedValues
from exactbatch.model import LogPartition
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.sinks.writer import SinkWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedLog:
    """What the workers of an audit know about the pipeline and its log.

    began       by partition, the offset at which the pipeline began: below it lies history, which only replays cover
    horizons    by partition, the offset below which `exactbatch compact` may have dropped changes
    compacted   the topics that Kafka compacts
    sharing     the names of the pipelines whose rows may be in the same table
    is_shared   other batches than those of the pipeline's topics may have rows in the table: those of `sharing`, or of
                an earlier log of a topic
    """

    pipeline: Pipeline
    writer: SinkWriter
    settings: Settings
    partitions: Mapping[TopicPartition, LogPartition]
    began: Mapping[TopicPartition, int]
    horizons: Mapping[TopicPartition, int]
    compacted: frozenset[str]
    cluster_id: str | None
    sharing: Sequence[str]
    is_shared: bool

    def rules(self, key: TopicPartition, earliest: int) -> Rules:
        """Return what decides whether an offset of a partition, whose log starts at `earliest`, may lack a row."""
        traits = self.writer.traits
        return Rules(
            began=self.began[key],
            earliest=earliest,
            horizon=self.horizons.get(key, 0),
            is_compacted=key[0] in self.compacted,
            has_row_per_record=traits.lineage == "record"
            and traits.keeps_every_row
            and self.pipeline.has_row_per_record,
        )

    @property
    def null_is_tombstone(self) -> bool:
        """True if a null value gives no row."""
        value, traits = self.pipeline.value, self.writer.traits
        return value.null_is_tombstone and not (value.tombstone_deletes and traits.keeps_deletes)


def compare_unit(
    audited: AuditedLog,
    unit: Unit,
    snapshot: Snapshot,
    expected: ExpectedValues | None,
    window: int = WINDOW,
    progress: Callable[[int], None] = lambda _offsets: None,
) -> Compared:
    """Compare a unit, and return what was found in each slice. `progress` receives the offsets of each window.

    With `expected`, values are compared as well; with lineage="batch" they are only collected there.
    """
    return _UnitComparison(audited, unit, snapshot, expected).run(window, progress)


class _UnitComparison:
    def __init__(
        self, audited: AuditedLog, unit: Unit, snapshot: Snapshot, expected: ExpectedValues | None
    ) -> None:
        self._audited, self._unit, self._expected = audited, unit, expected
        self._located = LocatedRows(
            snapshot,
            audited.pipeline,
            audited.writer.lineage_table,
            unit,
            audited.sharing,
            is_shared=audited.is_shared,
        )
        self._coverings = {slice_: self._located.covering(slice_) for slice_ in unit.slices}
        self._rowless = find_rowless(
            audited.pipeline.value, audited.settings.kafka, with_nulls=audited.null_is_tombstone
        )
        traits = audited.writer.traits
        self._elsewhere = (
            None
            if traits.route is None
            else RoutedElsewhere(audited.pipeline, traits, traits.route, audited.settings.kafka)
        )
        self._rejected = (
            None
            if expected is None
            else RejectedRecords(
                snapshot, audited.pipeline, audited.writer.traits, audited.settings.kafka, unit.topic_id
            )
        )
        self._notes: list[str] = []
        self._rows_of_batches: Counter[int] = Counter()
        self._earliest: dict[TopicPartition, int] = {}
        self._results = {
            slice_: PartitionAudit(unit.topic, slice_.partition, slice_.start, slice_.end)
            for slice_ in unit.slices
        }

    def run(self, window: int, progress: Callable[[int], None]) -> Compared:
        """Compare all slices, and return what was found in each."""
        for whole, result in self._results.items():
            covering = self._coverings[whole]
            result.lost = covering.count_lost(whole.start, whole.end)
            began = self._audited.began[self._unit.topic, whole.partition]
            result.gaps = _gaps(covering, max(whole.start, began), whole.end)
        for group in group_into_windows(self._unit.slices, window):
            if len(group) == 1:
                self._compare_by_windows(group[0], window, progress)
            else:
                self._compare_together(group)
                progress(sum(map(len, group)))
        return Compared(
            list(self._results.values()), self._rows_of_batches, self._earliest, self._notes[:SHOWN]
        )

    def _compare_by_windows(self, whole: Slice, window: int, progress: Callable[[int], None]) -> None:
        """Compare a slice window by window; skip offsets that neither the log nor the tables have."""
        rest: Slice | None = whole
        with closing(self._log(whole)) as log:
            while rest is not None:
                part, rest = rest.cut(rest.start + window) if len(rest) > window else (rest, None)
                found = self._found([part], [self._coverings[whole]]).in_slice(0)
                records = self._compare_with_log(part, whole, found, log)
                done = len(part)
                if rest is not None and records + found.rows + found.rejects == 0:
                    following = min(log.next_offset, whole.end)
                    following = self._located.first_from(whole.partition, rest.start, following)
                    done += following - rest.start
                    _, rest = rest.cut(following)
                progress(done)
            log.check_cluster()

    def _compare_together(self, group: Sequence[Slice]) -> None:
        """Compare several slices, whose rows one query reads, and as many of whose logs as are small, one consumer."""
        found = self._found(group, [self._coverings[slice_] for slice_ in group])
        audited, topic = self._audited, self._unit.topic
        partitions = {slice_: audited.partitions[topic, slice_.partition] for slice_ in group}
        small = SmallLogs(audited.settings.kafka, partitions, audited.cluster_id)
        for number, slice_ in enumerate(group):
            with closing(small.log(slice_) or self._log(slice_)) as log:
                self._compare_with_log(slice_, slice_, found.in_slice(number), log)
                log.check_cluster()

    def _found(self, slices: Sequence[Slice], coverings: Sequence[Covering]) -> FoundOffsets:
        found = FoundOffsets(Positions(slices), coverings, self._located.is_folded)
        for located in self._located.rows(slices):
            found.add("rows", *located)
        for located in self._located.rejects(slices):
            found.add("rejects", *located)
        self._rows_of_batches += found.rows_of_batches
        return found

    def _compare_with_log(self, part: Slice, whole: Slice, found: FoundInSlice, log: LogWindows) -> int:
        """Compare a part of a slice with the log, and return how many records the log has there."""
        covering, result = self._coverings[whole], self._results[whole]
        is_record, rowless, elsewhere = np.zeros(len(part), bool), [NONE], [NONE]
        for block in log.window(part.end):
            is_record[block.offsets - part.start] = True
            if self._audited.null_is_tombstone:
                rowless.append(block.nulls)
            if self._rowless is not None:
                is_found = found.is_found[block.offsets - part.start]
                rowless.append(self._rowless.among(block.offsets, block.records, is_found))
            if self._elsewhere is not None:
                elsewhere.append(self._elsewhere.among(block.offsets, block.records))
            if self._expected is not None:
                batches = covering.at(block.offsets)
                self._expected.add(self._unit.topic, part.partition, block.offsets, block.records, batches)
                self._compare_rejects(part, result, block, found)
                if self._expected.is_full:
                    result.changed.merge(self._expected.differing())
        if self._expected is not None:
            result.changed.merge(self._expected.differing())
        key = self._unit.topic, part.partition
        # Asked after the records were read: retention may have removed some of them since the audit began.
        self._earliest[key] = max(log.earliest, self._earliest.get(key, 0))
        rules = self._audited.rules(key, self._earliest[key])
        compare(
            result,
            part,
            is_record,
            np.concatenate(rowless),
            found,
            covering,
            rules,
            np.concatenate(elsewhere),
        )
        return int(np.count_nonzero(is_record))

    def _compare_rejects(
        self, part: Slice, result: PartitionAudit, block: Block, found: FoundInSlice
    ) -> None:
        """Compare the rejects at the offsets of a block with its records."""
        is_reject = found.is_reject[block.offsets - part.start]
        if self._rejected is None or not is_reject.any():
            return
        place = self._unit.topic, part.partition
        differing, notes = self._rejected.differing(place, block.offsets, block.records, is_reject)
        result.changed.merge(differing)
        self._notes += notes

    def _log(self, slice_: Slice) -> LogWindows:
        audited, key = self._audited, (self._unit.topic, slice_.partition)
        return LogWindows.open(
            audited.settings.kafka,
            audited.partitions[key],
            slice_.start,
            slice_.end,
            audited.cluster_id,
        )


def _gaps(covering: Covering, start: int, end: int) -> Differences:
    gaps = Differences()
    for low, high in covering.find_uncovered(start, end):
        gaps.merge(Differences(high - low, list(range(low, min(high, low + SHOWN)))))
    return gaps
