"""Executors → a staging table: read, decode and COPY one range in one pass.

A staging table belongs to one launch of one batch. It is UNLOGGED, and each row carries the Spark task
attempt that wrote it, because Spark's commit protocol does not know of a Python worker's side effects.
"""

import gc
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import Error as AdbcError
from psycopg2 import sql

from exactbatch.batch.watchdog import Patience, within
from exactbatch.columns import Column
from exactbatch.errors import ExactbatchError, TransformFailed
from exactbatch.errors.translation import adbc_detail, adbc_said, unexpected
from exactbatch.failpoints import failpoint
from exactbatch.formats import Decoded, Format, WithMessage, as_changes, headers_as_json
from exactbatch.formats.message import UNREADABLE, Unreadable, read_headers
from exactbatch.formats.postgres_limits import NUL, check_storable
from exactbatch.kafka.reader import Records, read_range
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.arrow import ArrowConnection, ArrowCursor, connect_arrow
from exactbatch.postgres.connection import Cursor

SCHEMA: Final = "exactbatch_staging"
APPLICATION: Final = "exactbatch task"  # what pg_stat_activity shows of a task
_TABLE: Final = re.compile(r"batch_\d+_([0-9a-f]+)_(?:rows|rejects|lineage)")
# Rejected records that an executor holds, by their bytes in Arrow, before it copies them into Postgres.
_HELD_BYTES: Final = 16 * 1024 * 1024
_HELD_RECORDS: Final = 10_000
_BAD_VALUE: Final = "22"  # the class of SQLSTATE
# What Postgres says of the place of an error in a COPY.
_LINE: Final = re.compile(r"COPY [^,]+, line (\d+)(?:, column (.+))?")
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
    """The names of a launch's tables: rows, rejects and, for some transforms, lineage."""

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
        """The table of rejected records, and of records that are noted to be rejected."""
        return f"batch_{self.batch_id}_{self.launch:x}_rejects"

    @property
    def lineage(self) -> str:
        """The table of what was decoded, for transforms whose rows have to be compared with it."""
        return f"batch_{self.batch_id}_{self.launch:x}_lineage"


@dataclass(frozen=True, slots=True)
class ChangesOf:
    """What makes rows changes: the columns of their key, and how message keys are decoded for tombstones."""

    key_columns: tuple[str, ...]
    key: Format | None


@dataclass(frozen=True, slots=True)
class StageTask:
    """What one Spark task does; it travels in the task's closure, secrets and all.

    `columns` are those of a staged row, beside its lineage, and `cluster_id` is the Kafka cluster of the plan.
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
    cluster_id: str | None = None


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

    @property
    def has_several_rows_of_a_record(self) -> bool:
        """Whether there are more rows than records that gave rows; where rows tell their record."""
        with_rows = self.records - self.rejected - self.tombstones - self.dropped
        return sum(self.rows.values()) > with_rows


def by_attempt(pieces: Iterable[Staged], what: Literal["rows", "rejects"]) -> dict[int, int]:
    """How many rows or rejects each task attempt has staged, of all its pieces."""
    counts: dict[int, int] = defaultdict(int)
    for each in pieces:
        counts[each.attempt] += getattr(each, what)
    return dict(counts)


def create_rejects(cursor: Cursor, tables: StagingTables) -> None:
    """Create a launch's table of rejects."""
    _create(cursor, tables.rejects, [_definition(each) for each in REJECT])


def create_rows(cursor: Cursor, tables: StagingTables, columns: Sequence[Column]) -> None:
    """Create a launch's table of rows. Columns have the types of the Arrow data, never the target's: binary COPY
    into another type corrupts silently."""
    _create(cursor, tables.rows, [*map(_definition, _LINEAGE), *((c.name, c.staged_type) for c in columns)])


def create_lineage(cursor: Cursor, tables: StagingTables) -> None:
    """Create a launch's table of what was decoded."""
    _create(cursor, tables.lineage, [_definition(each) for each in _LINEAGE])


def _create(cursor: Cursor, table: str, columns: Sequence[tuple[str, str]]) -> None:
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in columns
    )
    cursor.execute(sql.SQL("create unlogged table {} ({})").format(identifier(table), definitions))


def identifier(table: str) -> sql.Identifier:
    """A staging table as an SQL identifier."""
    return sql.Identifier(SCHEMA, table)


class Waiting:
    """Rejected records that wait to be copied into Postgres, so many at a time that memory is bounded."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Let some more wait."""
        self._batches.append(batch)
        self._bytes += batch.nbytes

    @property
    def is_full(self) -> bool:
        """Whether it is time to copy them."""
        return self._bytes >= _HELD_BYTES

    def take(self) -> list[pa.RecordBatch]:
        """All that wait; none do any more."""
        batches, self._batches, self._bytes = self._batches, [], 0
        return batches


def copy_by_turns(
    rows: Iterator[pa.RecordBatch],
    waiting: Waiting,
    copy_rows: Callable[[Iterator[pa.RecordBatch]], None],
    copy_waiting: Callable[[list[pa.RecordBatch]], None],
) -> None:
    """Copy rows, and whenever too many rejected records have come with them, those, on the same connection."""
    ended = False

    def until_full() -> Iterator[pa.RecordBatch]:
        nonlocal ended
        for batch in rows:
            yield batch
            if waiting.is_full:
                return
        ended = True

    while not ended:
        copy_rows(until_full())
        if batches := waiting.take():
            copy_waiting(batches)


def stage_rejects(
    postgres: str,
    tables: StagingTables,
    rejected: Iterable[pa.RecordBatch],
    *,
    publish_timeout: float,
    statement_timeout: float,
) -> None:
    """Stage rejected records, on the driver or an executor.

    Raises what sqlstates.MEANINGS says of the server's answer, PostgresUnavailable when Postgres says nothing
    for `statement_timeout` seconds, and what the iterator raises.
    """

    def copy(patience: Patience) -> None:
        with connect_arrow(postgres, application=APPLICATION, timeout=publish_timeout) as connection:
            _copy(connection, tables.rejects, REJECT, patience.between(rejected))
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
            waiting = Waiting()

            def copy_rejects(rejected: list[pa.RecordBatch]) -> None:
                _copy(connection, task.tables.rejects, REJECT, iter(rejected))
                failpoint("stage.after_rejects")

            copy_by_turns(
                patience.between(_decoded_rows(task, attempt, counts, waiting)),
                waiting,
                lambda rows: _copy(connection, task.tables.rows, _row_schema(task.columns), rows),
                copy_rejects,
            )
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")

    try:
        with collector_paused():
            within(task.statement_timeout, copy, where=f"{task.range}, staging its rows")
    except Exception as error:
        return _returned(error)
    return Staged(task.range, attempt, counts.records, counts.rows, counts.rejects, counts.tombstones)


def decode(task: StageTask, attempt: int) -> Iterator[pa.RecordBatch | Staged | ExactbatchError]:
    """Read and decode one range and stage its rejects, on an executor.

    Gives the rows, with the columns of decoded_schema(), and last what was done; or a terminal error.
    """
    counts, waiting = _Counts(), Waiting()

    def copy_waiting() -> None:
        if rejected := waiting.take():
            stage_rejects(
                task.postgres,
                task.tables,
                rejected,
                publish_timeout=task.publish_timeout,
                statement_timeout=task.statement_timeout,
            )
            failpoint("stage.after_rejects")

    try:
        with collector_paused():
            for batch in _decoded_rows(task, attempt, counts, waiting):
                if waiting.is_full:
                    copy_waiting()
                yield batch.select(decoded_schema(task.columns).names)
            copy_waiting()
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

    A row that no Postgres can store is left out, and its record noted to be rejected; where rows do not tell their
    record, and where Postgres itself refuses a value, that is TransformFailed. A terminal error is returned.
    Raises PostgresUnavailable when Postgres takes no rows, or does not answer, for `statement_timeout` seconds.
    """
    schema = _row_schema(columns)
    noted, places = Waiting(), _Places()
    count = 0

    def storable() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            rows = _storable(_tagged(batch, schema, attempt), batch.schema.names, noted, attempt)
            count += len(rows)
            places.add(rows)
            yield rows

    def copy(patience: Patience) -> None:
        with connect_arrow(postgres, application=APPLICATION, timeout=publish_timeout) as connection:

            def copy_rows(rows: Iterator[pa.RecordBatch]) -> None:
                places.begin()
                try:
                    _copy(connection, tables.rows, schema, rows)
                except AdbcError as error:
                    if (error.sqlstate or "").startswith(_BAD_VALUE):
                        raise _refused_value(error, places) from error
                    raise

            copy_by_turns(
                patience.between(storable()),
                noted,
                copy_rows,
                lambda notes: _copy(connection, tables.rejects, REJECT, iter(notes)),
            )
            failpoint("stage.before_copy_commit")
            connection.commit()
            failpoint("stage.after_copy_commit")

    try:
        within(statement_timeout, copy, where=f"batch {tables.batch_id}, staging rows of the transform")
    except Exception as error:
        return _returned(error)
    return count


def stage_lineage(
    batches: Iterable[pa.RecordBatch],
    tables: StagingTables,
    postgres: str,
    attempt: int,
    *,
    publish_timeout: float,
    statement_timeout: float,
) -> int:
    """Stage which records were decoded, from batches with the columns LINEAGE_NAMES, on an executor; return how
    many. Raises as stage_rejects() does."""
    count = 0

    def tagged() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            count += len(batch)
            yield _tagged(batch, _LINEAGE, attempt)

    def copy(patience: Patience) -> None:
        with connect_arrow(postgres, application=APPLICATION, timeout=publish_timeout) as connection:
            _copy(connection, tables.lineage, _LINEAGE, patience.between(tagged()))
            connection.commit()

    within(statement_timeout, copy, where=f"batch {tables.batch_id}, staging what was decoded")
    return count


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


def _storable(batch: pa.RecordBatch, names: Sequence[str], noted: Waiting, attempt: int) -> pa.RecordBatch:
    """The rows that Postgres can store; the records of the others are noted.

    `names` are the columns that the transform gives. Raises TransformFailed where rows do not tell their record.
    """
    unstorable: dict[int, str] = {}
    for name in batch.schema.names:
        if name not in names:
            continue
        for row, reason in _unstorable(batch.column(name)):
            unstorable.setdefault(row, f"column {name!r}: {reason}, in a row of the transform")
            if name in LINEAGE_NAMES or not set(names).issuperset(LINEAGE_NAMES):
                raise TransformFailed(f"{unstorable[row]}. Nothing was written. Let the transform remove it.")
    if not unstorable:
        return batch
    bad = pa.array(unstorable, pa.int64())
    noted.add(_notes(batch.take(bad), list(unstorable.values()), attempt))
    return batch.filter(pa.array([row not in unstorable for row in range(len(batch))]))


def _unstorable(column: pa.Array) -> Iterator[tuple[int, str]]:
    """The rows with a value that Postgres cannot store, and why, in their order."""
    waiting = [(0, len(column))] if _refused(column) else []
    while waiting:
        start, end = waiting.pop()
        if (reason := _refused(column.slice(start, end - start))) is None:
            continue
        if end - start == 1:
            yield start, reason
            continue
        half = (start + end) // 2
        waiting += [(half, end), (start, half)]


def _refused(column: pa.Array) -> str | None:
    """Why Postgres cannot store some value of a column."""
    # Of a part of a list column, validate() would look at the elements of all of it.
    elements = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    try:
        if pa.types.is_string(elements.type):
            elements.validate(full=True)
        check_storable(elements)
    except pa.ArrowInvalid:
        return "the text is not valid UTF-8"
    except ValueError as error:
        return "expected text that Postgres can store, found U+0000" if str(error) == NUL else str(error)
    return None


def _notes(rows: pa.RecordBatch, reasons: Sequence[str], attempt: int) -> pa.RecordBatch:
    """Rows of the table of rejects that note which records are to be rejected. They do not count: sift reads the
    records again and puts complete ones in their place."""
    n = len(rows)
    there = {
        "topic": rows.column("kafka_topic"),
        "partition": rows.column("kafka_partition"),
        "offset": rows.column("kafka_offset"),
        "reason": pa.array(reasons),
        "task_attempt": pa.repeat(pa.scalar(note_of(attempt), pa.int64()), n),
    }
    arrays = [there.get(field.name, pa.nulls(n, field.type)) for field in REJECT]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECT)


def note_of(attempt: int) -> int:
    """The task_attempt, below 0, of records that an attempt only notes to be rejected."""
    return ~attempt


class _Places:
    """From which records the rows of one COPY come, batch by batch."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Another COPY begins; it counts its rows from 1."""
        self._rows = 0
        self._batches: list[tuple[int, str]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """These rows come next."""
        if len(batch):
            self._rows += len(batch)
            first, last = _record_of(batch, 0), _record_of(batch, len(batch) - 1)
            self._batches.append((self._rows, first if first == last else f"{first} to {last}"))

    def of(self, row: int) -> str:
        """The record of a row, or between which records it is."""
        return next((where for until, where in self._batches if row <= until), "")


def _record_of(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in LINEAGE_NAMES[:3])
    return "" if topic is None else f"{topic}[{partition}] offset {offset}"


def _refused_value(error: AdbcError, places: _Places) -> TransformFailed:
    found = _LINE.search(adbc_detail(error, "CONTEXT"))
    where = places.of(int(found[1])) if found else ""
    column = f"column {found[2]!r}: " if found and found[2] else ""
    return TransformFailed(
        f"{column}Postgres cannot store a value that the transform gives{f', from {where}' if where else ''}: "
        f"{adbc_said(error)} (SQLSTATE {error.sqlstate}). Nothing was written. Let the transform remove it."
    )


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


def _decoded_rows(
    task: StageTask, attempt: int, counts: _Counts, waiting: Waiting
) -> Iterator[pa.RecordBatch]:
    records = read_range(
        task.range,
        task.kafka,
        leader_epoch=task.leader_epoch,
        timeout=task.read_timeout,
        cluster_id=task.cluster_id,
    )
    try:
        for each in records:
            decoded = _decode(task, each)
            counts.records += len(each)
            counts.rows += len(decoded.rows)
            counts.rejects += len(decoded.rejects)
            counts.tombstones += decoded.tombstones
            if decoded.rejects:
                waiting.add(reject_batch(rejects_of(task.range, each, decoded, attempt)))
            if counts.rejects > task.max_rejects:
                return
            yield _with_lineage(task.range, each, decoded, attempt)
    except ExactbatchError:
        raise
    except Exception as error:
        raise unexpected(error) from error


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


def _copy(
    connection: ArrowConnection, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    with connection.cursor() as cursor:
        ingest(cursor, table, schema, batches, mode="append", db_schema_name=SCHEMA)


def ingest(
    cursor: ArrowCursor, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **options: Any
) -> int:
    """COPY batches into a table; return how many rows were sent.

    Raises what the iterator raises: ADBC would wrap it, and cut its text.
    """
    raised: list[Exception] = []

    def given() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            raised.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, given())
    try:
        return int(cursor.adbc_ingest(table, reader, **options))
    except Exception as error:
        if raised:
            raise raised[0] from error
        raise


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


def reject_batches(rejected: Iterable[Rejected]) -> Iterator[pa.RecordBatch]:
    """The same in batches of a size that memory can hold."""
    held: list[Rejected] = []
    size = 0
    for each in rejected:
        held.append(each)
        size += len(each.message)
        if size >= _HELD_BYTES or len(held) == _HELD_RECORDS:
            yield reject_batch(held)
            held, size = [], 0
    if held:
        yield reject_batch(held)


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
