"""commit="partition": each range of an advance in a separate transaction, on the executor that reads it.

Rows go by COPY straight into the target. In the same transaction the stored offset moves, and coverage,
rejects and counts are written: a range is committed when its batch_range has counts. The transaction locks
the batch, shared, and then the stored offset of its partition, never the pipeline; so ranges do not wait
for each other, and a newer plan waits for the ranges that are about to commit and supersedes the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from exactbatch.batch.by_partition.range_copy import REJECTS, RangeTask, copy_range, range_reader
from exactbatch.batch.by_partition.row_copy import RowCopy
from exactbatch.batch.publishing.fences import check_publishable, check_topic_ids, lock_target
from exactbatch.batch.publishing.insert_rows import check_staged, insert_rows
from exactbatch.batch.publishing.publish import Published, let_search
from exactbatch.batch.rows.arrow_copy import PostgresAccess
from exactbatch.batch.rows.decode import RangeReader, pause_garbage_collector, shared_reads
from exactbatch.batch.rows.watchdog import StallTimeout
from exactbatch.batch.stage_times import StageTimes
from exactbatch.batch.staging.outcomes import declare_outcome
from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, Fenced, PostgresUnavailable, StagedRowsDiffer, TasksFailed
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.shared_reads import SharedReads
from exactbatch.ledger import Ledger, batch_lost, target_transaction
from exactbatch.ledger.partition_commit import (
    ACCOUNT_RANGE,
    INSERT_RANGE_REJECTS,
    LOCK_STORED_OFFSET,
    RANGE_STATE,
    SHARE_BATCH,
)
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.postgres.numbered import NumberedCursor
from exactbatch.postgres.task_cursor import TaskConnection, TaskCursor, one_row

_SERVER: Final = "select current_database(), pg_is_in_recovery()"


@declare_outcome
@dataclass(frozen=True, slots=True)
class Committed:
    """What a task attempt did for a range that is committed now: it read `records`, none if another attempt had
    committed the range before. Compiled code took `taken` of them, which does not matter for the result."""

    records: int
    taken: int = field(default=0, compare=False)


def commit_ranges(tasks: Sequence[RangeTask], attempt: int) -> list[Committed | ExactbatchError]:
    """Read ranges, on an executor, and commit each of them, as commit_range() does."""
    reads = shared_reads(tasks)
    return [commit_range(task, attempt, reads) for task in tasks]


def commit_range(
    task: RangeTask, attempt: int, reads: SharedReads | None = None
) -> Committed | ExactbatchError:
    """Read, decode and commit one range, on an executor; do nothing if this batch has committed it before.

    `reads` are those that the range shares with others. Returns a terminal error, so that Spark does not retry what
    cannot succeed and the other ranges go on. Returns StagedRowsDiffer as well, since only the next try of the batch
    checks the target again. Raises any other retryable error.
    """
    pipeline = task.pipeline
    postgres = PostgresAccess(task.postgres, pipeline.publish_timeout, pipeline.statement_timeout)
    try:
        with pause_garbage_collector():
            reader, copy = range_reader(task, attempt, reads)
            copy.run(
                postgres,
                lambda connection, timeout: _commit(connection, task, reader, copy, timeout),
                where=str(task),
            )
    except ExactbatchError as error:
        if error.retryable and not isinstance(error, StagedRowsDiffer):
            raise
        return error
    return Committed(reader.records, reader.taken)


def commit_batch(
    connection: Connection, pipeline: Pipeline, batch_id: int, plan_id: UUID, times: StageTimes | None = None
) -> Published:
    """Mark a batch committed, all of whose ranges are, with the sums of their counts and the stages of the launch.

    Raises Fenced when it was superseded, BatchLost when another plan has its number, and TasksFailed, retryable,
    when a range is not committed.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.lock(pipeline)
        batch = ledger.batch(batch_id, plan_id, lock=True)
        check_publishable(ledger, pipeline, batch)
        if batch.status == "committed":
            return Published(batch, wrote=False)
        if uncommitted := ledger.uncommitted_ranges(batch_id):
            raise TasksFailed(
                f"batch {batch_id} of pipeline {pipeline.name!r}: these ranges are not committed: "
                f"{', '.join(map(str, uncommitted))}. Try again: the next try processes them.",
                batch_id=batch_id,
            )
        ledger.mark_committed_by_ranges(batch, times.milliseconds() if times is not None else {})
        failpoint("partition.before_batch_commit")
    failpoint("partition.after_batch_commit")
    with transaction(connection):
        return Published(ledger.batch(batch_id, plan_id), wrote=True)


def _commit(
    connection: TaskConnection, task: RangeTask, reader: RangeReader, copy: RowCopy, timeout: StallTimeout
) -> None:
    """Commit the range. If it turns out to be committed already, return without a commit and so without a
    trace."""
    with connection.cursor() as cursor:
        if _is_committed(cursor, task):
            return
        connection.rollback()  # that query needs no longer transaction: what follows may take long
        copy_range(cursor, task, reader, copy, timeout)
        # Asked after the last record was read: if the id is the plan's now, it was all along.
        with timeout.paused():
            check_topic_ids([task.range], KafkaBroker(task.kafka).topic_ids([task.range.topic]))

        def copied_rejects() -> int:
            (inserted,) = one_row(cursor, INSERT_RANGE_REJECTS, task.key)
            cursor.execute(f"drop table pg_temp.{REJECTS}")
            return int(inserted)

        counts = (reader.records, reader.rows, reader.rejects, reader.tombstones, reader.replaced)
        if not _account(cursor, task, counts, copied_rejects):
            return
        connection.commit()
    failpoint("partition.after_commit")


def commit_staged(
    connection: Connection,
    task: RangeTask,
    *,
    tables: StagingTables,
    columns: Sequence[Column],
    staged: StagedBatch,
    may_reject: int,
) -> None:
    """Commit one range whose rows are staged; do nothing if this batch has committed it before.

    Raises what commit_range() raises or returns. If the target refuses rows, the error names one record more than
    `may_reject`, or all of them.
    """
    pipeline = task.pipeline
    with target_transaction(connection, pipeline) as cursor:
        let_search(cursor, may_reject)
        lock_target(cursor, pipeline.sink, task.seen)
        rows = insert_rows(cursor, pipeline.sink, tables, staged, columns)
        check_staged(cursor, tables.batch_id, tables.rejects, {**staged.rejects, INTACT: 1})

        def insert_rejects() -> int:
            batch = Ledger(connection).batch(task.batch_id, task.plan_id)
            return Ledger(connection).insert_rejects(batch, identifier(tables.rejects), staged.attempts)

        replaced = sum(piece.replaced for piece in staged.pieces)
        counts = (staged.records, rows, staged.rejected, staged.tombstones, replaced)
        if not _account(NumberedCursor(cursor), task, counts, insert_rejects):
            connection.rollback()
    failpoint("partition.after_commit")


def _account(
    cursor: TaskCursor,
    task: RangeTask,
    counts: tuple[int, int, int, int, int],
    insert_rejects: Callable[[], int],
) -> bool:
    """Lock the range, insert its rejects, and write coverage, counts (records, rows, rejects, tombstones, records with
    replaced text) and the stored offset. Return False, and write nothing, if it turns out to be committed already."""
    failpoint("partition.before_locks")
    if not _lock(cursor, task):
        return False
    failpoint("partition.after_locks")
    if rejects := counts[2]:
        _expect(task, "rejected records", (insert_rejects(),), (rejects,))
    written = one_row(cursor, ACCOUNT_RANGE, (*task.key, *counts))
    _expect(task, "coverage, counts and stored offset", written, (1, 1, 1))
    failpoint("partition.before_commit")
    return True


def _is_committed(cursor: TaskCursor, task: RangeTask) -> bool:
    """True if this batch has committed the range. Raises Fenced when the batch is superseded, and BatchLost."""
    status, committed = _of_this_plan(cursor, task, RANGE_STATE, task.key)
    if status == "superseded":
        raise _superseded(task)
    return bool(committed)


def _lock(cursor: TaskCursor, task: RangeTask) -> bool:
    """Lock the batch and the stored offset, as the plan found them, until the commit.

    Returns False when another attempt has committed the range. Raises Fenced when the batch may not commit.
    """
    (status,) = _of_this_plan(cursor, task, SHARE_BATCH, (task.batch_id,))
    if status == "superseded":
        raise _superseded(task)
    range_ = task.range
    partition = (task.pipeline.name, range_.topic, range_.partition)
    next_offset, topic_id = one_row(cursor, LOCK_STORED_OFFSET, partition)
    if (next_offset, topic_id) == (range_.from_offset, range_.topic_id):
        return True
    if _is_committed(cursor, task):
        return False
    raise Fenced(
        f"{task}: the stored offset is {next_offset} (topic ID {topic_id}), not {range_.from_offset} "
        f"(topic ID {range_.topic_id}) as planned: another batch has moved it. Nothing of the range was "
        f"written; plan again.",
        batch_id=task.batch_id,
        **range_.place,
    )


def _of_this_plan(
    cursor: TaskCursor, task: RangeTask, statement: str, parameters: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return what the ledger has of the batch, after its plan_id. Raises BatchLost when another plan has its
    number: that batch may have a range that starts at the same offset and ends at another one."""
    cursor.execute(statement, parameters)
    rows = cursor.fetchall()
    if rows and rows[0][0] == task.plan_id:
        return tuple(rows[0][1:])
    (database, is_standby) = one_row(cursor, _SERVER, ())
    if is_standby:
        raise PostgresUnavailable(
            f"{task}: the server is a standby, which may not have received the batch yet. Let the connection "
            f"string name the primary (target_session_attrs=read-write).",
            batch_id=task.batch_id,
            **task.range.place,
        )
    raise batch_lost(task.batch_id, task.plan_id, rows[0][0] if rows else None, database)


def _superseded(task: RangeTask) -> Fenced:
    return Fenced(
        f"{task}: the batch was superseded by one that was planned later. Nothing of this range was written and "
        f"nothing is lost: the later batch continues at the stored offset. This batch needs no retry.",
        batch_id=task.batch_id,
        **task.range.place,
    )


def _expect(task: RangeTask, what: str, written: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    if written != expected:
        raise TasksFailed(
            f"{task}: {what}: the ledger stored {_rows(written)}, but the task wrote {_rows(expected)}. "
            f"Nothing of this range was written. Was the ledger changed by hand? `exactbatch audit` compares it "
            f"with the log.",
            batch_id=task.batch_id,
            **task.range.place,
        )


def _rows(counts: Sequence[int]) -> str:
    return f"{', '.join(map(str, counts))} rows"
