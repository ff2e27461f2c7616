"""Executors → a staging table: read, decode and COPY one range in one pass.

A staging table belongs to one launch of one batch. It is UNLOGGED, and each row carries the Spark task
attempt that wrote it, because Spark's commit protocol does not know of a Python worker's side effects.
"""

import gc
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
from psycopg2 import sql

import exactbatch.ledger.arrow  # noqa: F401 - connect_arrow() would import it while the server's time runs
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, TransformFailed
from exactbatch.failpoints import failpoint
from exactbatch.ledger import connect_arrow
from exactbatch.offsets import OffsetRange
from exactbatch.own_errors import unexpected
from exactbatch.patience import Patience, within
from exactbatch.read import Records, read_range
from exactbatch.values import Decoded, Format, WithMessage, as_changes, headers_as_json
from exactbatch.values.message import UNREADABLE, Unreadable, read_headers
from exactbatch.values.storable import NUL, check_storable

SCHEMA: Final = "exactbatch_staging"
APPLICATION: Final = "exactbatch task"  # what pg_stat_activity shows of a task
_TABLE: Final = re.compile(r"batch_\d+_([0-9a-f]+)_(?:rows|rejects)")
# These come before a row's own columns: publish counts by task_attempt, and Postgres takes a tuple apart
# from its start up to the last column that is asked for.
_LINEAGE: Final = pa.schema(
    [
        ("task_attempt", pa.int64()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("kafka_topic", pa.string()),
    ]
)
LINEAGE_NAMES: Final = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")
REJECT: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        ("reason", pa.string()),
        ("task_attempt", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class StagingTables:
    """The names of a launch's two tables: rows and rejects."""

    batch_id: int
    launch: int

    @staticmethod
    def launch_of(table: str) -> int | None:
        """The launch that a staging table belongs to; None for a table that is none of ours."""
        match = _TABLE.fullmatch(table)
        return int(match[1], 16) if match else None

    @property
    def rows(self) -> str:
        """The table of decoded rows."""
        return f"batch_{self.batch_id}_{self.launch:x}_rows"

    @property
    def rejects(self) -> str:
        """The table of records that did not decode."""
        return f"batch_{self.batch_id}_{self.launch:x}_rejects"


@dataclass(frozen=True, slots=True)
class ChangesOf:
    """What makes rows changes: the columns of their key, and how message keys are decoded for tombstones."""

    key_columns: tuple[str, ...]
    key: Format | None


@dataclass(frozen=True, slots=True)
class StageTask:
    """What one Spark task does; it travels in the task's closure, secrets and all.

    `columns` are those of a staged row, beside its lineage.
    """

    range: OffsetRange
    leader_epoch: int | None
    tables: StagingTables
    kafka: Mapping[str, Any] = field(repr=False)
    postgres: str = field(repr=False)
    value: Format | WithMessage
    columns: tuple[Column, ...]
    changes: ChangesOf | None
    max_rejects: int
    read_timeout: float
    publish_timeout: float
    statement_timeout: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no row, as a Kafka message, why, and the task attempt that read it."""

    topic: str
    partition: int
    message: Any
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task attempt did. `records` = records that gave rows + rejects + tombstones."""

    range: OffsetRange
    attempt: int
    records: int
    rows: int
    rejects: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """All that the accepted task attempts of a batch did.

    `pieces` together are the ranges of the batch. `rows` and `rejects` say how many each task attempt has
    staged. `dropped` counts the records that decoded and that the transform gave no row for.
    """

    pieces: tuple[Staged, ...]
    rows: Mapping[int, int]
    rejects: Mapping[int, int]
    dropped: int = 0

    @classmethod
    def of(cls, pieces: Iterable[Staged]) -> "StagedBatch":
        """A batch whose tasks staged what they had read."""
        pieces = tuple(pieces)
        return cls(pieces, by_attempt(pieces, "rows"), by_attempt(pieces, "rejects"))

    @property
    def attempts(self) -> list[int]:
        """The task attempts whose staged rows and rejects count."""
        return sorted({*self.rows, *self.rejects})

    @property
    def records(self) -> int:
        """How many records were read."""
        return sum(each.records for each in self.pieces)

    @property
    def tombstones(self) -> int:
        """How many records were null values without a row."""
        return sum(each.tombstones for each in self.pieces)

    @property
    def rejected(self) -> int:
        """How many records were rejected."""
        return sum(self.rejects.values())


def by_attempt(pieces: Iterable[Staged], what: Literal["rows", "rejects"]) -> dict[int, int]:
    """How many rows or rejects each task attempt has staged, of all its pieces."""
    counts: dict[int, int] = defaultdict(int)
    for each in pieces:
        counts[each.attempt] += getattr(each, what)
    return dict(counts)


def create_tables(cursor: Any, tables: StagingTables, columns: Sequence[Column]) -> None:
    """Create a launch's staging tables. Columns have the types of the Arrow data, never the target's:
    binary COPY into another type corrupts silently."""
    row = [*(_definition(f) for f in _LINEAGE), *((c.name, c.staged_type) for c in columns)]
    for name, definitions in ((tables.rows, row), (tables.rejects, [_definition(f) for f in REJECT])):
        cursor.execute(
            sql.SQL("create unlogged table {} ({})").format(
                identifier(name),
                sql.SQL(", ").join(
                    sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in definitions
                ),
            )
        )


def identifier(table: str) -> sql.Identifier:
    """A staging table as an SQL identifier."""
    return sql.Identifier(SCHEMA, table)


def stage_rejects(
    postgres: str,
    tables: StagingTables,
    rejected: Iterable[pa.RecordBatch],
    *,
    publish_timeout: float,
    statement_timeout: float,
) -> None:
    """Stage rejected records, on the driver or an executor.

    Raises what sqlstates.MEANINGS says of the server's answer, and PostgresUnavailable when Postgres says nothing
    for `statement_timeout` seconds.
    """

    def copy(_: Patience) -> None:
        with connect_arrow(postgres, application=APPLICATION, timeout=publish_timeout) as connection:
            _copy(connection, tables.rejects, REJECT, iter(rejected))
            connection.commit()

    within(statement_timeout, copy, where=f"batch {tables.batch_id}, staging rejected records")


def stage(task: StageTask, attempt: int) -> Staged | ExactbatchError:
    """Read, decode and stage one range, on an executor.

    A terminal error is returned, so that Spark does not try again what cannot succeed; a retryable one is
    raised. Reading stops once there are more rejects than the batch may have: it has failed then.
    """
    counts = _Counts()

    def copy(patience: Patience) -> None:
        with connect_arrow(
            task.postgres, application=APPLICATION, timeout=task.publish_timeout
        ) as connection:
            rejected: list[pa.RecordBatch] = []
            rows = patience.between(_decoded_rows(task, attempt, counts, rejected))
            _copy(connection, task.tables.rows, _row_schema(task.columns), rows)
            if rejected:
                _copy(connection, task.tables.rejects, REJECT, iter(rejected))
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")

    try:
        with collector_paused():
            within(task.statement_timeout, copy, where=f"{task.range}, staging its rows")
    except Exception as error:
        # ADBC wraps what the iterator raised while it was pulled from; the cause is what happened.
        if counts.error is not None and counts.error.retryable:
            raise counts.error from error
        return _returned(counts.error or error)
    return Staged(task.range, attempt, counts.records, counts.rows, counts.rejects, counts.tombstones)


def decode(task: StageTask, attempt: int) -> Iterator[pa.RecordBatch | Staged | ExactbatchError]:
    """Read and decode one range and stage its rejects, on an executor.

    Gives the rows, with the columns of decoded_schema(), and last what was done; or a terminal error.
    """
    counts = _Counts()
    rejected: list[pa.RecordBatch] = []
    try:
        with collector_paused():
            for batch in _decoded_rows(task, attempt, counts, rejected):
                yield batch.select(decoded_schema(task.columns).names)
            if rejected:
                stage_rejects(
                    task.postgres,
                    task.tables,
                    rejected,
                    publish_timeout=task.publish_timeout,
                    statement_timeout=task.statement_timeout,
                )
    except ExactbatchError as error:
        if error.retryable:
            raise
        yield error
        return
    yield Staged(task.range, attempt, counts.records, counts.rows, counts.rejects, counts.tombstones)


def decoded_schema(columns: Sequence[Column]) -> pa.Schema:
    """The columns of a decoded row, and those that say which record it comes from."""
    return pa.schema(
        [*((c.name, c.arrow_type) for c in columns), *(_LINEAGE.field(n) for n in LINEAGE_NAMES)]
    )


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    tables: StagingTables,
    postgres: str,
    columns: Sequence[Column],
    attempt: int,
    *,
    publish_timeout: float,
    statement_timeout: float,
) -> int | ExactbatchError:
    """Stage rows that have these columns and, if they tell it, their lineage, on an executor; return how many.

    A terminal error is returned, as of a value that no Postgres can store. Raises PostgresUnavailable when
    Postgres takes no rows, or does not answer, for `statement_timeout` seconds.
    """
    schema = _row_schema(columns)
    counts = _Counts()

    def tagged() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                _refuse_unstorable(batch)
            except TransformFailed as error:
                counts.error = error
                raise
            counts.rows += len(batch)
            yield _tagged(batch, schema, attempt)

    def copy(patience: Patience) -> None:
        with connect_arrow(postgres, application=APPLICATION, timeout=publish_timeout) as connection:
            _copy(connection, tables.rows, schema, patience.between(tagged()))
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")

    try:
        within(statement_timeout, copy, where=f"batch {tables.batch_id}, staging rows of the transform")
    except Exception as error:
        if counts.error is not None:
            return counts.error
        return _returned(error)
    return counts.rows


def _returned(error: Exception) -> ExactbatchError:
    """A terminal error, for the driver; any other is raised again."""
    if isinstance(error, ExactbatchError) and not error.retryable:
        return error
    raise error


def _tagged(batch: pa.RecordBatch, schema: pa.Schema, attempt: int) -> pa.RecordBatch:
    n = len(batch)
    there = {"task_attempt": pa.repeat(pa.scalar(attempt, pa.int64()), n)}
    there |= {name: batch.column(name) for name in batch.schema.names}
    arrays = [there[f.name].cast(f.type) if f.name in there else pa.nulls(n, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_unstorable(batch: pa.RecordBatch) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if _refused(column) is None:
            continue
        at = next(at for at in range(len(column)) if _refused(column.slice(at, 1)))
        where = [batch.column(each)[at].as_py() for each in LINEAGE_NAMES[:3] if each in batch.schema.names]
        raise TransformFailed(
            f"column {name!r}: {_refused(column.slice(at, 1))}, in a row of the "
            f"transform{_of_record(where)}. Nothing was written. Let the transform remove it."
        )


def _refused(column: pa.Array) -> str | None:
    """Why Postgres cannot store some value of a column."""
    try:
        check_storable(column)
    except ValueError as error:
        return "expected text that Postgres can store, found U+0000" if str(error) == NUL else str(error)
    return None


def _of_record(where: Sequence[Any]) -> str:
    return f", from {where[0]}[{where[1]}] offset {where[2]}" if len(where) == len(LINEAGE_NAMES[:3]) else ""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Records come by the ten thousand, and none is part of a cycle: looking for cycles among them, again
    and again while they come, would take a third of the reading's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def dump(outcome: object) -> bytes:
    """An outcome as bytes, for the way from an executor to the driver."""
    return pickle.dumps(outcome)


def load(outcome: bytes) -> Any:
    """The outcome that dump() wrote, in a task of this very job."""
    return pickle.loads(outcome)


@dataclass(slots=True)
class _Counts:
    records: int = 0
    rows: int = 0
    rejects: int = 0
    tombstones: int = 0
    error: ExactbatchError | None = None


def _decoded_rows(
    task: StageTask, attempt: int, counts: _Counts, rejected: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    records = read_range(task.range, task.kafka, leader_epoch=task.leader_epoch, timeout=task.read_timeout)
    try:
        for each in records:
            decoded = _decode(task, each)
            counts.records += len(each)
            counts.rows += len(decoded.rows)
            counts.rejects += len(decoded.rejects)
            counts.tombstones += decoded.tombstones
            if decoded.rejects:
                rejected.append(reject_batch(rejects_of(task.range, each, decoded, attempt)))
            if counts.rejects > task.max_rejects:
                return
            yield _with_lineage(task.range, each, decoded, attempt)
    except Exception as error:
        # ADBC cuts the text of an error that it passes on.
        counts.error = error if isinstance(error, ExactbatchError) else unexpected(error)
        raise counts.error from error


def _decode(task: StageTask, records: Records) -> Decoded:
    values = records.values()
    decoded = decode_records(task.value, records, values)
    if task.changes is None:
        return decoded
    # Keys are asked for only where there is a null value: that is a Python call for each record.
    keys = records.keys() if decoded.tombstones else values
    return as_changes(
        decoded,
        values,
        keys,
        task.changes.key,
        task.changes.key_columns,
        tombstones_delete=task.value.tombstone_deletes,
    )


def decode_records(value: Format | WithMessage, records: Records, values: pa.BinaryArray) -> Decoded:
    """Decode records, whose values are these."""
    return value.decode(values, records) if isinstance(value, WithMessage) else value.decode(values)


def _copy(connection: Any, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    with connection.cursor() as cursor:
        cursor.adbc_ingest(table, reader, mode="append", db_schema_name=SCHEMA)


def _row_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([*_LINEAGE, *((c.name, c.arrow_type) for c in columns)])


def origins(records: Records, decoded: Decoded) -> tuple[pa.Int64Array, pa.TimestampArray]:
    """The offset and the timestamp, in microseconds UTC, of the record of each row."""
    offsets, timestamps = records.offsets(), records.timestamps()
    if len(decoded.kept) < len(offsets):
        offsets, timestamps = offsets.take(decoded.kept), timestamps.take(decoded.kept)
    return offsets, timestamps.cast(pa.timestamp("us", "UTC"))


def _with_lineage(range_: OffsetRange, records: Records, decoded: Decoded, attempt: int) -> pa.RecordBatch:
    offsets, timestamps = origins(records, decoded)
    n = len(offsets)
    lineage = [
        pa.repeat(pa.scalar(attempt, pa.int64()), n),
        pa.repeat(pa.scalar(range_.partition, pa.int32()), n),
        offsets,
        timestamps,
        pa.repeat(range_.topic, n),
    ]
    names = [*_LINEAGE.names, *decoded.rows.schema.names]
    return pa.RecordBatch.from_arrays([*lineage, *decoded.rows.columns], names)


def rejects_of(range_: OffsetRange, records: Records, decoded: Decoded, attempt: int) -> Iterator[Rejected]:
    """The records of a range that did not decode."""
    for index, reason in decoded.rejects:
        yield Rejected(range_.topic, range_.partition, records.messages[index], reason, attempt)


def reject_batch(rejected: Iterable[Rejected]) -> pa.RecordBatch:
    """Rejected records as they were. This is the slow path: one record at a time."""
    return pa.RecordBatch.from_pylist(list(map(_reject, rejected)), REJECT)


def _reject(rejected: Rejected) -> dict[str, Any]:
    message, reason = rejected.message, rejected.reason
    [headers] = read_headers([message])
    if isinstance(headers, Unreadable) and reason != UNREADABLE:
        reason = f"{reason}; {UNREADABLE}"
    return {
        "topic": rejected.topic,
        "partition": rejected.partition,
        "offset": message.offset(),
        "key": message.key(),
        "value": message.value(),
        "headers": headers_as_json(headers),
        "reason": reason.replace("\0", "\\u0000"),
        "task_attempt": rejected.attempt,
    }


def _definition(field: pa.Field) -> tuple[str, str]:
    types = {
        pa.string(): "text",
        pa.binary(): "bytea",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.timestamp("us", "UTC"): "timestamp with time zone",
    }
    return field.name, types[field.type]
