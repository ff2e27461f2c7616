"""Publish: results, rejects, coverage and the new offsets, in one transaction; and the clock of a launch's stages."""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from exactbatch.batch.publishing.fences import check_publishable, check_topic_ids, lock_target
from exactbatch.batch.publishing.insert_rows import check_staged, insert_rows
from exactbatch.batch.publishing.outbox import noting
from exactbatch.batch.staging.staged_splits import publish_partition
from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import Fenced, StagedRowsDiffer, TargetMismatch
from exactbatch.failpoints import failpoint
from exactbatch.ledger import Batch, Ledger, find_parts, target_transaction
from exactbatch.model import Covered, Fingerprint
from exactbatch.offsets import OffsetRange, merge
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.catalog import Fact
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks.capabilities import AttachesPartitions, PartitionStaging
from exactbatch.sinks.staged_rows import Part, Place
from exactbatch.sinks.writer import SinkWriter

_FEWEST_REFUSED: Final = 100  # records that a search looks for, so that an error shows them
_MOST_REFUSED: Final = 50_000  # records that an error holds; a later search finds others


class StageTimes:
    """A clock for the stages of one launch: each stage lasts until the next one begins.

    Stages that are entered several times are added up. `clock` returns seconds.
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stage, self._since = clock, first, clock()
        self._seconds: dict[str, float] = {}

    def enter(self, stage: str) -> None:
        """End the current stage, and begin another."""
        now = self._clock()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def milliseconds(self) -> dict[str, int]:
        """Return the milliseconds of each stage so far, including the current one, in the order of their beginning."""
        self.enter(self._stage)
        return {stage: round(seconds * 1000) for stage, seconds in self._seconds.items()}


@dataclass(frozen=True, slots=True)
class Published:
    """How a publish ended. `wrote` is False when the batch had been committed before."""

    batch: Batch
    wrote: bool

    def __str__(self) -> str:
        if not self.wrote:
            return f"batch {self.batch.batch_id} was committed before: nothing written"
        replaced = f", {self.batch.replaced} with replaced text" if self.batch.replaced else ""
        return (
            f"batch {self.batch.batch_id} committed: {self.batch.records} records, {self.batch.rows} rows, "
            f"{self.batch.rejected} rejected, {self.batch.tombstones} tombstones, {self.batch.dropped} dropped"
            f"{replaced}"
        )


def publish(
    connection: Connection,
    pipeline: Pipeline,
    writer: SinkWriter,
    *,
    plan_id: UUID,
    tables: StagingTables,
    columns: Sequence[Column],
    staged: StagedBatch,
    topic_ids: Mapping[str, UUID],
    seen: Sequence[Fact],
    staging: PartitionStaging | None = None,
    times: StageTimes | None = None,
    fingerprints: Sequence[Fingerprint] = (),
    repeats: frozenset[Place] = frozenset(),
    may_reject: int = 0,
) -> Published:
    """Commit a staged batch, all of it or nothing.

    `writer` has the epochs of positions. `plan_id` is the plan whose ranges were staged. `columns` are those of a
    row without its lineage. `staged` is what the task attempts that Spark accepted have staged. `topic_ids` are the
    topics' ids that the broker returned after the last record was read. `fingerprints` are records at the ends of
    the ranges. `seen` is what read_sink_facts() returned before rows were checked against the target. `staging` is
    the table that becomes a part of the target, if rows were not staged to be inserted. `times` is the clock of the
    launch, whose stages are recorded with the batch. `repeats` are staged records that are known to repeat earlier
    ones of their partitions. If the target refuses rows, the error names one record more than `may_reject`, or all
    of them.

    Raises Fenced when another batch took this one's place, BatchLost when the ledger went back to before its
    plan, ReplayRefused below a horizon, TopicRecreated, StagedRowsDiffer, TargetMismatch when the target refuses rows,
    ChangesBehind when positions may have gone back, and PostgresUnavailable, after which the outcome is unknown here
    but recorded in the ledger.
    """
    if times is not None:
        times.enter("publish")
    ledger = Ledger(connection)
    with target_transaction(connection, pipeline) as cursor:
        let_search(cursor, may_reject)
        failpoint("publish.before_lock")
        ledger.registry.lock(pipeline)
        batch = ledger.batches.read(tables.batch_id, plan_id, lock="change")
        check_publishable(ledger, pipeline, batch)
        if batch.status == "committed":
            return Published(batch, wrote=False)
        ranges = ledger.batches.read_ranges(batch.batch_id)
        check_topic_ids(ranges, topic_ids)
        _check_complete(batch, ranges, staged.splits)
        lock_target(cursor, writer, seen)
        with noting(cursor, pipeline, writer, columns) as outbox:
            replaced: Sequence[Part] = ()
            dropped: Sequence[int] = ()
            if batch.kind == "advance":
                _advance(ledger, pipeline, batch, ranges)
                ledger.fingerprints.add(pipeline.name, fingerprints)
                failpoint("publish.after_advance")
            else:
                replaced, dropped = retract(cursor, ledger, pipeline, writer, batch, ranges)
                failpoint("publish.after_retract")
            check_staged(cursor, tables.batch_id, tables.rejects, {**staged.rejects, INTACT: 1})
            if staging is not None:
                rows = publish_partition(cursor, tables, staging, staged)
            else:
                rows = insert_rows(cursor, writer, tables, staged, columns, repeats, replaced)
            if dropped and isinstance(writer, AttachesPartitions):
                writer.drop_batches(cursor, dropped)
        if outbox is not None:
            outbox.write(batch)
        rejected = ledger.rejects.insert(batch, identifier(tables.rejects), staged.attempts)
        _check_inserted(pipeline, batch, staged, rows=rows, rejected=rejected)
        failpoint("publish.after_insert")
        ledger.coverage.add(batch)
        _check_covered(ledger, batch, ranges)
        ledger.batches.mark_committed(
            batch,
            rows=rows,
            rejected=rejected,
            tombstones=staged.tombstones,
            dropped=staged.dropped,
            replaced=staged.replaced,
            records=_count_records(ranges, staged.splits),
            stages=times.milliseconds() if times is not None else {},
        )
        failpoint("publish.before_commit")
    failpoint("publish.after_commit")
    with transaction(connection):
        return Published(ledger.batches.read(tables.batch_id, plan_id), wrote=True)


def let_search(cursor: Cursor, may_reject: int) -> None:
    """Tell what writes rows how to search for those that the target refuses, and how many records may be rejected."""
    cursor.most_refused = min(max(may_reject + 1, _FEWEST_REFUSED), _MOST_REFUSED)
    cursor.searches_again = may_reject > 0


def _advance(ledger: Ledger, pipeline: Pipeline, batch: Batch, ranges: Sequence[OffsetRange]) -> None:
    """Move the stored offsets to the ends of the ranges. Raises Fenced unless each was at the start of its
    range."""
    moved = ledger.plans.advance_stored_offsets(batch)
    stored = {row.topic_partition: row.next_offset for row in ledger.plans.read_stored_offsets(pipeline)}
    for range_ in ranges:
        if range_.topic_partition not in moved:
            raise Fenced(
                f"batch {batch.batch_id}, {range_}: the stored offset is {stored.get(range_.topic_partition)}, not "
                f"{range_.from_offset} as planned: another batch has moved it. Nothing was written; plan again.",
                batch_id=batch.batch_id,
                **range_.place,
            )


def retract(
    cursor: Cursor,
    ledger: Ledger,
    pipeline: Pipeline,
    writer: SinkWriter,
    batch: Batch,
    ranges: Sequence[OffsetRange],
) -> tuple[Sequence[Part], Sequence[int]]:
    """Remove the earlier results of the ranges: rows, rejects and coverage.

    Returns the ranges with the batches that had written for them, and the batches that have no results left, and whose
    rows the sink has yet to drop.
    """
    covered = ledger.coverage.read_batch(batch)
    _check_not_pruned(pipeline, batch, covered)
    parts = find_parts(cursor, pipeline, ranges, covered)
    if any(row.kind == "pruned" for row in covered):
        ledger.batches.mark_partly({batch_id for _, batch_ids in parts for batch_id in batch_ids})
    replaced = sorted({row.batch_id for row in covered if row.batch_id is not None})
    writer.check_replay(cursor)
    ledger.rejects.delete(pipeline, parts)
    ledger.coverage.cut(batch)
    remaining = ledger.coverage.find_batches(pipeline, replaced)
    dropped: Sequence[int] = ()
    # Rows that go with their partition could not be noted as retracted.
    if isinstance(writer, AttachesPartitions) and pipeline.forward is None:
        dropped = sorted({*replaced} - {*remaining})
        parts = [(range_, tuple(each for each in ids if each not in dropped)) for range_, ids in parts]
    writer.retract(cursor, parts)
    if pipeline.traits.lineage == "batch" and remaining:
        raise Fenced(
            f"batch {batch.batch_id} of pipeline {batch.pipeline!r} was planned to replace whole batches, "
            f"but batch {remaining[0]} has results beyond this replay's ranges: another replay has "
            f"committed since this one was planned. Nothing was written; plan the replay again.",
            batch_id=batch.batch_id,
        )
    return parts, dropped


def _check_not_pruned(pipeline: Pipeline, batch: Batch, covered: Sequence[Covered]) -> None:
    """Raise Fenced if whole batches were to be replaced, and some of them were folded since: it is not known which."""
    for row in covered:
        if row.kind == "pruned" and pipeline.traits.lineage == "batch":
            raise Fenced(
                f"batch {batch.batch_id} of pipeline {batch.pipeline!r} was planned to replace whole batches, but "
                f"exactbatch prune has folded those of {row.topic}[{row.partition}] {row.from_offset}.."
                f"{row.until_offset} since. Nothing was written, and the previous results stay.",
                batch_id=batch.batch_id,
                topic=row.topic,
                partition=row.partition,
                from_offset=row.from_offset,
                until_offset=row.until_offset,
            )


def _check_covered(ledger: Ledger, batch: Batch, ranges: Sequence[OffsetRange]) -> None:
    """Raise TargetMismatch unless the coverage is what was written: a trigger or a policy on the ledger's own
    tables may alter a row as well."""
    covered = {
        (row.topic, row.partition, row.from_offset, row.until_offset, row.batch_id)
        for row in ledger.coverage.read_batch(batch)
    }
    expected = {
        (range_.topic, range_.partition, range_.from_offset, range_.until_offset, batch.batch_id)
        for range_ in ranges
    }
    if covered != expected:
        raise TargetMismatch(
            f"batch {batch.batch_id}: exactbatch.coverage does not hold what was written into it: a trigger, a "
            f"rule or a policy on the ledger's tables alters it. Nothing was written. Drop that "
            f"trigger, rule or policy.",
            batch_id=batch.batch_id,
        )


def _check_inserted(
    pipeline: Pipeline, batch: Batch, staged: StagedBatch, *, rows: int, rejected: int
) -> None:
    """Raise TargetMismatch unless as many rows arrived as were staged: a trigger or rule may discard some."""
    expected = sum(staged.rows.values()), staged.rejected
    if (rows, rejected) != expected:
        raise TargetMismatch(
            f"target {pipeline.traits.target}: {expected[0]} rows and {expected[1]} rejected records were staged, but "
            f"{rows} and {rejected} arrived. Nothing was written. Does a trigger or a rule discard "
            f"rows? Remove it: rows that are not in the target cannot be accounted for.",
            batch_id=batch.batch_id,
        )


def _check_complete(batch: Batch, ranges: Sequence[OffsetRange], staged: Sequence[Staged]) -> None:
    """Raise StagedRowsDiffer unless the splits that the tasks read add up to the ranges of the batch."""
    splits = merge(split.range for split in staged)
    if splits != merge(ranges):
        raise StagedRowsDiffer(
            f"batch {batch.batch_id}: the tasks read {', '.join(map(str, splits)) or 'nothing'}, but the batch has "
            f"the ranges {', '.join(map(str, ranges))}. Nothing was written; try again.",
            batch_id=batch.batch_id,
        )


def _count_records(ranges: Sequence[OffsetRange], staged: Sequence[Staged]) -> list[tuple[OffsetRange, int]]:
    """Return how many records the splits of each range had."""
    in_order = sorted(ranges, key=_start)
    starts = [_start(range_) for range_ in in_order]
    records = [0] * len(in_order)
    for split in staged:
        records[bisect_right(starts, _start(split.range)) - 1] += split.records
    return list(zip(in_order, records, strict=True))


def _start(range_: OffsetRange) -> tuple[str, int, int]:
    return range_.topic, range_.partition, range_.from_offset
