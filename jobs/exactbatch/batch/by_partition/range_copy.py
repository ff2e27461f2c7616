"""COPY one range straight into the target, for commit="partition", and check what has arrived."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from exactbatch.batch.by_partition.row_copy import DATABASE_ERRORS, ArrowCopy, RowCopy, row_copy
from exactbatch.batch.rows.arrow_copy import copy_in_turns
from exactbatch.batch.rows.binary_copy import Copied
from exactbatch.batch.rows.decode import Changes, RangeReader
from exactbatch.batch.rows.rejects import too_many_rejects
from exactbatch.batch.rows.watchdog import StallTimeout
from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.errors.sqlstates import is_refusal
from exactbatch.errors.translation import refusal_of
from exactbatch.failpoints import failpoint
from exactbatch.formats import Format, WithMessage, with_registry
from exactbatch.kafka.shared_reads import SharedReads
from exactbatch.ledger.partition_commit import BIND_TRANSACTION
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.catalog import (
    Fact,
    changes,
    check_copied_unaltered,
    check_kinds,
    triggers_of,
    unusual_facts_query,
)
from exactbatch.postgres.task_cursor import TaskCursor, one_row
from exactbatch.sinks.tables.lineage_table import LINEAGE
from exactbatch.sinks.tables.write_counts import WRITES_OF, WriteCounts

REJECTS: Final = "exactbatch_rejects"  # a temporary table, which INSERT_RANGE_REJECTS reads
_FACTS: Final = unusual_facts_query("$1")
# ADBC reports what it sent, not what has arrived; and counting in the target would read much of it.
_WRITES: Final = WRITES_OF.format("$1", "$1")


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range to commit. A Spark task's share has several of them, which travel in its closure, secrets included.

    `leader_epoch` is the epoch up to which the log was processed at the start of the range; `seen` is what
    unusual_facts() returned when the batch began; `cluster_id` is the Kafka cluster of the plan.
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
    slot_offsets: int = 0  # how many offsets of the batch each slot of Spark reads

    @property
    def key(self) -> tuple[int, str, int, int]:
        """The primary key of the range in exactbatch.batch_range."""
        return self.batch_id, self.range.topic, self.range.partition, self.range.from_offset

    @property
    def value(self) -> Format | WithMessage:
        """The pipeline's value format, connected to the schema registry if it needs one."""
        return with_registry(self.pipeline.value, self.kafka)

    @property
    def changes(self) -> Changes | None:
        """None: rows that are appended are not changes."""
        return None

    @property
    def max_rejects(self) -> int:
        """If max_rejects is a share, the most that there can be: a range has no more records than offsets."""
        return self.pipeline.rejects_allowed(len(self.range))

    @property
    def replace_unstorable(self) -> str | None:
        """The text in place of what Postgres cannot hold."""
        return self.pipeline.replace_unstorable

    @property
    def read_timeout(self) -> float:
        """Seconds without progress after which reading fails."""
        return self.pipeline.read_timeout

    def __str__(self) -> str:
        return f"batch {self.batch_id} of pipeline {self.pipeline.name!r}, {self.range}"


def range_reader(task: RangeTask, attempt: int, reads: SharedReads | None) -> tuple[RangeReader, RowCopy]:
    """Return a reader of the range whose rows have the columns of the target, and how they are copied.

    `reads` are those that the range shares with others, if it does.
    """
    columns = (*task.pipeline.value.columns, *LINEAGE)
    schema = pa.schema([(column.name, column.arrow_type) for column in columns])
    constants = {"batch_id": task.batch_id}
    reader = RangeReader(task, attempt, schema, constants, reads=reads)
    return reader, row_copy(task, reader, constants) if reads is None else ArrowCopy(schema)


def copy_range(
    cursor: TaskCursor, task: RangeTask, reader: RangeReader, copy: RowCopy, timeout: StallTimeout
) -> None:
    """COPY the rows of a range into the target, and check that they have arrived; rejects go into the temporary
    table REJECTS.

    Raises TooManyRejects, TargetMismatch when the target refuses rows, StagedRowsDiffer when it has changed
    since the batch began, and the errors of reading.
    """
    schema_name, table = task.pipeline.sink.tables[-1].name
    target = '"{}"."{}"'.format(*(part.replace('"', '""') for part in (schema_name, table)))
    one_row(cursor, BIND_TRANSACTION, (task.pipeline.name,))
    before = WriteCounts(*one_row(cursor, _WRITES, (target,)))
    sent = stored = 0

    def copy_rows(rows: Iterator[Any]) -> None:
        nonlocal sent, stored
        try:
            copied = copy.copy_rows(cursor, schema_name, table, rows)
        except DATABASE_ERRORS as error:
            _raise_refused(task, error)
            raise
        sent, stored = sent + copied.sent, stored + copied.stored

    def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
        copy.copy_rejects(cursor, REJECTS, rejects)
        failpoint("partition.after_rejects")

    copy_in_turns(timeout.watch(copy.rows(reader)), reader.pending, copy_rows, copy_rejects)
    _check_rejects(task, reader)
    facts = _check_seen(cursor, task, target)
    try:
        # Deferred triggers and constraints would act at the commit, after what has arrived was counted.
        copy.check_constraints(cursor)
    except DATABASE_ERRORS as error:
        _raise_refused(task, error)
        raise
    done = WriteCounts(*one_row(cursor, _WRITES, (target,))) - before
    _check_arrived(task, reader.rows, Copied(sent, stored), done)
    # Of a partition that was attached meanwhile, too.
    check_copied_unaltered(task.pipeline.sink.target, facts)


def _check_rejects(task: RangeTask, reader: RangeReader) -> None:
    """Raise TooManyRejects, with the first rejects, if there are more than the range may have."""
    if reader.rejects <= task.pipeline.rejects_allowed(reader.records):
        return
    raise too_many_rejects(
        task.pipeline,
        str(task),
        batch_id=task.batch_id,
        rejected=reader.rejects,
        records=reader.records,
        written=' in each range, with commit="partition". Nothing of this range was written; other ranges of the '
        "batch may have been committed.",
        first=reader.first,
    )


def _check_arrived(task: RangeTask, rows: int, copied: Copied, done: WriteCounts) -> None:
    """Raise TargetMismatch unless as many rows have arrived as were decoded and no other row was changed, and
    StagedRowsDiffer if the target was truncated or rewritten."""
    where = f"{task}, target {task.pipeline.sink.target}"
    triggers = triggers_of(task.seen)
    sent, stored = copied
    if not rows == sent == stored == done.inserted or done.updated or done.deleted:
        kept = "" if stored == sent else f", of which the COPY stored {stored}"
        raise TargetMismatch(
            f"{where}: {rows} rows were decoded and {sent} were sent{kept}, and Postgres counts {done} in the "
            f"target{f', because of {triggers}' if triggers else ''}. Nothing of this range was written. With "
            f"commit='partition' stored rows are not compared with written ones, so triggers may write into other "
            f"tables only. Drop the trigger that does this.",
            batch_id=task.batch_id,
            **task.range.place,
        )
    # It may have been another session's VACUUM FULL, just before the COPY: the retry shows which.
    if done.files and triggers:
        raise StagedRowsDiffer(
            f"{where}: a table of the target was truncated or rewritten while the range was copied. Nothing of "
            f"this range was written. If the retry fails in the same way, the cause is {triggers}: drop {triggers}.",
            batch_id=task.batch_id,
            **task.range.place,
        )


def _raise_refused(task: RangeTask, error: Exception) -> None:
    """Raise TargetMismatch if the target, its triggers or its constraints have refused what was written."""
    sqlstate, message = refusal_of(error)
    if is_refusal(sqlstate):
        raise TargetMismatch(
            f"{task}, target {task.pipeline.sink.target}: it refuses what the range writes: "
            f"{message} (SQLSTATE {sqlstate}). Nothing of this range was written. Correct the "
            f"target, or what the pipeline writes.",
            batch_id=task.batch_id,
            sqlstate=sqlstate,
            **task.range.place,
        ) from error


def _check_seen(cursor: TaskCursor, task: RangeTask, target: str) -> list[Fact]:
    """Return the facts about the target; raise StagedRowsDiffer if it was changed since the batch began.

    The rows that were copied into it keep others from changing it now.
    """
    sink = task.pipeline.sink
    cursor.execute(_FACTS, (target,))
    facts = [Fact(*row) for row in cursor.fetchall()]
    check_kinds(sink.target, facts)
    if changed := changes(task.seen, facts):
        raise StagedRowsDiffer(
            f"{task}, target {sink.target}: it was changed while the batch ran: {changed}. Nothing of this range "
            f"was written. The next try checks the target as it is then.",
            batch_id=task.batch_id,
            **task.range.place,
        )
    return facts
