"""Stage rows straight into the future partition of a target that is partitioned by batch."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg2
import pyarrow as pa
from adbc_driver_manager import Error as AdbcError

from exactbatch.batch.rows.arrow_copy import copy_batches, copy_in_turns, on_target_path
from exactbatch.batch.rows.binary_copy import EncodedRows, copy_encoded
from exactbatch.batch.rows.decode import RangeReader, pause_garbage_collector
from exactbatch.batch.rows.fast_path import encoder_for
from exactbatch.batch.rows.rejects import REJECT_SCHEMA
from exactbatch.batch.rows.watchdog import StallTimeout
from exactbatch.batch.staging.engine import Executors
from exactbatch.batch.staging.staged_pieces import Query, enter_piece, entered_piece
from exactbatch.batch.staging.staging_tables import SCHEMA, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch, StageTask
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.errors import ExactbatchError, StagedRowsDiffer, TargetMismatch
from exactbatch.errors.sqlstates import is_refusal
from exactbatch.errors.translation import adbc_detail, adbc_message
from exactbatch.failpoints import failpoint
from exactbatch.ledger.partition_commit import BIND_TRANSACTION
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor
from exactbatch.postgres.numbered import NumberedConnection
from exactbatch.postgres.task_cursor import one_row
from exactbatch.sinks.base import PartitionStaging
from exactbatch.sinks.tables.write_counts import WRITES_OF, WriteCounts

if TYPE_CHECKING:  # not imported by the driver: ADBC imports pandas
    from exactbatch.batch.rows.row_encoder import RowEncoder
    from exactbatch.postgres.arrow import ArrowConnection

# ADBC reports what it sent, not what has arrived.
_WRITES: Final = WRITES_OF.format("$1", "$1")
_LINE: Final = re.compile(r"COPY [^,]+, line (\d+)")


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """A task whose rows go into the future partition. `columns` are those of the target, with its lineage; `pipeline`
    is the name of the pipeline."""

    stage: StageTask
    columns: tuple[Column, ...]
    pipeline: str

    @property
    def range(self) -> OffsetRange:
        """The range, or the piece of one, that the task reads."""
        return self.stage.range

    @property
    def names_records(self) -> bool:
        """True if each row names the record that it comes from."""
        return {column.name for column in self.columns}.issuperset(LINEAGE_NAMES)


class PartitionStager:
    """The Stager of rows that become a partition of the target. `columns` are those of a row without its lineage."""

    def __init__(
        self, executors: Executors, pipeline: Pipeline, tasks: Sequence[StageTask], staging: PartitionStaging
    ) -> None:
        self._executors, self._limit = executors, pipeline.max_connections
        self._tasks = [PartitionTask(task, staging.columns, pipeline.name) for task in tasks]
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage(self) -> StagedBatch:
        """Stage every range; return what the task attempts did whose rows are in the future partition.

        Raises TasksFailed, and the terminal error of a task.
        """
        return StagedBatch.of(self._executors.run(self._tasks, stage_pieces, limit=self._limit, verb="stage"))


def stage_pieces(tasks: Sequence[PartitionTask], attempt: int) -> list[Staged | ExactbatchError]:
    """Stage pieces one after the other, as stage_piece() does each of them."""
    return [stage_piece(task, attempt) for task in tasks]


def stage_piece(task: PartitionTask, attempt: int) -> Staged | ExactbatchError:
    """Read, decode and copy one piece, unless another attempt has done so; return what is in the table.

    Returns a terminal error, so that Spark does not retry what cannot succeed; raises a retryable one.
    """
    try:
        with pause_garbage_collector():
            # Rows are sent by offset only without compiled code: a refusal is repeated, to name the record.
            return _stage_encoded(task, attempt) or _stage_batches(task, attempt)
    except ExactbatchError as error:
        if error.retryable:
            raise
        return error


def _stage_batches(task: PartitionTask, attempt: int) -> Staged:
    """Stage a piece as Arrow batches, which ADBC encodes."""
    stage = task.stage
    outcomes: list[Staged] = []

    def copy(connection: "ArrowConnection", timeout: StallTimeout) -> None:
        def query(statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return [tuple(row) for row in cursor.fetchall()]

        outcomes.append(
            _enter(connection, query, task, lambda: _copy_batches(connection, task, attempt, timeout))
        )

    stage.postgres.run(copy, where=f"{stage.range}, staging its rows")
    return outcomes[-1]


def _stage_encoded(task: PartitionTask, attempt: int) -> Staged | None:
    """Stage a piece as rows that compiled code encodes; None if none is available or the target refuses a row."""
    stage = task.stage
    reader = _reader(task, attempt)
    encoder = encoder_for(stage, reader.schema, _constants(task)) if task.names_records else None
    if encoder is None:
        return None
    outcomes: list[Staged] = []

    def copy(connection: Connection, timeout: StallTimeout) -> None:
        def query(statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
            with NumberedConnection(connection).cursor() as cursor:
                cursor.execute(statement, parameters)
                return cursor.fetchall()

        def copied() -> Staged:
            with connection.cursor() as cursor:
                _copy_encoded(cursor, stage, reader, encoder, timeout)
            return Staged.read_by(reader, stage.range, attempt)

        try:
            outcomes.append(_enter(connection, query, task, copied))
        except psycopg2.Error as error:
            if not is_refusal(error.pgcode):
                raise
            connection.rollback()

    stage.postgres.run_encoded(copy, where=f"{stage.range}, staging its rows")
    return outcomes[-1] if outcomes else None


def _enter(
    connection: "ArrowConnection | Connection",
    query: Query,
    task: PartitionTask,
    copied: Callable[[], Staged],
) -> Staged:
    """Copy a piece and enter it, unless another attempt has entered it; return what is in the table."""
    stage = task.stage
    earlier = entered_piece(query, stage.tables, stage.range)
    connection.rollback()  # what follows may take long, and that query needs no longer transaction
    if earlier is None:
        query(BIND_TRANSACTION, (task.pipeline,))
        staged = copied()
        if enter_piece(query, stage.tables, staged):
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")
            return staged
        connection.rollback()
        earlier = entered_piece(query, stage.tables, stage.range)
    assert earlier is not None  # nothing deletes pieces
    return earlier


def _copy_encoded(
    cursor: Cursor, stage: StageTask, reader: RangeReader, encoder: "RowEncoder", timeout: StallTimeout
) -> None:
    """Copy encoded rows, and rejects, of a piece; the server's count of rows is checked."""

    def copy_rows(rows: Iterator[EncodedRows]) -> None:
        copy_encoded(cursor, identifier(stage.tables.rows), encoder.schema.names, rows)

    def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
        table = identifier(stage.tables.rejects)
        copy_encoded(cursor, table, REJECT_SCHEMA.names, map(encoder.encode_rejects, rejects))
        failpoint("stage.after_rejects")

    copy_in_turns(timeout.watch(reader.encoded(encoder)), reader.pending, copy_rows, copy_rejects)


def _copy_batches(
    connection: "ArrowConnection", task: PartitionTask, attempt: int, timeout: StallTimeout
) -> Staged:
    """Copy rows and rejects of a piece, and check that they have arrived."""
    stage, reader = task.stage, _reader(task, attempt)
    table = f'"{SCHEMA}"."{stage.tables.rows}"'
    sent = 0

    with connection.cursor() as cursor:
        before = WriteCounts(*one_row(cursor, _WRITES, (table,)))

        def copy_rows(batches: Iterator[pa.RecordBatch]) -> None:
            nonlocal sent
            offsets = _OffsetsOfRows()
            try:
                with on_target_path(cursor):
                    sent += copy_batches(
                        cursor,
                        stage.tables.rows,
                        reader.schema,
                        offsets.noted(batches),
                        mode="append",
                        db_schema_name=SCHEMA,
                    )
            except AdbcError as error:
                _raise_refused(stage, error, offsets)
                raise

        def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
            copy_batches(
                cursor,
                stage.tables.rejects,
                REJECT_SCHEMA,
                iter(rejects),
                mode="append",
                db_schema_name=SCHEMA,
            )
            failpoint("stage.after_rejects")

        copy_in_turns(timeout.watch(reader.batches()), reader.pending, copy_rows, copy_rejects)
        done = WriteCounts(*one_row(cursor, _WRITES, (table,))) - before
    # Reading ends once there are too many rejects: the batch has then failed.
    is_complete = reader.rejects <= stage.max_rejects
    if is_complete and not (reader.rows == sent and done.is_insert_of(reader.rows)):
        raise StagedRowsDiffer(
            f"{stage.range}: {reader.rows} rows were decoded and {sent} were sent, and Postgres counts {done}. "
            f"Nothing was written; the retry reads the same range again.",
            batch_id=stage.tables.batch_id,
            **stage.range.place,
        )
    return Staged.read_by(reader, stage.range, attempt)


def _reader(task: PartitionTask, attempt: int) -> RangeReader:
    """Return a reader of the piece whose rows have the columns of the target."""
    schema = pa.schema([(column.name, column.arrow_type) for column in task.columns])
    return RangeReader(task.stage, attempt, schema, _constants(task))


def _constants(task: PartitionTask) -> dict[str, int]:
    return {"batch_id": task.stage.tables.batch_id}


class _OffsetsOfRows:
    """The offsets of the rows of one COPY, for the message about a row that Postgres refuses."""

    def __init__(self) -> None:
        # The number of rows up to the end of a batch, its offsets, and the first of them if they are contiguous.
        self._batches: list[tuple[int, pa.Array | None, int]] = []

    def noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, and note their offsets if they have them."""
        rows = 0
        for batch in batches:
            if len(batch) and "kafka_offset" in batch.schema.names:
                rows += len(batch)
                offsets = batch.column("kafka_offset")
                first, last = offsets[0].as_py(), offsets[-1].as_py()
                is_contiguous = last - first + 1 == len(batch)
                self._batches.append((rows, None if is_contiguous else offsets, first))
            yield batch

    def of(self, row: int) -> int | None:
        """Return the offset of a row, which counts from 1; None if rows have none."""
        start = 0
        for end, offsets, first in self._batches:
            if row <= end:
                index = row - start - 1
                return int(first + index if offsets is None else offsets[index].as_py())
            start = end
        return None


def _raise_refused(stage: StageTask, error: AdbcError, offsets: _OffsetsOfRows) -> None:
    """Raise TargetMismatch if a constraint of the target refuses a row."""
    if not is_refusal(error.sqlstate):
        return
    line = _LINE.search(adbc_detail(error, "CONTEXT"))
    offset = offsets.of(int(line[1])) if line else None
    range_ = stage.range
    where = f"{range_.topic}[{range_.partition}] offset {offset}" if offset is not None else str(range_)
    raise TargetMismatch(
        f"{where}: the target refuses what the batch writes: {adbc_message(error)} (SQLSTATE {error.sqlstate}). "
        f"Nothing was written. Correct the target, or what the pipeline writes.",
        batch_id=stage.tables.batch_id,
        topic=range_.topic,
        partition=range_.partition,
        from_offset=range_.from_offset if offset is None else offset,
        until_offset=range_.until_offset if offset is None else offset + 1,
        sqlstate=error.sqlstate,
    ) from error
