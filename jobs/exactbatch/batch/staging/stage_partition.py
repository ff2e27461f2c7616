"""Stage rows straight into the future partition of a target that is partitioned by batch."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg2
import pyarrow as pa

from exactbatch.batch.rows.copy import EncodedRows, copy_batches, copy_encoded, copy_in_turns
from exactbatch.batch.rows.decode import RangeReader, pause_garbage_collector
from exactbatch.batch.rows.rejected import REJECT_SCHEMA
from exactbatch.batch.rows.row_encoder import RowEncoder, row_encoder
from exactbatch.batch.staging.shares import Executors
from exactbatch.batch.staging.staged_splits import enter_split, entered_split
from exactbatch.batch.staging.staging_tables import identifier
from exactbatch.batch.staging.task import Staged, StagedBatch, StageTask
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, TargetMismatch
from exactbatch.errors.sqlstates import UNDEFINED_TABLE, is_refusal
from exactbatch.errors.translation import psycopg2_message
from exactbatch.failpoints import failpoint
from exactbatch.kafka.records import Int64s
from exactbatch.ledger import bind_transaction
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import PartitionStaging

_LINE: Final = re.compile(r"COPY [^,]+, line (\d+)")


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """A task whose rows go into the future partition. `columns` are the columns of the target, with its lineage."""

    stage: StageTask
    columns: tuple[Column, ...]
    pipeline: Pipeline

    @property
    def range(self) -> OffsetRange:
        """The range, or the split of one, that the task reads."""
        return self.stage.range


class PartitionStager:
    """The Stager of rows that become a partition of the target. `columns` are the columns of a row without its
    lineage."""

    def __init__(
        self, executors: Executors, pipeline: Pipeline, tasks: Sequence[StageTask], staging: PartitionStaging
    ) -> None:
        self._executors, self._limit = executors, pipeline.tuning.max_connections
        self._tasks = [PartitionTask(task, staging.columns, pipeline) for task in tasks]
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage(self) -> StagedBatch:
        """Stage every range; return what the task attempts did whose rows are in the future partition.

        Raises TasksFailed, and the terminal error of a task.
        """
        return StagedBatch.of(self._executors.run(self._tasks, stage_splits, limit=self._limit, verb="stage"))


def stage_splits(tasks: Sequence[PartitionTask], attempt: int) -> list[Staged | ExactbatchError]:
    """Stage splits one after the other, as stage_split() does each of them."""
    return [stage_split(task, attempt) for task in tasks]


def stage_split(task: PartitionTask, attempt: int) -> Staged | ExactbatchError:
    """Read, decode and copy one split, unless another attempt has done so; return what is in the table.

    Returns a terminal error, so that Spark does not retry what cannot succeed; raises a retryable one.
    """
    stage = task.stage
    constants = {"batch_id": stage.tables.batch_id}
    schema = pa.schema([(column.name, column.arrow_type) for column in task.columns])
    reader = RangeReader(stage, attempt, schema, constants)

    def copied() -> Staged:
        _copy(cursor, stage, reader, encoder)
        return Staged.read_by(reader, stage.range, attempt)

    try:
        encoder = row_encoder(stage, schema, constants)
        with (
            pause_garbage_collector(),
            stage.postgres.connection(where=f"{stage.range}, staging its rows") as connection,
            connection.cursor() as cursor,
        ):
            return _enter(cursor, task, copied)
    except ExactbatchError as error:
        if error.retryable:
            raise
        return error


def _enter(cursor: Cursor, task: PartitionTask, copied: Callable[[], Staged]) -> Staged:
    """Copy a split and enter it, unless another attempt has entered it; return what is in the table."""
    stage, connection = task.stage, cursor.connection
    earlier = entered_split(cursor, stage.tables, stage.range)
    connection.rollback()  # what follows may take long, and that query needs no longer transaction
    if earlier is None:
        bind_transaction(connection, task.pipeline)
        staged = copied()
        if enter_split(cursor, stage.tables, staged):
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")
            return staged
        connection.rollback()
        earlier = entered_split(cursor, stage.tables, stage.range)
    assert earlier is not None  # nothing deletes splits
    return earlier


def _copy(cursor: Cursor, stage: StageTask, reader: RangeReader, encoder: RowEncoder) -> None:
    """Copy rows and rejects of a split; the server's count of rows is checked."""

    def copy_rows(rows: Iterator[EncodedRows]) -> None:
        offsets = _OffsetsOfRows()
        try:
            copy_encoded(cursor, identifier(stage.tables.rows), encoder.names, offsets.noted(rows))
        except psycopg2.Error as error:
            _raise_refused(stage, error, offsets)
            raise

    def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
        copy_batches(cursor, identifier(stage.tables.rejects), REJECT_SCHEMA, iter(rejects))
        failpoint("stage.after_rejects")

    copy_in_turns(reader.encoded(encoder), reader.pending, copy_rows, copy_rejects)


class _OffsetsOfRows:
    """The offsets of the rows of one COPY, for the message about a row that Postgres refuses."""

    def __init__(self) -> None:
        self._offsets: list[Int64s] = []

    def noted(self, rows: Iterator[EncodedRows]) -> Iterator[EncodedRows]:
        """Yield rows, and note the offsets of their records."""
        for each in rows:
            self._offsets.append(each.offsets)
            yield each

    def of(self, row: int) -> int:
        """Return the offset of a row, which counts from 1."""
        return int(np.concatenate(self._offsets)[row - 1])


def _raise_refused(stage: StageTask, error: psycopg2.Error, offsets: _OffsetsOfRows) -> None:
    """Raise TargetMismatch if a constraint of the target refuses a row."""
    is_gone = error.pgcode == UNDEFINED_TABLE and stage.tables.rows in str(error)
    if is_gone or not is_refusal(error.pgcode):
        return
    line = _LINE.search(error.diag.context or "")
    offset = offsets.of(int(line[1])) if line else None
    range_ = stage.range
    where = f"{range_.topic}[{range_.partition}] offset {offset}" if offset is not None else str(range_)
    raise TargetMismatch(
        f"{where}: the target refuses what the batch writes: {psycopg2_message(error)} (SQLSTATE {error.pgcode}). "
        f"Nothing was written. Correct the target, or what the pipeline writes.",
        batch_id=stage.tables.batch_id,
        topic=range_.topic,
        partition=range_.partition,
        from_offset=range_.from_offset if offset is None else offset,
        until_offset=range_.until_offset if offset is None else offset + 1,
        sqlstate=error.pgcode,
    ) from error
