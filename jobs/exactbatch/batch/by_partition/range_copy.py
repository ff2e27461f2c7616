"""COPY one range straight into the target, for commit="partition", and check what has arrived."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from exactbatch.batch.rows.copy import Copied, EncodedRows, copy_batches, copy_in_turns, send_encoded
from exactbatch.batch.rows.decode import Changes, RangeReader
from exactbatch.batch.rows.rejected import REJECT_SCHEMA, too_many_rejects
from exactbatch.batch.rows.row_encoder import row_encoder
from exactbatch.batch.staging.staging_tables import definitions
from exactbatch.columns import LINEAGE
from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.errors.sqlstates import is_refusal
from exactbatch.errors.translation import psycopg2_message
from exactbatch.failpoints import failpoint
from exactbatch.formats import Format
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.kafka.reader import SharedReads
from exactbatch.ledger import bind_transaction
from exactbatch.model import Fingerprint
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.catalog import Fact, changes, check_copied_unaltered, check_kinds, name_triggers
from exactbatch.postgres.connection import CHECK_CONSTRAINTS, Cursor
from exactbatch.sinks.tables.counted_writes import WriteCounts, count_writes
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.writers import find_writer

REJECTS: Final = sql.Identifier("pg_temp", "exactbatch_rejects")


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
    known: tuple[Fingerprint, ...] = field(default=(), repr=False)  # of its partition, if its topic has no ID

    @property
    def value(self) -> Format:
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
        return self.pipeline.tuning.read_seconds

    def __str__(self) -> str:
        return f"batch {self.batch_id} of pipeline {self.pipeline.name!r}, {self.range}"


class RangeCopy:
    """Copies the rows of one range into the target, and its rejects into the temporary table REJECTS."""

    def __init__(self, task: RangeTask, attempt: int, reads: SharedReads | None) -> None:
        """`reads` are those that the range shares with others, if it does."""
        columns = (*task.pipeline.value.columns, *LINEAGE)
        schema = pa.schema([(column.name, column.arrow_type) for column in columns])
        constants = {"batch_id": task.batch_id}
        self._task = task
        self.reader = RangeReader(task, attempt, schema, constants, reads=reads)
        self._encoder = row_encoder(task, schema, constants, shares_reads=reads is not None)

    def copy(self, cursor: Cursor) -> None:
        """COPY rows and rejects, and check that the rows have arrived.

        Raises TooManyRejects, TargetMismatch when the target refuses rows, StagedRowsDiffer when it has changed
        since the batch began, and the errors of reading.
        """
        task, target = self._task, find_writer(self._task.pipeline.traits).tables[-1]
        bind_transaction(cursor.connection, task.pipeline)
        before = count_writes(cursor, target)
        sent = stored = 0
        has_rejects = False

        def copy_rows(rows: Iterator[EncodedRows]) -> None:
            nonlocal sent, stored
            copied = send_encoded(cursor, target.identifier, self._encoder.names, rows)
            sent, stored = sent + copied.sent, stored + copied.stored

        def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
            nonlocal has_rejects
            if not has_rejects:
                has_rejects = True
                cursor.execute(sql.SQL("create table {} ({})").format(REJECTS, definitions(REJECT_SCHEMA)))
            copy_batches(cursor, REJECTS, REJECT_SCHEMA, iter(rejects))
            failpoint("partition.after_rejects")

        with _refusals(task):
            copy_in_turns(
                self.reader.encoded(self._encoder),
                self.reader.pending,
                copy_rows,
                copy_rejects,
            )
        _check_rejects(task, self.reader)
        facts = _check_seen(cursor, task, target)
        with _refusals(task):
            # Deferred triggers and constraints would act at the commit, after what has arrived was counted.
            cursor.execute(CHECK_CONSTRAINTS)
        _check_arrived(task, self.reader.rows, Copied(sent, stored), count_writes(cursor, target) - before)
        # Of a partition that was attached meanwhile, too.
        check_copied_unaltered(task.pipeline.traits.target, facts)


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
    where = f"{task}, target {task.pipeline.traits.target}"
    triggers = name_triggers(task.seen)
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


@contextmanager
def _refusals(task: RangeTask) -> Iterator[None]:
    """Raise TargetMismatch if the target, its triggers or its constraints refuse what is written in the block."""
    try:
        yield
    except psycopg2.Error as error:
        if not is_refusal(error.pgcode):
            raise
        raise TargetMismatch(
            f"{task}, target {task.pipeline.traits.target}: it refuses what the range writes: "
            f"{psycopg2_message(error)} (SQLSTATE {error.pgcode}). Nothing of this range was written. Correct the "
            f"target, or what the pipeline writes.",
            batch_id=task.batch_id,
            sqlstate=error.pgcode,
            **task.range.place,
        ) from error


def _check_seen(cursor: Cursor, task: RangeTask, target: TargetTable) -> Sequence[Fact]:
    """Return the facts about the target; raise StagedRowsDiffer if it was changed since the batch began.

    The rows that were copied into it keep others from changing it now.
    """
    facts = target.unusual_facts(cursor)
    check_kinds(target.spec, facts)
    if changed := changes(task.seen, facts):
        raise StagedRowsDiffer(
            f"{task}, target {target.spec}: it was changed while the batch ran: {changed}. Nothing of this range "
            f"was written. The next try checks the target as it is then.",
            batch_id=task.batch_id,
            **task.range.place,
        )
    return facts
