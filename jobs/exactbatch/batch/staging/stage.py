"""Read, decode and stage: the work of Spark tasks, on executors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import psycopg2
import pyarrow as pa
from adbc_driver_manager import Error as AdbcError

from exactbatch.batch.rows.arrow_copy import PostgresAccess, copy_batches, copy_in_turns
from exactbatch.batch.rows.binary_copy import EncodedRows, copy_encoded
from exactbatch.batch.rows.decode import RangeReader, pause_garbage_collector, shared_reads
from exactbatch.batch.rows.fast_path import Packing, decoder_for, encoder_for, encodes
from exactbatch.batch.rows.rejects import REJECT_SCHEMA, PendingRejects
from exactbatch.batch.rows.watchdog import StallTimeout
from exactbatch.batch.staging.staging_tables import (
    LINEAGE_SCHEMA,
    SCHEMA,
    StagingTables,
    decoded_schema,
    identifier,
    row_schema,
)
from exactbatch.batch.staging.storable_rows import RecordsOfRows, raise_refused_value, storable_rows
from exactbatch.batch.staging.task import Staged, StageTask
from exactbatch.columns import Column
from exactbatch.compiled.availability import unavailable
from exactbatch.compiled.row_formats import PACKED, PACKED_TYPE
from exactbatch.errors import ExactbatchError, TasksFailed
from exactbatch.failpoints import failpoint
from exactbatch.kafka.shared_reads import SharedReads
from exactbatch.offsets import TopicPartition
from exactbatch.postgres.connection import Connection

if TYPE_CHECKING:
    from exactbatch.batch.rows.row_encoder import RowEncoder
    from exactbatch.postgres.arrow import ArrowConnection  # not imported by the driver: ADBC imports pandas

_PACKED_FIELD: Final = pa.field(PACKED, PACKED_TYPE)
# Of a connection of ADBC or psycopg2: the table, its columns and the rows to copy.
_CopyInto = Callable[[Any, str, pa.Schema, Iterator[pa.RecordBatch]], None]


def stage(tasks: Sequence[StageTask], attempt: int) -> list[Staged | ExactbatchError]:
    """Read, decode and stage the ranges of some tasks of a batch, in one pass and one transaction.

    Returns a terminal error alone, so that Spark does not retry what cannot succeed; raises a retryable one. Reading
    a range stops once it has more rejects than the batch may have: the batch has then failed.
    """
    schema, constants = row_schema(tasks[0].columns), {"task_attempt": attempt}
    reads, pending = shared_reads(tasks), PendingRejects()
    readers = [RangeReader(task, attempt, schema, constants, reads=reads, pending=pending) for task in tasks]
    try:
        encoder = (
            encoder_for(tasks[0], schema, constants, tasks[0].tables.checked) if len(tasks) == 1 else None
        )
        with pause_garbage_collector():
            if encoder is None:
                _stage_batches(tasks, readers, pending)
            else:
                _stage_encoded(tasks[0], readers[0], encoder)
    except Exception as error:
        return [_terminal(error)]
    return [Staged.read_by(reader, task.range, attempt) for task, reader in zip(tasks, readers, strict=True)]


def _stage_batches(
    tasks: Sequence[StageTask], readers: Sequence[RangeReader], pending: PendingRejects
) -> None:
    """Stage Arrow batches, which ADBC encodes, and the pending rejects of all readers."""
    tables, schema = tasks[0].tables, readers[0].schema

    def copy(connection: "ArrowConnection", timeout: StallTimeout) -> None:
        def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
            _copy(connection, tables.rejects, REJECT_SCHEMA, iter(rejects))
            failpoint("stage.after_rejects")

        copy_in_turns(
            timeout.watch(batch for reader in readers for batch in reader.batches()),
            pending,
            lambda rows: _copy(connection, tables.rows, schema, rows),
            copy_rejects,
        )
        failpoint("stage.before_copy_commit")
        connection.commit()
        failpoint("stage.after_copy_commit")

    others = f" and {len(tasks) - 1} other ranges" if len(tasks) > 1 else ""
    tasks[0].postgres.run(copy, where=f"{tasks[0].range}{others}, staging its rows")


def _stage_encoded(task: StageTask, reader: RangeReader, encoder: "RowEncoder") -> None:
    """Stage rows that compiled code encodes."""

    def copy(connection: Connection, timeout: StallTimeout) -> None:
        with connection.cursor() as cursor:

            def copy_rows(rows: Iterator[EncodedRows]) -> None:
                copy_encoded(cursor, identifier(task.tables.rows), encoder.schema.names, rows)

            def copy_rejects(rejects: list[pa.RecordBatch]) -> None:
                table = identifier(task.tables.rejects)
                copy_encoded(cursor, table, REJECT_SCHEMA.names, map(encoder.encode_rejects, rejects))
                failpoint("stage.after_rejects")

            copy_in_turns(timeout.watch(reader.encoded(encoder)), reader.pending, copy_rows, copy_rejects)
        failpoint("stage.before_copy_commit")
        connection.commit()
        failpoint("stage.after_copy_commit")

    task.postgres.run_encoded(copy, where=f"{task.range}, staging its rows")


def decode_range(
    task: StageTask,
    attempt: int,
    keep: Callable[[list[pa.RecordBatch]], None] | None = None,
    reads: SharedReads | None = None,
    packing: Packing | None = None,
) -> Iterator[pa.RecordBatch | Staged | ExactbatchError]:
    """Read and decode one range, for a transform, and stage its rejects, or hand them to `keep`.

    `reads` are those that the range shares with others, if it does.

    Yields the rows, with the columns of decoded_schema() and, if there is `packing`, PACKED, and then what was done;
    or, last, a terminal error.
    """
    schema = decoded_schema(task.columns)
    decoder = decoder_for(task, schema, packing, shares_reads=reads is not None)
    if packing is not None:
        schema = schema.append(_PACKED_FIELD)
    reader = RangeReader(task, attempt, schema, {}, reads=reads, decoder=decoder)

    def copy_rejects() -> None:
        if not (rejects := reader.pending.take()):
            return
        if keep is not None:
            keep(rejects)
            return
        stage_rejects(task.postgres, task.tables, rejects)
        failpoint("stage.after_rejects")

    try:
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
    """Stage rejected records, on an executor or the driver. Raises the errors of PostgresAccess.run()."""

    def copy(connection: "ArrowConnection", timeout: StallTimeout) -> None:
        _copy(connection, tables.rejects, REJECT_SCHEMA, timeout.watch(rejects))
        connection.commit()

    postgres.run(copy, where=f"batch {tables.batch_id}, staging rejected records")


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    tables: StagingTables,
    postgres: PostgresAccess,
    columns: Sequence[Column],
    attempt: int,
    *,
    slot_offsets: int = 0,
    rejects: Callable[[], Iterator[pa.RecordBatch] | None] | None = None,
    packed: Sequence[str] = (),
    place: TopicPartition | None = None,
) -> int | ExactbatchError:
    """Stage the rows of a transform, with their lineage if they carry it; return how many.

    If the batches have the column PACKED, its values are the fields of the columns `packed`. `place` is the partition
    of all rows, if their lineage has only one.
    `rejects` is called after the last row, and returns rejects to stage as well. `slot_offsets` is how many offsets
    of the batch each slot of Spark reads.

    Leaves out a row that Postgres cannot store, and notes its record as one to reject. If rows do not carry their
    record, or if Postgres itself refuses a value, that is TransformFailed. Returns a terminal error, and raises a
    retryable one.
    """
    batches = iter(batches)
    first = next(batches, None)
    is_packed = first is not None and PACKED in first.schema.names
    batches = chain(() if first is None else [first], batches)
    del first  # whose memory is free once it is staged
    schema = row_schema(columns)
    if is_packed:
        schema = pa.schema([*(field for field in schema if field.name not in packed), _PACKED_FIELD])
    constants: dict[str, Any] = {"task_attempt": attempt}
    if place is not None:
        constants |= zip(("kafka_topic", "kafka_partition"), place, strict=True)
    notes, records = PendingRejects(), RecordsOfRows()
    count = 0

    def storable() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            own = [name for name in batch.schema.names if name != PACKED]
            rows = storable_rows(_tagged(batch, schema, attempt), own, notes, attempt, constants)
            count += len(rows)
            records.add(rows)
            yield rows

    def copy(
        copy_into: _CopyInto,
        copy_rows_into: _CopyInto,
        connection: "ArrowConnection | Connection",
        timeout: StallTimeout,
    ) -> None:
        def copy_rows(rows: Iterator[pa.RecordBatch]) -> None:
            records.begin()
            try:
                copy_rows_into(connection, tables.rows, schema, rows)
            except (AdbcError, psycopg2.DataError) as error:
                raise_refused_value(error, records)
                raise

        copy_in_turns(
            timeout.watch(storable()),
            notes,
            copy_rows,
            lambda noted: copy_into(connection, tables.rejects, REJECT_SCHEMA, iter(noted)),
        )
        if rejects is not None and (read := rejects()) is not None:
            copy_into(connection, tables.rejects, REJECT_SCHEMA, read)
            failpoint("stage.after_rejects")
        failpoint("stage.before_copy_commit")
        connection.commit()
        failpoint("stage.after_copy_commit")

    where = f"batch {tables.batch_id}, staging rows of the transform"
    try:
        if is_packed and (reason := unavailable()) is not None:
            raise TasksFailed(
                f"{where}: the worker that decodes runs compiled code, and the one that stages cannot: {reason}. "
                f"Nothing was written; the retry reads the same ranges."
            )
        with pause_garbage_collector():
            if is_packed or encodes(schema, slot_offsets):
                of_rows = partial(_copy_encoded, packed=packed if is_packed else (), constants=constants)
                postgres.run_encoded(partial(copy, _copy_encoded, of_rows), where=where)
            else:
                postgres.run(partial(copy, _copy, _copy), where=where)
    except Exception as error:
        return _terminal(error)
    return count


def stage_lineage(
    batches: Iterable[pa.RecordBatch], tables: StagingTables, postgres: PostgresAccess, attempt: int
) -> None:
    """Stage which records were decoded, from batches with the columns LINEAGE_NAMES. Raises the errors of
    PostgresAccess.run()."""

    def copy(connection: "ArrowConnection", timeout: StallTimeout) -> None:
        tagged = (_tagged(batch, LINEAGE_SCHEMA, attempt) for batch in batches)
        _copy(connection, tables.lineage, LINEAGE_SCHEMA, timeout.watch(tagged))
        connection.commit()

    postgres.run(copy, where=f"batch {tables.batch_id}, staging the lineage of decoded records")


def _terminal(error: Exception) -> ExactbatchError:
    """Return a terminal error, for the driver; raise any other again."""
    if isinstance(error, ExactbatchError) and not error.retryable:
        return error
    raise error


def _tagged(batch: pa.RecordBatch, schema: pa.Schema, attempt: int) -> pa.RecordBatch:
    """Return a batch with the columns of the schema: the task attempt, the batch's own, and nulls for the
    others."""
    rows = len(batch)
    columns = {"task_attempt": pa.repeat(pa.scalar(attempt, pa.int64()), rows)}
    columns |= {name: batch.column(name) for name in batch.schema.names}
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _copy(
    connection: "ArrowConnection", table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    with connection.cursor() as cursor:
        copy_batches(cursor, table, schema, batches, mode="append", db_schema_name=SCHEMA)


def _copy_encoded(
    connection: Connection,
    table: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    packed: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
) -> None:
    """COPY batches; `packed` and `constants` are as ArrowRows gets them."""
    from exactbatch.compiled.arrow_rows import ArrowRows  # imports numba

    rows = ArrowRows(schema, packed, constants)
    with connection.cursor() as cursor:
        encoded = (EncodedRows(rows.write(batch), len(batch)) for batch in batches)
        copy_encoded(cursor, identifier(table), rows.names, encoded)
