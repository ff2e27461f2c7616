"""commit="partition": each range of an advance in a transaction of its own, on the executor that reads it.

Rows go by COPY straight into the target. In the same transaction the stored offset moves, and coverage,
rejects and counts are written: a range is committed when its batch_range has counts. The transaction locks
the batch, shared, and then the stored offset of its partition, never the pipeline; so ranges do not wait
for each other, a newer plan waits for the ranges that are about to commit, and supersedes the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from adbc_driver_manager import Error as AdbcError

from exactbatch.batch.publish import Published, check_publishable, check_topic_ids
from exactbatch.batch.staging import (
    APPLICATION,
    REJECT,
    Waiting,
    collector_paused,
    copy_by_turns,
    decode_records,
    ingest,
    origins,
    reject_batch,
    rejects_of,
)
from exactbatch.batch.watchdog import Patience, within
from exactbatch.errors import (
    ExactbatchError,
    Fenced,
    PostgresUnavailable,
    StagedRowsDiffer,
    TargetMismatch,
    TasksFailed,
    TooManyRejects,
)
from exactbatch.errors.sqlstates import refuses
from exactbatch.errors.translation import adbc_said, unexpected
from exactbatch.failpoints import failpoint
from exactbatch.formats import Decoded, with_registry
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import Records, read_range
from exactbatch.ledger import Ledger, batch_lost
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection, ArrowCursor, connect_arrow
from exactbatch.postgres.catalog import FACTS_OF, Fact, changes, check_kinds, guards_of
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks import Append
from exactbatch.sinks.append import LINEAGE
from exactbatch.sinks.writes import WRITES_OF, Writes

_REJECTS: Final = "exactbatch_rejects"  # a temporary table
_REJECTS_SHOWN: Final = 5
# Parameters $1 to $4 are the key of the range, in each statement.
_THIS: Final = "batch_id = $1 and topic = $2 and partition = $3 and from_offset = $4"
_STATE: Final = """
select b.plan_id, b.status, r.records is not null
from exactbatch.batch b left join exactbatch.batch_range r
    on r.batch_id = b.batch_id and r.topic = $2 and r.partition = $3 and r.from_offset = $4
where b.batch_id = $1
"""
_LOCK_BATCH: Final = "select plan_id, status from exactbatch.batch where batch_id = $1 for share"
_SERVER: Final = "select current_database(), pg_is_in_recovery()"
_LOCK_STORED_OFFSET: Final = """
select next_offset, topic_id from exactbatch.stored_offset
where pipeline = $1 and topic = $2 and partition = $3
for update
"""
# What ADBC says that it sent is not what has arrived, and counting in the target would read much of it.
_WRITES: Final = WRITES_OF.format("$1", "$1")
_INSERT_REJECTS: Final = f"""
with inserted as (
    insert into exactbatch.rejected_record
        (pipeline, topic_id, partition, "offset", topic, key, value, headers, reason, batch_id)
    select b.pipeline, r.topic_id, r.partition, s."offset", r.topic, s.key, s.value, s.headers::jsonb,
           s.reason, r.batch_id
    from pg_temp.{_REJECTS} s, exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where r.batch_id = $1 and r.topic = $2 and r.partition = $3 and r.from_offset = $4
    returning 1
)
select count(*) from inserted
"""  # noqa: S608 - _REJECTS is a constant
_ACCOUNT: Final = f"""
with this as (
    select b.pipeline, r.* from exactbatch.batch_range r join exactbatch.batch b using (batch_id)
    where {_THIS}
), covered as (
    insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
    select pipeline, topic, topic_id, partition, int8range(from_offset, until_offset), 'batch', batch_id from this
    returning 1
), counted as (
    update exactbatch.batch_range set records = $5, rows = $6, rejected = $7, tombstones = $8
    where {_THIS} and records is null
    returning 1
), moved as (
    update exactbatch.stored_offset s
    set next_offset = this.until_offset, leader_epoch = this.leader_epoch, updated_at = clock_timestamp()
    from this
    where s.pipeline = this.pipeline and s.topic = this.topic and s.partition = this.partition
    returning 1
)
select (select count(*) from covered), (select count(*) from counted), (select count(*) from moved)
"""  # noqa: S608 - _THIS is a constant


@dataclass(frozen=True, slots=True)
class RangeTask:
    """What one Spark task does; it travels in the task's closure, secrets and all.

    `leader_epoch` is the epoch up to which the log was processed at the range's start, and `seen` what the
    database said of the target when the batch began; `cluster_id` is the Kafka cluster of the plan.
    """

    range: OffsetRange
    leader_epoch: int | None
    batch_id: int
    plan_id: UUID
    pipeline: Pipeline
    kafka: Mapping[str, Any] = field(repr=False)
    postgres: str = field(repr=False)
    seen: tuple[Fact, ...] = field(repr=False)
    cluster_id: str | None = None

    @property
    def key(self) -> tuple[int, str, int, int]:
        """The primary key of the range in exactbatch.batch_range."""
        return self.batch_id, self.range.topic, self.range.partition, self.range.from_offset

    def __str__(self) -> str:
        return f"batch {self.batch_id} of pipeline {self.pipeline.name!r}, {self.range}"


def commit_range(task: RangeTask, attempt: int) -> ExactbatchError | None:
    """Read, decode and commit one range, on an executor; nothing where this batch has committed it before.

    A terminal error is returned, so that Spark does not try again what cannot succeed and the other ranges
    go on; so is StagedRowsDiffer, since only the next try of the batch looks at the target anew. Another retryable
    one is raised.
    """

    def commit(patience: Patience) -> None:
        with connect_arrow(
            task.postgres, application=APPLICATION, timeout=task.pipeline.publish_timeout
        ) as connection:
            _commit(connection, task, attempt, patience)

    try:
        with collector_paused():
            within(task.pipeline.statement_timeout, commit, where=str(task))
    except ExactbatchError as error:
        if error.retryable and not isinstance(error, StagedRowsDiffer):
            raise
        return error
    return None


def commit_batch(connection: Connection, pipeline: Pipeline, batch_id: int, plan_id: UUID) -> Published:
    """Mark a batch committed, all of whose ranges are, with the sums of their counts.

    Raises Fenced when it was superseded, BatchLost when it is another plan's, and TasksFailed, retryable, when a
    range is not committed.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.lock(pipeline)
        batch = ledger.batch(batch_id, plan_id, lock=True)
        if check_publishable(ledger, pipeline, batch):
            return Published(batch, wrote=False)
        if left := ledger.uncommitted_ranges(batch_id):
            raise TasksFailed(
                f"batch {batch_id} of pipeline {pipeline.name!r}: expected every range to be committed, found "
                f"that {', '.join(map(str, left))} is not. Try again: the next try processes what is left."
            )
        ledger.commit_ranges(batch)
        failpoint("partition.before_batch_commit")
    failpoint("partition.after_batch_commit")
    with transaction(connection):
        return Published(ledger.batch(batch_id, plan_id), wrote=True)


def _commit(connection: ArrowConnection, task: RangeTask, attempt: int, patience: Patience) -> None:
    """Leaves without a commit, and so without a trace, where the range turns out to be committed already."""
    with connection.cursor() as cursor:
        if _is_committed(cursor, task):
            return
        connection.rollback()  # that was a question of its own: what follows may take long
        reading = _Reading(task, attempt)
        _copy(cursor, task, reading, patience)
        # Asked after the last record was read: if the id is the plan's now, it was all along.
        with patience.elsewhere():
            check_topic_ids([task.range], KafkaBroker(task.kafka).topic_ids([task.range.topic]))
        failpoint("partition.before_locks")
        if not _lock(cursor, task):
            return
        failpoint("partition.after_locks")
        if reading.rejects:
            _expect(task, "rejected records", _row(cursor, _INSERT_REJECTS, task.key), (reading.rejects,))
            cursor.execute(f"drop table pg_temp.{_REJECTS}")
        counts = (reading.records, reading.rows, reading.rejects, reading.tombstones)
        done = _row(cursor, _ACCOUNT, (*task.key, *counts))
        _expect(task, "coverage, counts and stored offset", done, (1, 1, 1))
        failpoint("partition.before_commit")
        connection.commit()
    failpoint("partition.after_commit")


def _is_committed(cursor: ArrowCursor, task: RangeTask) -> bool:
    """Whether this batch has committed the range. Raises Fenced when the batch is superseded, and BatchLost."""
    status, committed = _of_this_plan(cursor, task, _STATE, task.key)
    if status == "superseded":
        raise _superseded(task)
    return bool(committed)


def _lock(cursor: ArrowCursor, task: RangeTask) -> bool:
    """Hold the batch as it is and the stored offset where the plan found it, until the commit.

    Returns False when another attempt has committed the range, and raises Fenced when the batch may not.
    """
    (status,) = _of_this_plan(cursor, task, _LOCK_BATCH, (task.batch_id,))
    if status == "superseded":
        raise _superseded(task)
    range_ = task.range
    where = (task.pipeline.name, range_.topic, range_.partition)
    next_offset, topic_id = _row(cursor, _LOCK_STORED_OFFSET, where)
    if (next_offset, topic_id) == (range_.from_offset, range_.topic_id):
        return True
    if _is_committed(cursor, task):
        return False
    raise Fenced(
        f"{task}: expected the stored offset {range_.from_offset}, found {next_offset} of topic id {topic_id}: "
        f"another batch has moved it since this one was planned. Nothing of the range was written; plan again."
    )


def _of_this_plan(
    cursor: ArrowCursor, task: RangeTask, statement: str, parameters: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What the ledger says of the batch, after its plan_id. Raises BatchLost when another plan has its number.

    Another batch of this number can have a range that starts at the same offset and ends at another one.
    """
    cursor.execute(statement, parameters)
    rows = cursor.fetchall()
    if rows and rows[0][0] == task.plan_id:
        return tuple(rows[0][1:])
    (database, is_standby) = _row(cursor, _SERVER, ())
    if is_standby:
        raise PostgresUnavailable(
            f"{task}: the server is a standby, which may not have received the batch yet. Let the connection "
            f"string name the primary (target_session_attrs=read-write)."
        )
    raise batch_lost(task.batch_id, task.plan_id, rows[0][0] if rows else None, database)


def _superseded(task: RangeTask) -> Fenced:
    return Fenced(
        f"{task}: expected the batch to be planned, found it superseded by one that was planned later. Nothing "
        f"of this range was written and nothing is lost: the later batch goes on at the stored offset. This "
        f"batch needs no retry."
    )


class _Reading:
    """Reads a range as rows for the target, and counts."""

    def __init__(self, task: RangeTask, attempt: int) -> None:
        self._task, self._attempt = task, attempt
        self.records = self.rows = self.rejects = self.tombstones = 0
        self.waiting = Waiting()
        self._shown: list[str] = []
        self.schema = pa.schema([(c.name, c.arrow_type) for c in (*task.pipeline.value.columns, *LINEAGE)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows with all their lineage, until there are more rejects than the range may have."""
        task, pipeline = self._task, self._task.pipeline
        value = with_registry(pipeline.value, task.kafka)
        # Of a share, the most that there can be: no range has more records than offsets.
        most = pipeline.rejects_allowed(len(task.range))
        records = read_range(
            task.range,
            task.kafka,
            leader_epoch=task.leader_epoch,
            timeout=pipeline.read_timeout,
            cluster_id=task.cluster_id,
        )
        try:
            for each in records:
                decoded = decode_records(value, each, each.values())
                self.records += len(each)
                self.rows += len(decoded.rows)
                self.rejects += len(decoded.rejects)
                self.tombstones += decoded.tombstones
                if decoded.rejects:
                    self._reject(reject_batch(rejects_of(task.range, each, decoded, self._attempt)))
                if self.rejects > most:
                    return
                yield self._with_lineage(each, decoded)
        except ExactbatchError:
            raise
        except Exception as error:
            raise unexpected(error) from error

    def _reject(self, batch: pa.RecordBatch) -> None:
        self.waiting.add(batch)
        first = batch.slice(0, _REJECTS_SHOWN - len(self._shown)).to_pylist()
        self._shown += [f"offset {row['offset']}: {row['reason']}" for row in first]

    def check_rejects(self) -> None:
        """Raise TooManyRejects, naming the first bad records, when there are more than the range may have."""
        if self.rejects <= self._task.pipeline.rejects_allowed(self.records):
            return
        raise TooManyRejects(
            f"{self._task}: {self._task.pipeline.too_many_rejects(self.rejects, self.records)}, of each range "
            f'by itself with commit="partition". Nothing of this range was written; other ranges of the batch '
            f"may have been committed. The first: {'; '.join(self._shown)}. Correct the pipeline's value format, "
            f"or raise max_rejects to keep such records in exactbatch.rejected_record."
        )

    def _with_lineage(self, records: Records, decoded: Decoded) -> pa.RecordBatch:
        offsets, timestamps = origins(records, decoded)
        n = len(offsets)
        lineage = [
            pa.repeat(self._task.range.topic, n),
            pa.repeat(pa.scalar(self._task.range.partition, pa.int32()), n),
            offsets,
            timestamps,
            pa.repeat(pa.scalar(self._task.batch_id, pa.int64()), n),
        ]
        return pa.RecordBatch.from_arrays([*decoded.rows.columns, *lineage], schema=self.schema)


def _copy(cursor: ArrowCursor, task: RangeTask, reading: _Reading, patience: Patience) -> None:
    """COPY the rows of a range into the target, and check that they have arrived; rejects go into a temporary
    table."""
    assert isinstance(task.pipeline.sink, Append)  # the pipeline takes no other
    schema, table = task.pipeline.sink.table_name
    named = '"{}"."{}"'.format(*(part.replace('"', '""') for part in (schema, table)))
    before = Writes(*_row(cursor, _WRITES, (named,)))
    sent = 0
    mode = "create"

    def copy_rows(rows: Iterator[pa.RecordBatch]) -> None:
        nonlocal sent
        try:
            sent += ingest(cursor, table, reading.schema, rows, mode="append", db_schema_name=schema)
        except AdbcError as error:
            _raise_refused(task, error)
            raise

    def copy_rejects(rejected: list[pa.RecordBatch]) -> None:
        nonlocal mode
        ingest(cursor, _REJECTS, REJECT, iter(rejected), mode=mode, temporary=True)
        mode = "append"
        failpoint("partition.after_rejects")

    copy_by_turns(patience.between(reading.batches()), reading.waiting, copy_rows, copy_rejects)
    reading.check_rejects()
    _check_seen(cursor, task, named)
    try:
        # Deferred triggers and constraints would act at the commit, after what has arrived was counted.
        cursor.execute("set constraints all immediate")
    except AdbcError as error:
        _raise_refused(task, error)
        raise
    done = Writes(*_row(cursor, _WRITES, (named,))) - before
    _check_arrived(task, reading.rows, sent, done)


def _check_arrived(task: RangeTask, rows: int, sent: int, done: Writes) -> None:
    """As many rows have arrived as were decoded, and no other row was changed."""
    start = f"{task}, target {task.pipeline.sink.target}"
    guards = guards_of(task.seen)
    if not rows == sent == done.inserted or done.updated or done.deleted:
        raise TargetMismatch(
            f"{start}: {rows} rows were decoded and {sent} were sent, and Postgres counts {done} in the "
            f"target{f': {guards} does that' if guards else ''}. Nothing of this range was written. With "
            f"commit='partition' nothing compares what is stored with what was written, so triggers may write "
            f"into other tables only. Drop it."
        )
    # It may have been another session's VACUUM FULL, just before the COPY: the retry tells.
    if done.files and guards:
        raise StagedRowsDiffer(
            f"{start}: a table of the target was truncated or rewritten while the range was copied. Nothing of "
            f"this range was written. If the retry finds it again, {guards} does that: drop it."
        )


def _raise_refused(task: RangeTask, error: Exception) -> None:
    """Raise TargetMismatch where the target, its triggers or its constraints refuse what was written."""
    if isinstance(error, AdbcError) and refuses(error.sqlstate):
        raise TargetMismatch(
            f"{task}, target {task.pipeline.sink.target}: it refuses what the range writes: "
            f"{adbc_said(error)} (SQLSTATE {error.sqlstate}). Nothing of this range was written. Correct the "
            f"target, or what the pipeline writes."
        ) from error


def _check_seen(cursor: ArrowCursor, task: RangeTask, named: str) -> None:
    """The target is what it was when the batch began; what was copied into it keeps it from being changed now."""
    sink = task.pipeline.sink
    cursor.execute(FACTS_OF.format("$1", "$1"), (named,))
    found = [Fact(*row) for row in cursor.fetchall()]
    check_kinds(sink.target, found)
    if changed := changes(task.seen, found):
        raise StagedRowsDiffer(
            f"{task}, target {sink.target}: it was changed while the batch ran: {changed}. Nothing of this range "
            f"was written. The next try checks the target as it is then."
        )


def _expect(task: RangeTask, what: str, found: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise TasksFailed(
            f"{task}: expected {what} to be written as {expected} rows, found {found}. Nothing of this range was "
            f"written. Was the ledger changed by hand? `exactbatch audit` compares it with the log."
        )


def _row(cursor: ArrowCursor, statement: str, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The one row that a statement gives. ADBC tells no row count of a statement with parameters."""
    cursor.execute(statement, parameters)
    (row,) = cursor.fetchall()
    return tuple(row)
