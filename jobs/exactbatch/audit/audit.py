"""Does the target hold exactly what the log holds? The log is read again and compared, offset by offset.

The auditor shares no code with the way of a batch: it has a reader of its own, and believes the ledger only
in what it claims to cover. It works through windows of offsets, so its memory does not grow with the log.
"""

import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg2 import sql

from exactbatch.audit.access import check_visible, unsafe_tables
from exactbatch.audit.derived import stale_aggregates, stale_rows
from exactbatch.audit.places import Places, find_places, pipeline_counts_batches, sharing_pipelines
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors import ReadFailed
from exactbatch.errors.translation import own_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client import (
    FetchPosition,
    HeldBack,
    check_in_log,
    concerns_reading,
    event_error,
    is_cluster,
    reader_properties,
)
from exactbatch.ledger import Ledger, check_schema
from exactbatch.model import Covered, LogPartition
from exactbatch.offsets import Log
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection, connect_arrow
from exactbatch.postgres.connection import Connection, Cursor, connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks import Aggregate, Upsert

# Of the changes or rows of a batch, how many records they come from.
_RECORDS: Final = "count(distinct (kafka_topic, kafka_partition, kafka_offset))"
# What is left of each batch, and what it was planned for.
_LEFT: Final = """
left join (
    select batch_id, sum(upper(offsets) - lower(offsets)) as covered
    from exactbatch.coverage where pipeline = $1 group by batch_id
) l using (batch_id)
left join (
    select r.batch_id, sum(r.until_offset - r.from_offset) as span,
           bool_or(r.from_offset < h."offset") as is_compacted
    from exactbatch.batch_range r
    left join exactbatch.replay_horizon h on h.pipeline = $1 and h.topic_id = r.topic_id
        and h.partition = r.partition
    where r.batch_id in (select batch_id from exactbatch.batch where pipeline = $1)
    group by r.batch_id
) p using (batch_id)
"""
# A batch that is not cut by a replay, and whose changes were not compacted; or one that stands for nothing.
_WHOLE: Final = "and coalesce(l.covered, p.span) = p.span and p.is_compacted is not true"
Offsets = npt.NDArray[np.int64]

_WINDOW: Final = 200_000  # offsets that are compared at a time
# Messages that are asked for at a time: fewer where their values are held until they are decoded.
_MESSAGES: Final = 10_000
_DECODED: Final = 1_000
_SHOWN: Final = 10  # offsets that a finding names
# Instead of all offsets that a query finds, the first _SHOWN of them and how many there are.
_FIRST: Final = "select q.o, count(*) over () from ({}) q (o, batch_id) order by 1 limit 10"
_NEXT: Final = "select q.o, 1::bigint from ({}) q (o, batch_id) order by 1 limit 1"


@dataclass(slots=True)
class Finding:
    """Offsets at which log and target differ: how many, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, offsets: Offsets) -> None:
        """Count these offsets, and remember the first."""
        self.count += len(offsets)
        self.first.extend(int(each) for each in offsets[: _SHOWN - len(self.first)])


@dataclass(slots=True)
class PartitionAudit:
    """One partition, from where the pipeline began to its stored offset.

    records       committed records in the log
    rows          rows in the target; with `rejected` records, `tombstones` and what is `compacted` they make
                  up `records`
    lost          offsets that the ledger records as lost before they were processed
    compacted     records below the replay horizon that have neither row nor reject: exactbatch compact drops
                  such changes, so that nothing proves or disproves them
    removed       accounted offsets that the log no longer holds, so that nothing proves or disproves them
    missing       records that no row and no reject accounts for
    duplicated    offsets with more than one row or reject
    unexpected    rows or rejects without a record, in a lost or uncovered offset, or of another batch than
                  the one that covers their offset
    changed       rows whose values are not those of their record, or partial results that are not what the
                  records make: their number, in the first partition; looked for with `values` only
    stale         rows of a target that is derived from changes or partial results that are not what these
                  say: their number, in the first partition
    gaps          offsets, from where the pipeline began to the stored one, that the ledger accounts for
                  neither as processed nor as lost
    misplaced     rows, rejects and event times that claim a topic, partition or offset at which no batch of theirs
                  can have put them, or a batch that has not written to this target: their number, in the first
                  partition
    miscounted    batches that have another number of rows or rejects than when they were committed: their
                  number, in the first partition
    contradictory statements of the ledger that contradict each other: their number, in the first partition
    doubled       offsets whose results another pipeline has in the same target, too, although neither is
                  registered with --share-topics: their number, in the first partition
    unsafe        tables that can lose committed rows, or commit without their transaction: unlogged and foreign
                  ones; their number, in the first partition
    not_ours      rows of the target that exactbatch has not written, since they name no batch and none of the
                  pipeline's topics: no finding, and told in the first partition
    notes         the first of what these count, in words; in the first partition

    With lineage="batch" rows do not tell their offsets: their numbers are compared batch by batch, and a
    difference is told at the first offset that the batch covers. So it is with a transform, which may give
    any number of rows for a record.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    records: int = 0
    rows: int = 0
    rejected: int = 0
    tombstones: int = 0
    lost: int = 0
    removed: int = 0
    compacted: int = 0
    missing: Finding = field(default_factory=Finding)
    duplicated: Finding = field(default_factory=Finding)
    unexpected: Finding = field(default_factory=Finding)
    changed: Finding = field(default_factory=Finding)
    stale: Finding = field(default_factory=Finding)
    gaps: Finding = field(default_factory=Finding)
    misplaced: Finding = field(default_factory=Finding)
    miscounted: Finding = field(default_factory=Finding)
    contradictory: Finding = field(default_factory=Finding)
    doubled: Finding = field(default_factory=Finding)
    unsafe: Finding = field(default_factory=Finding)
    not_ours: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def findings(self) -> dict[str, Finding]:
        """All kinds of differences there are, by their names."""
        return {
            "missing": self.missing,
            "duplicated": self.duplicated,
            "unexpected": self.unexpected,
            "changed": self.changed,
            "stale": self.stale,
            "gaps": self.gaps,
            "misplaced": self.misplaced,
            "miscounted": self.miscounted,
            "contradictory": self.contradictory,
            "doubled": self.doubled,
            "unsafe": self.unsafe,
        }

    @property
    def is_exact(self) -> bool:
        """Every record is accounted for once, and nothing else is there."""
        return not any(each.count for each in self.findings.values())


@own_errors()
def audit(
    pipeline: Pipeline,
    settings: Settings,
    *,
    values: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[PartitionAudit]:
    """Compare log and target of a pipeline, partition by partition.

    Ledger and target are read in one snapshot, so batches may commit meanwhile. With `values`, the records
    are decoded, too, and rows compared with what they say; partial results are computed again. `progress` is
    told how many offsets are done, of how many.

    Raises ConfigurationError where values cannot be compared, KafkaUnavailable, PostgresUnavailable,
    NotRegistered, TopicMissing, ReadFailed, TargetMismatch where there is no target, and TopicRecreated or
    PartitionGone where the log that was processed is not there to compare with.
    """
    connection = connect(settings.postgres, application="exactbatch audit")
    try:
        check_schema(connection)
        kafka = KafkaBroker(settings.kafka)
        with connect_arrow(
            settings.postgres, application="exactbatch audit", read_only=True
        ) as results_connection:
            with transaction(connection) as cursor:
                cursor.execute("set transaction isolation level repeatable read")
                ledger = Ledger(connection)
                ledger.check_registered(pipeline, may_double=True)  # what is there twice is a finding
                coverage, stored = ledger.coverage(pipeline), ledger.stored_offsets(pipeline)
                began = ledger.first_advanced(pipeline)
                horizons = ledger.horizons(pipeline)
                check_visible(cursor, pipeline, values=values)
                unsafe = unsafe_tables(cursor, pipeline)
                _share_snapshot(cursor, results_connection)
            # The log is asked after the ledger: it holds every stored offset that was seen.
            partitions = kafka.processed_partitions(pipeline.topics, stored)
            heads = {(each.topic, each.partition): each.next_offset for each in stored}
            _, cluster_id = kafka.cluster(pipeline.topics)
            compacted = kafka.compacted(pipeline.topics)
            expected = (
                ExpectedValues(results_connection, connection, pipeline, settings.kafka) if values else None
            )
            by_log: dict[Log, list[Covered]] = defaultdict(list)
            for covered in coverage:
                by_log[covered.log].append(covered)
            reads = [
                _Audit(
                    pipeline,
                    settings,
                    connection,
                    each,
                    by_log[each.topic, each.partition, each.topic_id],
                    heads.get((each.topic, each.partition), 0),
                    began.get((each.topic_id, each.partition)),
                    horizons.get((each.topic, each.partition, each.topic_id), 0),
                    compacted=each.topic in compacted,
                    expected=expected,
                    cluster_id=cluster_id,
                )
                for each in partitions
                # Whatever was processed has a stored offset, unless somebody has deleted it.
                if (each.topic, each.partition) in heads or (each.topic_id, each.partition) in began
            ]
            sharing = sharing_pipelines(results_connection, pipeline)
            total, done = sum(read.span for read in reads), 0
            results = []
            for read in reads:
                for span in read.run(results_connection, sharing):
                    done += span
                    progress(done, total)
                results.append(read.result)
            if results:
                audited = [(each.topic, each.partition) for each in results]
                _note(results[0], find_places(results_connection, connection, pipeline, audited), unsafe)
            if pipeline_counts_batches(pipeline):
                _compare_batches(results_connection, connection, pipeline, coverage, results)
            if isinstance(pipeline.sink, Upsert) and results:
                results[0].stale.count = stale_rows(results_connection, connection, pipeline)
            if isinstance(pipeline.sink, Aggregate) and results:
                results[0].stale.count = stale_aggregates(results_connection, connection, pipeline)
                if expected is not None:
                    whole = _whole_batches(coverage, partitions, compacted)
                    results[0].changed.count = expected.differing_partials(whole)
        return results
    finally:
        connection.close()


def _note(first: PartitionAudit, places: Places, unsafe: Sequence[str]) -> None:
    first.not_ours = places.not_ours
    first.misplaced.count = places.misplaced
    first.miscounted.count = places.miscounted
    first.contradictory.count = places.contradictory
    first.doubled.count = places.doubled
    first.unsafe.count = len(unsafe)
    first.notes = [*places.notes, *unsafe]


def _whole_batches(
    coverage: Sequence[Covered], partitions: Sequence[LogPartition], compacted: Set[str]
) -> list[int]:
    """The batches all of whose records the log still holds."""
    earliest = {(each.topic, each.partition): each.earliest for each in partitions}
    cut = {
        each.batch_id
        for each in coverage
        if each.topic in compacted or each.from_offset < earliest.get((each.topic, each.partition), math.inf)
    }
    return sorted({each.batch_id for each in coverage if each.batch_id is not None} - cut)


def _share_snapshot(cursor: Cursor, results: ArrowConnection) -> None:
    """Let the connection that reads the results see what this transaction sees, for as long as it lasts."""
    cursor.execute("select pg_export_snapshot()")
    (snapshot,) = cursor.fetchone()
    with results.cursor() as other:
        other.execute("set transaction isolation level repeatable read")
        statement = sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot))
        other.execute(statement.as_string(cursor))


def _compare_batches(
    results: ArrowConnection,
    connection: Connection,
    pipeline: Pipeline,
    coverage: Sequence[Covered],
    found: list[PartitionAudit],
) -> None:
    """Where an offset may have any number of rows, compare their number batch by batch.

    A batch that stands for any offset has as many rows as it had when it was committed, and any other batch
    has none. A difference is told at the first offset that the batch covers.

    Where a transform drops records, rows of some offsets are taken back by replays, and of a batch that was cut
    nobody knows how many rows the rest has: the batches that are whole are compared, and those that are none.
    """
    by_record = pipeline.sink.lineage == "record"
    with results.cursor() as cursor:
        cursor.execute(counts_of_batches(pipeline).as_string(connection), (pipeline.name,))
        batches = cursor.fetchall()
    partitions = {(each.topic, each.partition): each for each in found}
    first = {each.batch_id: each for each in reversed(coverage)}
    for batch_id, expected, rows, expected_records, records in batches:
        covered = first.get(batch_id)
        # A batch may cover partitions of a topic that was taken out of the pipeline.
        where = found[0] if covered is None else partitions.get((covered.topic, covered.partition), found[0])
        at = np.array([] if covered is None else [covered.from_offset], np.int64)
        where.rows += 0 if by_record else rows
        for finding, count in (
            (where.missing, max(expected - rows, expected_records - records)),
            (where.unexpected, max(rows - expected, records - expected_records)),
        ):
            if count > 0:
                finding.add(at)
                finding.count += count - len(at)


def counts_of_batches(pipeline: Pipeline) -> sql.Composable:
    """Of each batch that is compared: its number, how many rows it should have and has, and how many records these
    come from."""
    by_record = pipeline.sink.lineage == "record"
    return sql.SQL(
        "select b.batch_id, case when c.batch_id is null then 0 else b.rows end, coalesce(t.rows, 0), "
        "case when c.batch_id is null then 0 else {expected_records} end, coalesce(t.records, 0) "
        "from exactbatch.batch b "
        "left join (select distinct batch_id from exactbatch.coverage where pipeline = $1) c using (batch_id) "
        "left join (select batch_id, {rows}::bigint as rows, {records}::bigint as records from {contributions} "
        "group by batch_id) t using (batch_id) {left} "
        "where b.pipeline = $1 and (c.batch_id is not null or t.rows > 0) {whole}"
    ).format(
        # A partial result says how many rows it stands for.
        rows=sql.SQL("sum(records)" if isinstance(pipeline.sink, Aggregate) else "count(*)"),
        records=sql.SQL(_RECORDS if by_record else "0"),
        expected_records=sql.SQL("b.records - b.rejected - b.tombstones - b.dropped" if by_record else "0"),
        contributions=pipeline.sink.contributions.table,
        left=sql.SQL(_LEFT if by_record else ""),
        whole=sql.SQL(_WHOLE if by_record else ""),
    )


class _Audit:
    """The comparison of one partition."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        connection: Connection,
        log: LogPartition,
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
        self._pipeline, self._settings, self._connection = pipeline, settings, connection
        self._log, self._coverage, self._compacted = log, coverage, compacted
        self._horizon, self._expected = horizon, expected
        self._starts = [each.from_offset for each in coverage]
        # Below where the pipeline began lies history, which replays cover where they were asked to.
        self._began = head if began is None else began
        first = min(self._began, coverage[0].from_offset) if coverage else self._began
        self.result = PartitionAudit(log.topic, log.partition, first, head)

    @property
    def span(self) -> int:
        """How many offsets there are to compare."""
        return self.result.until_offset - self.result.from_offset

    def run(self, results: ArrowConnection, sharing: Sequence[str]) -> Iterator[int]:
        """Compare window by window, each time telling how many offsets that was.

        `sharing` are the pipelines whose rows may lie in the same table.
        """
        self._sharing = sharing
        begin, head = self.result.from_offset, self.result.until_offset
        self._outside(results, begin, head)
        self._gaps(begin, head)
        log = _LogWindows(
            self._settings.kafka, self._log, begin, head, self._expected, self._covering, self._cluster_id
        )
        with closing(log):
            start = begin
            while start < head:
                end = min(start + _WINDOW, head)
                if self._compare(start, end, *log.window(end), results) == 0:
                    end = self._end_of_gap(results, end, min(log.next_offset, head))
                if self._expected is not None and self._pipeline.sink.lineage == "record":
                    first, count = self._expected.differing()
                    self.result.changed.add(np.array(first, np.int64))
                    self.result.changed.count += count - len(first)
                yield end - start
                start = end
            log.check_cluster()

    def _end_of_gap(self, results: ArrowConnection, start: int, record: int) -> int:
        """Where the next record, row or reject stands from `start` on; `record` is the next record of the log.

        Between them nothing but offsets that are recorded as lost is left to count.
        """
        for query in (self._rows, self._rejects):
            offsets, _ = query(results, start, record, _NEXT)
            record = int(offsets[0]) if len(offsets) else record
        self.result.lost += self._lost(start, record)
        return record

    def _outside(self, results: ArrowConnection, begin: int, head: int) -> None:
        """Nothing may lie below where the pipeline began, or at or past its stored offset."""
        for low, high in ((0, begin), (head, np.iinfo(np.int64).max)):
            for query in (self._rows, self._rejects):
                offsets, counts = query(results, low, high, _FIRST)
                self.result.unexpected.add(offsets)
                self.result.unexpected.count += int(counts[0]) - len(offsets) if len(counts) else 0

    def _gaps(self, begin: int, head: int) -> None:
        """Coverage reaches without a gap from where the pipeline began to its stored offset."""
        ends = [max(self._began, each) for each in (begin, *(each.until_offset for each in self._coverage))]
        for end, start in zip(ends, [*self._starts, head], strict=True):
            if end < start:
                self.result.gaps.count += start - end
                self.result.gaps.first += range(end, min(start, end + _SHOWN - len(self.result.gaps.first)))

    def _compare(
        self, start: int, end: int, records: Offsets, nulls: Offsets, results: ArrowConnection
    ) -> int:
        """Compare the offsets of a window; return how many records, rows and rejects it holds."""
        result, earliest = self.result, max(start, min(self._log.earliest, end))
        rows, row_batches = self._rows(results, start, end)
        rejects, reject_batches = self._rejects(results, start, end)
        held = len(records) + len(rows) + len(rejects)
        tombstones = np.setdiff1d(nulls, np.union1d(rows, rejects))
        expected = np.setdiff1d(records, tombstones) if self._keeps_no_null else records
        records = self._without_history(records)
        expected = self._without_history(expected)
        lost = self._lost(start, end)
        found = np.concatenate([rows, rejects])
        batches = np.concatenate([row_batches, reject_batches])
        accounted, counts = np.unique(found, return_counts=True)
        # Below the log's start, and in holes that compaction made, the log cannot say what was there.
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
        """Without what lies below where the pipeline began and no replay has covered."""
        kept: Offsets = offsets[(offsets >= self._began) | (self._covering(offsets) >= 0)]
        return kept

    @property
    def _has_a_row_per_record(self) -> bool:
        """Whether each record that is no reject and no tombstone has one row."""
        return self._pipeline.sink.lineage == "record" and not self._pipeline.is_transformed

    @property
    def _keeps_no_null(self) -> bool:
        """Whether a null value is a tombstone: then no row is expected of it."""
        value = self._pipeline.value
        return value.null_is_tombstone and not (value.tombstone_deletes and self._pipeline.sink.keeps_deletes)

    def _rows(
        self, results: ArrowConnection, start: int, end: int, form: str = "{}"
    ) -> tuple[Offsets, Offsets]:
        """Offset and batch of the rows, but those that another pipeline with this target may have written, and
        those of an earlier life of the topic; none where rows do not tell their offsets."""
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
        ).format(self._pipeline.sink.contributions.table, sql.Literal(list(self._sharing)))
        identity = (self._pipeline.name, str(self._log.topic_id))
        return self._fetch(
            results, query, (self._log.topic, self._log.partition, start, end, *identity), form
        )

    def _rejects(
        self, results: ArrowConnection, start: int, end: int, form: str = "{}"
    ) -> tuple[Offsets, Offsets]:
        """Offset and batch of the records that this pipeline rejected in this life of the topic."""
        query = sql.SQL(
            'select "offset", batch_id from exactbatch.rejected_record where pipeline = $1 '
            'and topic_id = $2::uuid and partition = $3 and "offset" >= $4 and "offset" < $5'
        )
        identity = (self._pipeline.name, str(self._log.topic_id))
        return self._fetch(results, query, (*identity, self._log.partition, start, end), form)

    def _fetch(
        self, results: ArrowConnection, query: sql.Composable, parameters: tuple[Any, ...], form: str
    ) -> tuple[Offsets, Offsets]:
        with results.cursor() as cursor:
            cursor.execute(sql.SQL(form).format(query).as_string(self._connection), parameters)
            table = cursor.fetch_arrow_table()
        return table.column(0).to_numpy(), table.column(1).to_numpy()

    def _covering(self, offsets: Offsets) -> Offsets:
        """The batch that covers each offset; -2 where none does."""
        if not self._coverage:
            return np.full(len(offsets), -2)
        index = np.searchsorted(self._starts, offsets, side="right") - 1
        ends = np.array([each.until_offset for each in self._coverage])
        batches = np.array([each.batch_id or -2 for each in self._coverage])
        is_covered = (index >= 0) & (offsets < ends[index])
        covered: Offsets = np.asarray(np.where(is_covered, batches[index], -2), np.int64)
        return covered

    def _lost(self, start: int, end: int) -> int:
        return sum(
            max(0, min(end, each.until_offset) - max(start, each.from_offset))
            for each in self._coverage
            if each.kind == "loss"
        )

    def _not_lost(self, offsets: Offsets) -> Offsets:
        if not self._coverage:
            return offsets
        lost = np.array([self._is_lost(int(each)) for each in offsets], bool)
        kept: Offsets = offsets[~lost]
        return kept

    def _is_lost(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        covered = self._coverage[index] if index >= 0 else None
        return covered is not None and covered.kind == "loss" and offset < covered.until_offset


class _LogWindows:
    """Reads one partition from its beginning, in windows of offsets, with a consumer of its own."""

    _TIMEOUT: Final = 60.0  # seconds without progress

    def __init__(
        self,
        properties: Mapping[str, Any],
        log: LogPartition,
        begin: int,
        head: int,
        expected: ExpectedValues | None,
        covering: Callable[[Offsets], Offsets],
        cluster_id: str | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._covering = covering
        self._position = max(begin, log.earliest)
        self._head, self._log, self._expected = head, log, expected
        self._ahead: tuple[list[int], list[int]] = ([], [])
        self._fetched = FetchPosition(log.topic, log.partition)
        self._held_back = HeldBack()
        self._consumer: Consumer | None = None
        if self._position < head:
            callbacks = {"stats_cb": self._fetched, "throttle_cb": self._held_back}
            self._consumer = Consumer({**reader_properties(properties), **callbacks})
            self._consumer.assign([TopicPartition(log.topic, log.partition, self._position)])
            self.check_cluster()

    def window(self, end: int) -> tuple[Offsets, Offsets]:
        """Offsets of the records below `end` that were not told yet, and of those with a null value."""
        offsets, nulls = self._ahead
        passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
        while self._consumer is not None and self._position < end:
            messages = self._consumer.consume(_MESSAGES if self._expected is None else _DECODED, 0.1)
            told = [message.offset() or 0 for message in messages if message.error() is None]
            if told:
                check_in_log(self._consumer, self._log.topic, self._log.partition, told[-1])
            if self._expected is not None:
                records = [m for m in messages if m.error() is None and (m.offset() or 0) < self._head]
                if records:
                    batches = self._covering(np.array([each.offset() for each in records], np.int64))
                    self._expected.add(self._log.topic, self._log.partition, records, batches.tolist())
            for message in messages:
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    offsets.append(offset)
                    if message.value() is None:
                        nulls.append(offset)
                    self._position = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._position = max(self._position, offset)
                elif concerns_reading(message):
                    where = f"{self._log.topic}[{self._log.partition}] from {self._position}"
                    raise event_error(where, self._log.topic, self._log.partition, message)
                deadline = time.monotonic() + self._TIMEOUT
            if self._fetched.offset > passed:
                passed, deadline = self._fetched.offset, time.monotonic() + self._TIMEOUT
            if time.monotonic() > max(deadline, self._held_back.until + self._TIMEOUT):
                raise ReadFailed(
                    f"{self._log}: expected the log from {self._position} to {end}, found nothing for "
                    f"{self._TIMEOUT:g} s. Is the broker up?"
                )
        all_offsets, all_nulls = np.array(offsets, np.int64), np.array(nulls, np.int64)
        self._ahead = (all_offsets[all_offsets >= end].tolist(), all_nulls[all_nulls >= end].tolist())
        return all_offsets[all_offsets < end], all_nulls[all_nulls < end]

    @property
    def next_offset(self) -> int:
        """The first record at or after the window's end; where none was read yet, how far the log was read."""
        offsets, _ = self._ahead
        return offsets[0] if offsets else self._position

    def check_cluster(self) -> None:
        """Raise ConfigurationError where another cluster than that of the plan is read."""
        if self._consumer is not None:
            is_cluster(self._consumer, self._log, self._log.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
