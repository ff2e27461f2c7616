"""Read, decode and stage: the work of Spark tasks on executors; each task does it for its range in one pass."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg2
import pyarrow as pa

from exactbatch.batch.rows.copy import PostgresAccess, copy_batches, copy_encoded, copy_in_turns
from exactbatch.batch.rows.decode import RangeReader, pause_garbage_collector, shared_reads
from exactbatch.batch.rows.rejected import REJECT_SCHEMA, PendingRejects
from exactbatch.batch.rows.row_encoder import RowEncoder, decoder_for, row_encoder
from exactbatch.batch.staging.shares import Executors, count_spark_tasks
from exactbatch.batch.staging.staging_tables import (
    LINEAGE_SCHEMA,
    StagingTables,
    decoded_schema,
    identifier,
    row_schema,
)
from exactbatch.batch.staging.task import Staged, StagedBatch, StageTask
from exactbatch.batch.staging.transformed_rows import RecordsOfRows, keep_storable_rows, raise_refused_value
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError
from exactbatch.failpoints import failpoint
from exactbatch.kafka.reader import SharedReads
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection


def stage(tasks: Sequence[StageTask], attempt: int) -> list[Staged | ExactbatchError]:
    """Read, decode and stage the ranges of some tasks of a batch, in one pass and one transaction.

    Returns a terminal error alone, so that Spark does not retry what cannot succeed; raises a retryable one. Reading
    a range stops once it has more rejects than the batch may have: the batch has then failed.
    """
    schema, constants = row_schema(tasks[0].columns), {"task_attempt": attempt}
    reads, pending = shared_reads(tasks), PendingRejects()
    readers = [RangeReader(task, attempt, schema, constants, reads=reads, pending=pending) for task in tasks]
    try:
        encoder = row_encoder(
            tasks[0], schema, constants, tasks[0].tables.checked, shares_reads=reads is not None
        )
        with pause_garbage_collector():
            _stage(tasks, readers, encoder, pending)
    except Exception as error:
        return [_terminal(error)]
    return [Staged.read_by(reader, task.range, attempt) for task, reader in zip(tasks, readers, strict=True)]


def _stage(
    tasks: Sequence[StageTask], readers: Sequence[RangeReader], encoder: RowEncoder, pending: PendingRejects
) -> None:
    """Stage the rows of all readers, and their pending rejects."""
    tables = tasks[0].tables
    others = f" and {len(tasks) - 1} other ranges" if len(tasks) > 1 else ""
    with tasks[0].postgres.connection(where=f"{tasks[0].range}{others}, staging its rows") as connection:
        with connection.cursor() as cursor:

            def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
                copy_batches(cursor, identifier(tables.rejects), REJECT_SCHEMA, iter(rejects))
                failpoint("stage.after_rejects")

            copy_in_turns(
                (rows for reader in readers for rows in reader.encoded(encoder)),
                pending,
                lambda rows: copy_encoded(cursor, identifier(tables.rows), encoder.names, rows),
                copy_rejects,
            )
        failpoint("stage.before_copy_commit")
        connection.commit()
        failpoint("stage.after_copy_commit")


def decode_range(
    task: StageTask,
    attempt: int,
    keep: Callable[[list[pa.RecordBatch]], None] | None = None,
    reads: SharedReads | None = None,
) -> Iterator[pa.RecordBatch | Staged | ExactbatchError]:
    """Read and decode one range, for a transform, and stage its rejects, or hand them to `keep`.

    `reads` are those that the range shares with others, if it does.

    Yields the rows, with the columns of decoded_schema(), and then what was done; or, last, a terminal error.
    """
    try:
        decoder = decoder_for(task, shares_reads=reads is not None)
        reader = RangeReader(task, attempt, decoded_schema(task.columns), {}, reads=reads, decoder=decoder)

        def copy_rejects() -> None:
            if not (rejects := reader.pending.take()):
                return
            if keep is not None:
                keep(rejects)
                return
            stage_rejects(task.postgres, task.tables, rejects)
            failpoint("stage.after_rejects")

        with pause_garbage_collector():
            for batch in reader.batches():
                if reader.pending.is_full:
                    copy_rejects()
                yield batch
            copy_rejects()
    except ExactbatchError as error:
        if error.retryable:
            raise
        yield error
        return
    yield Staged.read_by(reader, task.range, attempt)


def stage_rejects(postgres: PostgresAccess, tables: StagingTables, rejects: Iterable[pa.RecordBatch]) -> None:
    """Stage rejected records, on an executor or the driver. Raises the errors of PostgresAccess.connection()."""
    with postgres.connection(where=f"batch {tables.batch_id}, staging rejected records") as connection:
        with connection.cursor() as cursor:
            copy_batches(cursor, identifier(tables.rejects), REJECT_SCHEMA, iter(rejects))
        connection.commit()


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    tables: StagingTables,
    postgres: PostgresAccess,
    columns: Sequence[Column],
    attempt: int,
    *,
    rejects: Callable[[], Iterator[pa.RecordBatch] | None] | None = None,
    place: TopicPartition | None = None,
) -> int | ExactbatchError:
    """Stage the rows of a transform, with their lineage if they carry it; return how many.

    `place` is the partition of all rows, if their lineage has only the offset. `rejects` is called after the last row,
    and returns rejects to stage as well.

    Leaves out a row that Postgres cannot store, and notes its record as one to reject. If rows do not carry their
    record, or if Postgres itself refuses a value, that is TransformFailed. Returns a terminal error, and raises a
    retryable one.
    """
    schema = row_schema(columns)
    constants: dict[str, Any] = {"task_attempt": attempt}
    if place is not None:
        constants |= zip(("kafka_topic", "kafka_partition"), place, strict=True)
    notes, records = PendingRejects(), RecordsOfRows()
    count = 0

    def storable() -> Generator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            rows = keep_storable_rows(
                _completed(batch, schema, constants), batch.schema.names, notes, attempt, constants
            )
            count += len(rows)
            records.add(rows)
            yield rows

    def copy(connection: Connection) -> None:
        with connection.cursor() as cursor:

            def copy_rows(rows: Iterator[pa.RecordBatch]) -> None:
                records.begin()
                try:
                    copy_batches(cursor, identifier(tables.rows), schema, rows)
                except psycopg2.DataError as error:
                    raise_refused_value(error, records)
                    raise

            def copy_rejects(noted: Iterable[pa.RecordBatch]) -> None:
                copy_batches(cursor, identifier(tables.rejects), REJECT_SCHEMA, iter(noted))

            copy_in_turns(storable(), notes, copy_rows, copy_rejects)
            if rejects is not None and (read := rejects()) is not None:
                copy_rejects(read)
                failpoint("stage.after_rejects")
        failpoint("stage.before_copy_commit")
        connection.commit()
        failpoint("stage.after_copy_commit")

    where = f"batch {tables.batch_id}, staging rows of the transform"
    try:
        with pause_garbage_collector(), postgres.connection(where=where) as connection:
            copy(connection)
    except Exception as error:
        return _terminal(error)
    return count


def stage_lineage(
    batches: Iterable[pa.RecordBatch], tables: StagingTables, postgres: PostgresAccess, attempt: int
) -> None:
    """Stage which records were decoded, from batches with the columns LINEAGE_NAMES. Raises the errors of
    PostgresAccess.connection()."""
    completed = (_completed(batch, LINEAGE_SCHEMA, {"task_attempt": attempt}) for batch in batches)
    where = f"batch {tables.batch_id}, staging the lineage of decoded records"
    with postgres.connection(where=where) as connection:
        with connection.cursor() as cursor:
            copy_batches(cursor, identifier(tables.lineage), LINEAGE_SCHEMA, completed)
        connection.commit()


def _terminal(error: Exception) -> ExactbatchError:
    """Return a terminal error, for the driver; raise any other again."""
    if isinstance(error, ExactbatchError) and not error.retryable:
        return error
    raise error


def _completed(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch with the columns of the schema: the constants, the batch's own, and nulls for the others."""
    rows, own = len(batch), set(batch.schema.names)

    def column(field: pa.Field) -> pa.Array:
        if field.name in constants:
            return pa.repeat(pa.scalar(constants[field.name], field.type), rows)
        return batch.column(field.name).cast(field.type) if field.name in own else pa.nulls(rows, field.type)

    return pa.RecordBatch.from_arrays(list(map(column, schema)), schema=schema)


class DirectStager:
    """The Stager of a pipeline without a transform."""

    def __init__(self, executors: Executors, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        self._executors, self._tasks = executors, tasks
        self._limit = count_spark_tasks(tasks, pipeline.tuning.max_connections, executors.parallelism)
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage_into(self, tables: StagingTables) -> None:
        """Let all tasks stage into these tables, from now on."""
        self._tasks = [replace(task, tables=tables) for task in self._tasks]

    def stage(self) -> StagedBatch:
        """See Stager. Raises TasksFailed, and the terminal error of a task."""
        return StagedBatch.of(self._executors.run(self._tasks, stage, limit=self._limit, verb="stage"))
