"""Does the target hold exactly what the log holds? The log is read again and compared, offset by offset.

The auditor shares no code with the way of a batch: it has a reader of its own, and believes the ledger only
in what it claims to cover. It works through windows of offsets, so its memory does not grow with the log.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import adbc_driver_postgresql.dbapi
import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg2 import sql

from exactbatch.errors import ReadFailed
from exactbatch.kafka_client import reader_properties
from exactbatch.kafka_log import KafkaLog
from exactbatch.ledger import Ledger, check_schema, connect, transaction
from exactbatch.pipeline import Pipeline
from exactbatch.planner import Covered, LogPartition, check_same_logs
from exactbatch.settings import Settings
from exactbatch.sinks import Upsert

Offsets = npt.NDArray[np.int64]

_WINDOW: Final = 200_000  # offsets that are compared at a time
_SHOWN: Final = 10  # offsets that a finding names
# Instead of all offsets that a query finds, the first _SHOWN of them and how many there are.
_FIRST: Final = "select q.o, count(*) over () from ({}) q (o, batch_id) order by 1 limit 10"


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
    rows          rows in the target; with `rejected` records and `tombstones` they make up `records`
    lost          offsets that the ledger records as lost before they were processed
    removed       accounted offsets that the log no longer holds, so that nothing proves or disproves them
    missing       records that no row and no reject accounts for
    duplicated    offsets with more than one row or reject
    unexpected    rows or rejects without a record, in a lost or uncovered offset, or of another batch than
                  the one that covers their offset
    stale         rows of a target that is derived from changes that are not what the changes say: their
                  number, in the first partition
    gaps          offsets, from where the pipeline began to the stored one, that the ledger accounts for
                  neither as processed nor as lost

    With lineage="batch" rows do not tell their offsets: their numbers are compared batch by batch, and a
    difference is told at the first offset that the batch covers.
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
    missing: Finding = field(default_factory=Finding)
    duplicated: Finding = field(default_factory=Finding)
    unexpected: Finding = field(default_factory=Finding)
    stale: Finding = field(default_factory=Finding)
    gaps: Finding = field(default_factory=Finding)

    @property
    def findings(self) -> dict[str, Finding]:
        """All kinds of differences there are, by their names."""
        return {
            "missing": self.missing,
            "duplicated": self.duplicated,
            "unexpected": self.unexpected,
            "stale": self.stale,
            "gaps": self.gaps,
        }

    @property
    def is_exact(self) -> bool:
        """Every record is accounted for once, and nothing else is there."""
        return not any(each.count for each in self.findings.values())


def audit(
    pipeline: Pipeline, settings: Settings, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> list[PartitionAudit]:
    """Compare log and target of a pipeline, partition by partition.

    Ledger and target are read in one snapshot, so batches may commit meanwhile. `progress` is told how many
    offsets are done, of how many.

    Raises KafkaUnavailable, PostgresUnavailable, NotRegistered, TopicMissing, ReadFailed, and TopicRecreated
    or PartitionGone where the log that was processed is not there to compare with.
    """
    connection = connect(settings.postgres, application="exactbatch audit")
    try:
        check_schema(connection)
        kafka = KafkaLog(settings.kafka)
        with adbc_driver_postgresql.dbapi.connect(settings.postgres) as results_connection:
            with transaction(connection) as cursor:
                cursor.execute("set transaction isolation level repeatable read")
                ledger = Ledger(connection)
                ledger.check_registered(pipeline)
                coverage, stored = ledger.coverage(pipeline), ledger.stored_offsets(pipeline)
                began = ledger.first_advanced(pipeline)
                _share_snapshot(cursor, results_connection)
            # The log is asked after the ledger: it holds every stored offset that was seen.
            partitions = kafka.partitions(pipeline.topics)
            check_same_logs([each for each in stored if each.topic in pipeline.topics], partitions)
            heads = {(each.topic, each.partition): each.next_offset for each in stored}
            compacted = kafka.compacted(pipeline.topics)
            reads = [
                _Audit(
                    pipeline,
                    settings,
                    connection,
                    each,
                    [covered for covered in coverage if _is_of(covered, each)],
                    heads[each.topic, each.partition],
                    began.get((each.topic_id, each.partition)),
                    compacted=each.topic in compacted,
                )
                for each in partitions
                if (each.topic, each.partition) in heads
            ]
            total, done = sum(read.span for read in reads), 0
            results = []
            for read in reads:
                for span in read.run(results_connection):
                    done += span
                    progress(done, total)
                results.append(read.result)
            if pipeline.sink.lineage == "batch":
                _compare_batches(results_connection, connection, pipeline, coverage, results)
            if isinstance(pipeline.sink, Upsert) and results:
                results[0].stale.count = _stale_rows(results_connection, connection, pipeline, pipeline.sink)
        return results
    finally:
        connection.close()


def _share_snapshot(cursor: Any, results: Any) -> None:
    """Let the connection that reads the results see what this transaction sees, for as long as it lasts."""
    cursor.execute("select pg_export_snapshot()")
    (snapshot,) = cursor.fetchone()
    with results.cursor() as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute(f"set transaction snapshot '{snapshot}'")


def _compare_batches(
    results: Any,
    connection: Any,
    pipeline: Pipeline,
    coverage: Sequence[Covered],
    found: list[PartitionAudit],
) -> None:
    """Where rows do not tell their offsets, compare their number batch by batch.

    A batch that stands for any offset has as many rows as it had when it was committed, and any other batch
    has none. A difference is told at the first offset that the batch covers.
    """
    query = sql.SQL(
        "select b.batch_id, case when c.batch_id is null then 0 else b.rows end, coalesce(t.rows, 0) "
        "from exactbatch.batch b "
        "left join (select distinct batch_id from exactbatch.coverage where pipeline = $1) c using (batch_id) "
        "left join (select batch_id, count(*) as rows from {} group by batch_id) t using (batch_id) "
        "where b.pipeline = $1 and (c.batch_id is not null or t.rows > 0)"
    ).format(pipeline.sink.contributions.table)
    with results.cursor() as cursor:
        cursor.execute(query.as_string(connection), (pipeline.name,))
        batches = cursor.fetchall()
    partitions = {(each.topic, each.partition): each for each in found}
    first = {each.batch_id: each for each in reversed(coverage)}
    for batch_id, expected, rows in batches:
        covered = first.get(batch_id)
        where = found[0] if covered is None else partitions[covered.topic, covered.partition]
        at = np.array([] if covered is None else [covered.from_offset], np.int64)
        where.rows += rows
        for finding, count in ((where.missing, expected - rows), (where.unexpected, rows - expected)):
            if count > 0:
                finding.add(at)
                finding.count += count - len(at)


def _stale_rows(results: Any, connection: Any, pipeline: Pipeline, sink: Upsert) -> int:
    """How many rows are in the target and not the latest of their key's changes, or the other way round."""
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in pipeline.value.columns)
    version = sql.SQL("null::int") if sink.version is None else sql.Identifier(sink.version)
    query = sql.SQL(
        "with ranked as (select {names}, deleted, row_number() over (partition by {key} order by "
        "{version} is null, {version} desc, kafka_topic desc, kafka_partition desc, kafka_offset desc) as rank "
        "from {change}), latest as (select {names} from ranked where rank = 1 and not deleted) "
        "select count(*) from ((table latest except all select {names} from {target}) "
        "union all (select {names} from {target} except all table latest)) different"
    ).format(
        names=names,
        key=sql.SQL(", ").join(map(sql.Identifier, sink.key)),
        version=version,
        change=sink.contributions.table,
        target=sink.table,
    )
    with results.cursor() as cursor:
        cursor.execute(query.as_string(connection))
        return int(cursor.fetchone()[0])


class _Audit:
    """The comparison of one partition."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        connection: Any,
        log: LogPartition,
        coverage: list[Covered],
        head: int,
        began: int | None,
        *,
        compacted: bool,
    ) -> None:
        self._pipeline, self._settings, self._connection = pipeline, settings, connection
        self._log, self._coverage, self._compacted = log, coverage, compacted
        self._starts = [each.from_offset for each in coverage]
        first = coverage[0].from_offset if coverage else head
        # Below where the pipeline began lies history, which replays cover where they were asked to.
        self._began = max(first, head if began is None else began)
        self.result = PartitionAudit(log.topic, log.partition, first, head)

    @property
    def span(self) -> int:
        """How many offsets there are to compare."""
        return self.result.until_offset - self.result.from_offset

    def run(self, results: Any) -> Iterator[int]:
        """Compare window by window, each time telling how many offsets that was."""
        begin, head = self.result.from_offset, self.result.until_offset
        self._outside(results, begin, head)
        self._gaps(begin, head)
        log = _LogWindows(self._settings.kafka, self._log, begin, head)
        with closing(log):
            for start in range(begin, head, _WINDOW):
                end = min(start + _WINDOW, head)
                self._compare(start, end, *log.window(end), results)
                yield end - start

    def _outside(self, results: Any, begin: int, head: int) -> None:
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

    def _compare(self, start: int, end: int, records: Offsets, nulls: Offsets, results: Any) -> None:
        result, earliest = self.result, max(start, min(self._log.earliest, end))
        rows, row_batches = self._rows(results, start, end)
        rejects, reject_batches = self._rejects(results, start, end)
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
        if self._pipeline.sink.lineage == "record":
            result.missing.add(self._not_lost(np.setdiff1d(expected, accounted)))
        result.duplicated.add(accounted[counts > 1])
        foreign = np.setdiff1d(np.setdiff1d(accounted, records), unprovable)
        result.unexpected.add(np.union1d(foreign, misplaced))

    def _without_history(self, offsets: Offsets) -> Offsets:
        """Without what lies below where the pipeline began and no replay has covered."""
        kept: Offsets = offsets[(offsets >= self._began) | (self._covering(offsets) >= 0)]
        return kept

    @property
    def _keeps_no_null(self) -> bool:
        """Whether a null value is a tombstone: then no row is expected of it."""
        value = self._pipeline.value
        return value.null_is_tombstone and not (value.tombstone_deletes and self._pipeline.sink.keeps_deletes)

    def _rows(self, results: Any, start: int, end: int, form: str = "{}") -> tuple[Offsets, Offsets]:
        """Offset and batch of the rows that this pipeline wrote for this life of the topic; none where rows
        do not tell their offsets."""
        if self._pipeline.sink.lineage == "batch":
            return np.array([], np.int64), np.array([], np.int64)
        query = sql.SQL(
            "select t.kafka_offset, coalesce(t.batch_id, -1) from {} t "
            "where t.kafka_topic = $1 and t.kafka_partition = $2 and t.kafka_offset >= $3 "
            "and t.kafka_offset < $4 and not exists ("
            "select from exactbatch.batch b left join exactbatch.batch_range r on r.batch_id = b.batch_id "
            "and r.topic = $1 and r.partition = $2 where b.batch_id = t.batch_id "
            "and (b.pipeline <> $5 or r.topic_id <> $6::uuid))"
        ).format(self._pipeline.sink.contributions.table)
        identity = (self._pipeline.name, str(self._log.topic_id))
        return self._fetch(
            results, query, (self._log.topic, self._log.partition, start, end, *identity), form
        )

    def _rejects(self, results: Any, start: int, end: int, form: str = "{}") -> tuple[Offsets, Offsets]:
        """Offset and batch of the records that this pipeline rejected in this life of the topic."""
        query = sql.SQL(
            'select "offset", batch_id from exactbatch.rejected_record where pipeline = $1 '
            'and topic_id = $2::uuid and partition = $3 and "offset" >= $4 and "offset" < $5'
        )
        identity = (self._pipeline.name, str(self._log.topic_id))
        return self._fetch(results, query, (*identity, self._log.partition, start, end), form)

    def _fetch(
        self, results: Any, query: sql.Composable, parameters: tuple[Any, ...], form: str
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

    def __init__(self, properties: Mapping[str, Any], log: LogPartition, begin: int, head: int) -> None:
        self._position = max(begin, log.earliest)
        self._head, self._log = head, log
        self._ahead: tuple[list[int], list[int]] = ([], [])
        self._consumer: Consumer | None = None
        if self._position < head:
            self._consumer = Consumer(reader_properties(properties))
            self._consumer.assign([TopicPartition(log.topic, log.partition, self._position)])

    def window(self, end: int) -> tuple[Offsets, Offsets]:
        """Offsets of the records below `end` that were not told yet, and of those with a null value."""
        offsets, nulls = self._ahead
        deadline = time.monotonic() + self._TIMEOUT
        while self._consumer is not None and self._position < end:
            for message in self._consumer.consume(10_000, 0.1):
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    offsets.append(offset)
                    if message.value() is None:
                        nulls.append(offset)
                    self._position = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._position = max(self._position, offset)
                else:
                    raise ReadFailed(
                        f"{self._log}: expected the log from {self._position} to {end}, found "
                        f"{error.name()}: {error.str()}. Try again."
                    )
                deadline = time.monotonic() + self._TIMEOUT
            if time.monotonic() > deadline:
                raise ReadFailed(
                    f"{self._log}: expected the log from {self._position} to {end}, found nothing for "
                    f"{self._TIMEOUT:g} s. Is the broker up?"
                )
        told, told_nulls = np.array(offsets, np.int64), np.array(nulls, np.int64)
        self._ahead = (told[told >= end].tolist(), told_nulls[told_nulls >= end].tolist())
        return told[told < end], told_nulls[told_nulls < end]

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()


def _is_of(covered: Covered, log: LogPartition) -> bool:
    return (covered.topic, covered.partition, covered.topic_id) == (log.topic, log.partition, log.topic_id)
