"""Rows of a transform that Postgres cannot store, found before they are copied or named afterwards, and the lineage
that staged rows carry, compared with the records that were decoded.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from psycopg2 import sql

from exactbatch.batch.rows.rejected import REJECT_SCHEMA, PendingRejects, note_attempt
from exactbatch.batch.staging.staging_tables import StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.errors import StagedRowsDiffer, TransformFailed, TransformRefused
from exactbatch.errors.sqlstates import DATA_EXCEPTION
from exactbatch.errors.translation import psycopg2_message
from exactbatch.formats.postgres_limits import NUL, check_storable
from exactbatch.ledger import count_staged_records
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction

# Where Postgres says that an error in a COPY occurred.
_LINE: Final = re.compile(r"COPY [^,]+, line (\d+)(?:, column (.+))?")


def keep_storable_rows(
    batch: pa.RecordBatch,
    names: Sequence[str],
    pending: PendingRejects,
    attempt: int,
    constants: Collection[str] = (),
) -> pa.RecordBatch:
    """Return the rows that Postgres can store; add notes of the records of the others to the pending rejects.

    `names` are the columns that the transform returns, and `constants` columns that have the same value in all rows,
    one that Postgres can store. Raises TransformFailed if rows do not carry their record.
    """
    unstorable: dict[int, str] = {}
    for name in batch.schema.names:
        if name not in names or name in constants:
            continue
        for row, reason in _unstorable(batch.column(name)):
            unstorable.setdefault(row, f"column {name!r}: {reason}, in a row of the transform")
            if name in LINEAGE_NAMES or not set(names).issuperset(LINEAGE_NAMES):
                raise TransformFailed(f"{unstorable[row]}. Nothing was written. Let the transform remove it.")
    if not unstorable:
        return batch
    bad = pa.array(unstorable, pa.int64())
    pending.add(_notes(batch.take(bad), list(unstorable.values()), attempt))
    return batch.filter(pa.array([row not in unstorable for row in range(len(batch))]))


def _unstorable(column: pa.Array) -> Iterator[tuple[int, str]]:
    """Yield the rows with a value that Postgres cannot store, and the reason, in their order."""
    parts = [(0, len(column))] if _refusal(column) else []
    while parts:
        start, end = parts.pop()
        if (reason := _refusal(column.slice(start, end - start))) is None:
            continue
        if end - start == 1:
            yield start, reason
            continue
        half = (start + end) // 2
        parts += [(half, end), (start, half)]


def _refusal(column: pa.Array) -> str | None:
    """Return why Postgres cannot store some value of a column; None if it can store all of them."""
    # Of a slice of a list column, validate() would check the elements of the whole column.
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
    """Return rows of the table of rejects that note which records will be rejected."""
    count = len(rows)
    columns = {
        "topic": rows.column("kafka_topic"),
        "partition": rows.column("kafka_partition"),
        "offset": rows.column("kafka_offset"),
        "reason": pa.array(reasons),
        "task_attempt": pa.repeat(pa.scalar(note_attempt(attempt), pa.int64()), count),
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in REJECT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECT_SCHEMA)


class RecordsOfRows:
    """Which records the rows of one COPY come from, batch by batch."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another COPY, which counts its rows from 1."""
        self._rows = 0
        self._batches: list[tuple[int, str]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows that are copied next."""
        if len(batch):
            self._rows += len(batch)
            first, last = _describe_record(batch, 0), _describe_record(batch, len(batch) - 1)
            self._batches.append((self._rows, first if first == last else f"{first} to {last}"))

    def of(self, row: int) -> str:
        """Return the record of a row, or the first and last record of its batch; empty if rows do not carry it."""
        return next((records for last_row, records in self._batches if row <= last_row), "")


def _describe_record(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in LINEAGE_NAMES[:3])
    return "" if topic is None else f"{topic}[{partition}] offset {offset}"


def raise_refused_value(error: psycopg2.DataError, records: RecordsOfRows) -> None:
    """Raise TransformFailed if Postgres has refused a value; it names the column and the records of the row."""
    if not (error.pgcode or "").startswith(DATA_EXCEPTION):
        return
    line = _LINE.search(error.diag.context or "")
    record = records.of(int(line[1])) if line else ""
    column = f"column {line[2]!r}: " if line and line[2] else ""
    raise TransformFailed(
        f"{column}Postgres cannot store a value that the transform returns{f', from {record}' if record else ''}: "
        f"{psycopg2_message(error)} (SQLSTATE {error.pgcode}). Nothing was written. Let the transform remove it."
    ) from error


def check_staged_lineage(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    *,
    attempts: Sequence[int],
    readers: Sequence[int],
    decoded: int,
) -> None:
    """Raise TransformRefused unless each staged row and note carries the lineage of a decoded record.

    `attempts` have staged the rows, and `readers` the lineage of the `decoded` records. Raises StagedRowsDiffer if
    the table of lineage does not hold all of these.
    """
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL("select count(*) from {} where task_attempt = any({})").format(
                identifier(tables.lineage), sql.Literal(list(readers))
            )
        )
        if cursor.fetchone()[0] != decoded:
            raise StagedRowsDiffer(
                f"staging table {tables.lineage} does not hold the {decoded} records that were decoded: Spark "
                f"lost some and read them again, or Postgres was restarted. Nothing was written; try again.",
                batch_id=tables.batch_id,
            )
        cursor.execute(
            sql.SQL(
                "select concat_ws(' ', coalesce(kafka_topic, 'null'), 'partition', "
                "coalesce(kafka_partition::text, 'null'), 'offset', coalesce(kafka_offset::text, 'null'), "
                "'of', coalesce(kafka_timestamp::text, 'no time')) "
                "from (select kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, true as has_time "
                "from {rows} where task_attempt = any({attempts}) union all "
                'select topic, partition, "offset", null, false from {rejects} '
                "where task_attempt = any({notes})) r "
                "where not exists (select from {lineage} l "
                "where l.task_attempt = any({readers}) and l.kafka_topic = r.kafka_topic "
                "and l.kafka_partition = r.kafka_partition and l.kafka_offset = r.kafka_offset "
                "and (l.kafka_timestamp is not distinct from r.kafka_timestamp or not has_time)) limit 1"
            ).format(
                rows=identifier(tables.rows),
                rejects=identifier(tables.rejects),
                lineage=identifier(tables.lineage),
                attempts=sql.Literal(list(attempts)),
                notes=sql.Literal(list(map(note_attempt, attempts))),
                readers=sql.Literal(list(readers)),
            )
        )
        if (forged := cursor.fetchone()) is not None:
            raise TransformRefused(
                f"pipeline {pipeline.name!r}: the transform returned a row with the lineage {forged[0]}, which no "
                f"decoded record has. Nothing was written. Let the transform pass {', '.join(LINEAGE_NAMES)} "
                f"through unchanged.",
                batch_id=tables.batch_id,
            )


def records_with_rows(connection: Connection, tables: StagingTables, staged: StagedBatch) -> int:
    """Return how many records the staged rows, and those that could not be staged, come from. Raises
    TransformRefused for a record that was not read."""
    with transaction(connection):
        records, foreign = count_staged_records(
            connection,
            tables.batch_id,
            rows=identifier(tables.rows),
            rejects=identifier(tables.rejects),
            attempts=staged.attempts,
            notes=list(map(note_attempt, staged.attempts)),
        )
    decoded = sum(split.decoded for split in staged.splits)
    if foreign is not None or records > decoded:
        raise TransformRefused(
            f"the rows of the transform come from {records} records, although {decoded} were decoded"
            + (
                f"; one carries the lineage {foreign}, which is not in the batch"
                if foreign is not None
                else ""
            )
            + f". Nothing was written. Let the transform pass {', '.join(LINEAGE_NAMES[:3])} through unchanged.",
            batch_id=tables.batch_id,
        )
    return records
