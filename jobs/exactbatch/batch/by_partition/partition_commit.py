"""commit="partition": each range of an advance in a separate transaction, on the executor that reads it.

Rows go by COPY straight into the target. In the same transaction the stored offset moves, and coverage,
rejects and counts are written: a range is committed when its batch_range has counts. The transaction locks
the batch, shared, and then the stored offset of its partition, never the pipeline; so ranges do not wait
for each other, and a newer plan waits for the ranges that are about to commit and supersedes the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg2 import sql

from exactbatch.batch.by_partition.range_copy import REJECTS, RangeCopy, RangeTask
from exactbatch.batch.publishing.fences import check_publishable, check_topic_ids, lock_target
from exactbatch.batch.publishing.insert_rows import check_staged, insert_rows
from exactbatch.batch.publishing.publish import Published, StageTimes, let_search
from exactbatch.batch.rows.copy import PostgresAccess
from exactbatch.batch.rows.decode import pause_garbage_collector, shared_reads
from exactbatch.batch.staging.outcomes import declare_outcome
from exactbatch.batch.staging.staging_tables import INTACT, StagingTables, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, Fenced, StagedRowsDiffer, TasksFailed
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import SharedReads
from exactbatch.ledger import Batch, Ledger, RangeCommits, target_transaction
from exactbatch.model import Fingerprint
from exactbatch.pipeline import Pipeline
from exactbatch.planning.known_records import check_known_ranges
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks.writers import find_writer


@declare_outcome
@dataclass(frozen=True, slots=True)
class Committed:
    """What a task attempt did for a range that is committed now: it read `records`, none if another attempt had
    committed the range before. Compiled code took `fast_count` of them, which does not matter for the result."""

    records: int
    fast_count: int = field(default=0, compare=False)


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
    postgres = PostgresAccess(task.postgres, pipeline.tuning.lock_seconds, pipeline.tuning.statement_seconds)
    try:
        with pause_garbage_collector():
            copy = RangeCopy(task, attempt, reads)
            with postgres.connection(where=str(task)) as connection:
                _commit(connection, task, attempt, copy)
    except ExactbatchError as error:
        if error.retryable and not isinstance(error, StagedRowsDiffer):
            raise
        return error
    return Committed(copy.reader.records, copy.reader.fast_count)


def commit_batch(
    connection: Connection,
    pipeline: Pipeline,
    batch_id: int,
    plan_id: UUID,
    times: StageTimes | None = None,
    fingerprints: Sequence[Fingerprint] = (),
) -> Published:
    """Mark a batch committed, all of whose ranges are, with the sums of their counts and the stages of the launch.

    `fingerprints` are records at the ends of its ranges.

    Raises Fenced when it was superseded, BatchLost when another plan has its number, and TasksFailed, retryable,
    when a range is not committed.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.lock(pipeline)
        batch = ledger.batches.read(batch_id, plan_id, lock="change")
        check_publishable(ledger, pipeline, batch)
        if batch.status == "committed":
            return Published(batch, wrote=False)
        if uncommitted := ledger.batches.read_uncommitted_ranges(batch_id):
            raise TasksFailed(
                f"batch {batch_id} of pipeline {pipeline.name!r}: these ranges are not committed: "
                f"{', '.join(map(str, uncommitted))}. Try again: the next try processes them.",
                batch_id=batch_id,
            )
        ledger.fingerprints.add(pipeline.name, fingerprints)
        ledger.batches.mark_committed_by_ranges(batch, times.milliseconds() if times is not None else {})
        failpoint("partition.before_batch_commit")
    failpoint("partition.after_batch_commit")
    with transaction(connection):
        return Published(ledger.batches.read(batch_id, plan_id), wrote=True)


def _commit(connection: Connection, task: RangeTask, attempt: int, copy: RangeCopy) -> None:
    """Commit the range. If it turns out to be committed already, return without a commit and so without a
    trace."""
    if _is_committed(connection, task):
        return
    connection.rollback()  # that query needs no longer transaction: what follows may take long
    with connection.cursor() as cursor:
        copy.copy(cursor)
        # Asked after the last record was read: if the id is the plan's now, it was all along.
        broker = KafkaBroker(task.kafka)
        check_topic_ids([task.range], broker.topic_ids([task.range.topic]))
        check_known_ranges(broker, [task.range], task.known)
        staged = StagedBatch.of([Staged.read_by(copy.reader, task.range, attempt)])
        if not _account(connection, task, staged, copy.reader.rows, REJECTS):
            return
        if staged.rejected:
            cursor.execute(sql.SQL("drop table {}").format(REJECTS))
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
    writer = find_writer(pipeline.traits)
    with target_transaction(connection, pipeline) as cursor:
        let_search(cursor, may_reject)
        lock_target(cursor, writer, task.seen)
        rows = insert_rows(cursor, writer, tables, staged, columns)
        check_staged(cursor, tables.batch_id, tables.rejects, {**staged.rejects, INTACT: 1})
        if not _account(connection, task, staged, rows, identifier(tables.rejects)):
            connection.rollback()
    failpoint("partition.after_commit")


def _account(
    connection: Connection, task: RangeTask, staged: StagedBatch, rows: int, rejects: sql.Composable
) -> bool:
    """Lock the range, insert its rejects, and write coverage, counts and the stored offset. `rows` are those that the
    range has given. Return False, and write nothing, if it turns out to be committed already."""
    failpoint("partition.before_locks")
    ledger = Ledger(connection)
    batch = ledger.batches.read(task.batch_id, task.plan_id, lock="share")
    if not _lock(connection, task, batch):
        return False
    failpoint("partition.after_locks")
    if staged.rejected:
        inserted = ledger.rejects.insert(batch, rejects, staged.attempts)
        _expect(task, "rejected records", (inserted,), (staged.rejected,))
    written = RangeCommits(connection).account(
        batch,
        task.range,
        records=staged.records,
        rows=rows,
        rejected=staged.rejected,
        tombstones=staged.tombstones,
        replaced=staged.replaced,
    )
    _expect(task, "coverage, counts and stored offset", written, (1, 1, 1))
    failpoint("partition.before_commit")
    return True


def _is_committed(connection: Connection, task: RangeTask) -> bool:
    """True if this batch has committed the range. Raises Fenced when the batch is superseded, and BatchLost when
    another plan has its number: that batch may have a range that starts at the same offset and ends at another one."""
    if Ledger(connection).batches.read(task.batch_id, task.plan_id).status == "superseded":
        raise _superseded(task)
    return RangeCommits(connection).is_committed(task.batch_id, task.range)


def _lock(connection: Connection, task: RangeTask, batch: Batch) -> bool:
    """Lock the stored offset, as the plan found it, until the commit; the batch is locked already.

    Returns False when another attempt has committed the range. Raises Fenced when the batch may not commit.
    """
    if batch.status == "superseded":
        raise _superseded(task)
    range_, commits = task.range, RangeCommits(connection)
    next_offset, topic_id = commits.lock_stored_offset(batch.pipeline, range_)
    if (next_offset, topic_id) == (range_.from_offset, range_.topic_id):
        return True
    if commits.is_committed(task.batch_id, range_):
        return False
    raise Fenced(
        f"{task}: the stored offset is {next_offset} (topic ID {topic_id}), not {range_.from_offset} "
        f"(topic ID {range_.topic_id}) as planned: another batch has moved it. Nothing of the range was "
        f"written; plan again.",
        batch_id=task.batch_id,
        **range_.place,
    )


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
