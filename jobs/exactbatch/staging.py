"""Executors → a staging table: read, decode and COPY one range in one pass.

A staging table belongs to one launch of one batch. It is UNLOGGED, and each row carries the Spark task
attempt that wrote it, because Spark's commit protocol does not know of a Python worker's side effects.
"""

import base64
import gc
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import adbc_driver_postgresql.dbapi
import pyarrow as pa
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError
from exactbatch.failpoints import failpoint
from exactbatch.offsets import OffsetRange
from exactbatch.read import Records, read_range
from exactbatch.values import Decoded, Format, as_changes

SCHEMA: Final = "exactbatch_staging"
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
_REJECT: Final = pa.schema(
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
    value: Format
    columns: tuple[Column, ...]
    changes: ChangesOf | None
    max_rejects: int
    read_timeout: float


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task attempt did. `records` = records that gave rows + rejects + tombstones."""

    range: OffsetRange
    attempt: int
    records: int
    rows: int
    rejects: int
    tombstones: int


def create_tables(cursor: Any, tables: StagingTables, columns: Sequence[Column]) -> None:
    """Create a launch's staging tables. Columns have the types of the Arrow data, never the target's:
    binary COPY into another type corrupts silently."""
    row = [*(_definition(f) for f in _LINEAGE), *((c.name, c.type) for c in columns)]
    for name, definitions in ((tables.rows, row), (tables.rejects, [_definition(f) for f in _REJECT])):
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


def stage(task: StageTask, attempt: int) -> Staged | ExactbatchError:
    """Read, decode and stage one range, on an executor.

    A terminal error is returned, so that Spark does not try again what cannot succeed; a retryable one is
    raised. Reading stops once there are more rejects than the batch may have: it has failed then.
    """
    counts = _Counts()
    try:
        with collector_paused(), adbc_driver_postgresql.dbapi.connect(task.postgres) as connection:
            rejected: list[pa.RecordBatch] = []
            rows = _decoded_rows(task, attempt, counts, rejected)
            _copy(connection, task.tables.rows, _row_schema(task.columns), rows)
            if rejected:
                _copy(connection, task.tables.rejects, _REJECT, iter(rejected))
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")
    except Exception as error:
        # ADBC wraps what the iterator raised while it was pulled from; the cause is what happened.
        if counts.error is not None and not counts.error.retryable:
            return counts.error
        if counts.error is not None:
            raise counts.error from error
        raise
    return Staged(task.range, attempt, counts.records, counts.rows, counts.rejects, counts.tombstones)


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


def dump(outcome: Staged | ExactbatchError) -> bytes:
    """An outcome as bytes, for the way from an executor to the driver."""
    return pickle.dumps(outcome)


def load(outcome: bytes) -> Staged | ExactbatchError:
    """The outcome that dump() wrote, in a task of this very job."""
    found: Staged | ExactbatchError = pickle.loads(outcome)
    return found


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
                rejected.append(_reject_batch(task.range, each, decoded, attempt))
            if counts.rejects > task.max_rejects:
                return
            yield _with_lineage(task.range, each, decoded, attempt)
    except ExactbatchError as error:
        counts.error = error
        raise


def _decode(task: StageTask, records: Records) -> Decoded:
    values = records.values()
    decoded = task.value.decode(values)
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


def _copy(connection: Any, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    with connection.cursor() as cursor:
        cursor.adbc_ingest(table, reader, mode="append", db_schema_name=SCHEMA)


def _row_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([*_LINEAGE, *((c.name, c.arrow_type) for c in columns)])


def _with_lineage(range_: OffsetRange, records: Records, decoded: Decoded, attempt: int) -> pa.RecordBatch:
    offsets, timestamps = records.offsets(), records.timestamps()
    if len(decoded.kept) < len(offsets):
        offsets, timestamps = offsets.take(decoded.kept), timestamps.take(decoded.kept)
    n = len(offsets)
    lineage = [
        pa.repeat(pa.scalar(attempt, pa.int64()), n),
        pa.repeat(pa.scalar(range_.partition, pa.int32()), n),
        offsets,
        timestamps.cast(pa.timestamp("us", "UTC")),
        pa.repeat(range_.topic, n),
    ]
    names = [*_LINEAGE.names, *decoded.rows.schema.names]
    return pa.RecordBatch.from_arrays([*lineage, *decoded.rows.columns], names)


def _reject_batch(range_: OffsetRange, records: Records, decoded: Decoded, attempt: int) -> pa.RecordBatch:
    """Rejected records as they were. This is the slow path: one record at a time."""
    rows = []
    for index, reason in decoded.rejects:
        message = records.messages[index]
        rows.append(
            {
                "topic": range_.topic,
                "partition": range_.partition,
                "offset": message.offset(),
                "key": message.key(),
                "value": message.value(),
                "headers": _headers_as_json(message.headers()),
                "reason": reason.replace("\0", "\\u0000"),
                "task_attempt": attempt,
            }
        )
    return pa.RecordBatch.from_pylist(rows, _REJECT)


def _headers_as_json(headers: Any) -> str:
    """Headers, a list of (name, bytes or None), as a JSON list of [name, value in base64 or null].

    jsonb cannot hold U+0000, so a name shows it as text.
    """
    return json.dumps(
        [
            [name.replace("\0", "\\u0000"), None if value is None else base64.b64encode(value).decode()]
            for name, value in headers or ()
        ]
    )


def _definition(field: pa.Field) -> tuple[str, str]:
    types = {
        pa.string(): "text",
        pa.binary(): "bytea",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.timestamp("us", "UTC"): "timestamp with time zone",
    }
    return field.name, types[field.type]
