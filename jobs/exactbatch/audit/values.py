"""Do rows hold what their records say? The records are decoded again, and compared in Postgres.

Decoding is what gives values their meaning: the auditor cannot but use the pipeline's own format for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from psycopg2 import sql

from exactbatch.audit.derived import different
from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats import WithMessage, as_changes, with_registry
from exactbatch.formats.message import read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks import Aggregate, Sum, Window
from exactbatch.sinks.append import LINEAGE
from exactbatch.sinks.groups import listed, same_group

_TABLE: Final = "exactbatch_expected"  # a temporary table
# Milliseconds: the start of Postgres's timestamps, and the last one whose microseconds fit 64 bits.
_OLDEST: Final = EARLIEST_TIMESTAMP // 1000
_NEWEST: Final = (2**63 - 1) // 1000
_EXPECTED: Final = sql.Identifier("pg_temp", _TABLE)
_TIMESTAMP: Final = next(column for column in LINEAGE if column.name == "kafka_timestamp")
_BATCH: Final = "exactbatch batch"  # the column for the batch that covers a record
# Of a record e: that it is no reject.
_NOT_REJECTED: Final = sql.SQL(
    "not exists (select from exactbatch.rejected_record r where r.pipeline = $1 and r.topic = e.kafka_topic "
    'and r.partition = e.kafka_partition and r."offset" = e.kafka_offset)'
)
_FIRST: Final = "select q.o, count(*) over () from ({}) q (o) order by 1 limit 10"


class ExpectedValues:
    """What the records of the log decode to, in a temporary table beside the target.

    Raises ConfigurationError for a pipeline with a transform, whose values only Spark can tell, and for an
    Append that works by batch, whose rows name no record.
    """

    def __init__(
        self, results: ArrowConnection, connection: Connection, pipeline: Pipeline, kafka: Mapping[str, Any]
    ) -> None:
        sink = pipeline.sink
        if pipeline.is_transformed or (sink.lineage == "batch" and not isinstance(sink, Aggregate)):
            raise ConfigurationError(
                f"pipeline {pipeline.name!r}: expected rows whose values follow from one record each, which an "
                f"audit of values needs, found a transform or lineage='batch'. Audit it without --values."
            )
        self._results, self._connection, self._pipeline = results, connection, pipeline
        self._value, self._key = with_registry(pipeline.value, kafka), with_registry(pipeline.key, kafka)
        self._columns = sink.staged_columns(pipeline.value.columns)
        self._window: _Window | None = None  # where the records lie that were added since the last comparison
        self._schema = pa.schema(
            [
                ("kafka_partition", pa.int32()),
                ("kafka_offset", pa.int64()),
                ("kafka_timestamp", pa.timestamp("us", "UTC")),
                ("kafka_topic", pa.string()),
                (_BATCH, pa.int64()),
                *((column.name, column.arrow_type) for column in self._columns),
            ]
        )
        # Records that are rejects, until they are compared: offset and batch.
        self._refused: list[tuple[int, int]] = []
        with transaction(connection) as cursor:
            found = [] if isinstance(sink, Aggregate) else self._misfits(cursor)
        self._misfit = sql.SQL(" or ").join(found) if found else sql.SQL("false")
        with results.cursor() as cursor:
            cursor.adbc_ingest(_TABLE, self._schema.empty_table(), mode="create", temporary=True)

    def add(self, topic: str, partition: int, messages: Sequence[Message], batches: Sequence[int]) -> None:
        """Decode records of one partition, whose offsets rise; `batches` are those that cover them, as the ledger
        says. The records of one partition are compared before the next one's are added, but for partial results.
        """
        first, last = messages[0].offset() or 0, messages[-1].offset() or 0
        if self._window is not None and (self._window.topic, self._window.partition) == (topic, partition):
            first = self._window.first
        self._window = _Window(topic, partition, first, last)
        values = pa.array([each.value() for each in messages], pa.binary())
        beside = _Beside(messages)
        decoded = (
            self._value.decode(values, beside)
            if isinstance(self._value, WithMessage)
            else self._value.decode(values)
        )
        if self._pipeline.sink.keeps_deletes:
            names = {column.name for column in self._pipeline.value.columns}
            key = tuple(name for name in self._pipeline.sink.key if name in names)
            deletes = self._value.tombstone_deletes
            decoded = as_changes(decoded, values, beside.keys(), self._key, key, tombstones_delete=deletes)
        self._refused += [(messages[at].offset() or 0, batches[at]) for at, _ in decoded.rejects]
        n = len(decoded.rows)
        lineage = [
            pa.repeat(pa.scalar(partition, pa.int32()), n),
            pa.array([each.offset() for each in messages], pa.int64()).take(decoded.kept),
            beside.timestamps().take(decoded.kept).cast(pa.timestamp("us", "UTC")),
            pa.repeat(topic, n),
            pa.array(batches, pa.int64()).take(decoded.kept),
        ]
        rows = pa.RecordBatch.from_arrays([*lineage, *decoded.rows.columns], schema=self._schema)
        with self._results.cursor() as cursor:
            cursor.adbc_ingest(_TABLE, rows, mode="append", temporary=True)

    def differing(self) -> tuple[list[int], int]:
        """The first offsets of rows that have other values than their record, and how many there are.

        A row differs also where its record, or a value of it, would be a reject: what stands there was rounded,
        cut, or taken for what it is not. Forgets what was added so far. Rows and records that have no counterpart
        are told by the comparison of offsets, and so is a row of another batch than the one that covers it.
        """
        if self._window is None:
            return [], 0
        found = self._fetch(sql.SQL(_FIRST).format(self._differing(self._window)))
        with self._results.cursor() as cursor:
            cursor.execute(sql.SQL("truncate {}").format(_EXPECTED).as_string(self._connection))
        self._refused.clear()
        self._window = None
        return [row[0] for row in found], found[0][1] if found else 0

    def _differing(self, window: "_Window") -> sql.Composable:
        """The query for the offsets of rows that differ.

        The window's bounds let Postgres find its rows by an index, where there is one.
        """
        contributions = self._pipeline.sink.contributions.table
        names = (*(column.name for column in self._columns), _TIMESTAMP.name)
        types = self._types(contributions)
        return sql.SQL(
            # Materialized: what a rejected record holds may have no cast.
            "with e as materialized (select *, {misfit} as {has_misfit} from {expected} e where {not_rejected}) "
            "select e.kafka_offset from e join {contributions} t on t.kafka_offset = e.kafka_offset "
            "and t.batch_id = e.{batch} where {in_window} "
            "and case when e.{has_misfit} then true else record_image_ne(row({made}), row({found})) end "
            "{refused}"
        ).format(
            misfit=self._misfit,
            has_misfit=sql.Identifier("exactbatch misfit"),
            expected=_EXPECTED,
            not_rejected=_NOT_REJECTED,
            contributions=contributions,
            batch=sql.Identifier(_BATCH),
            in_window=window.has("t"),
            made=sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Identifier("e", name), sql.SQL(types[name])) for name in names
            ),
            found=listed(names, of="t"),
            refused=self._rows_of_refused(contributions, window),
        )

    def differing_partials(self, whole: Sequence[int]) -> int:
        """How many partial results of these batches there are that the records do not make, or the other way
        round. All records of these batches have been added.

        Sums of floating point numbers depend on the order of the records, and are left out.
        """
        sink = self._pipeline.sink
        assert isinstance(sink, Aggregate)
        columns = {column.name: column for column in (*self._columns, _TIMESTAMP)}
        measures = {
            name: measure
            for name, measure in sink.measures.items()
            if not (isinstance(measure, Sum) and measure.type_of(columns) == "double precision")
        }
        groups = [each.of_row if isinstance(each, Window) else _of_row(columns[each]) for each in sink.by]
        values = [
            measure.over_rows(
                sql.SQL("*") if measure.column is None else _of_row(columns[measure.column]),
                measure.type_of(columns),
            )
            for measure in measures.values()
        ]
        types = self._types(sink.contributions.table)
        names = [*sink.by_names, *measures, "records"]
        query = sql.SQL(
            "with e as materialized (select e.* from {expected} e where e.{batch} = any({whole}) "
            "and {not_rejected}), "
            "made as (select {made}, count(*) as records, {batch} as batch_id from e "
            "group by {numbers}, {batch}), "
            "found as (select {names}, batch_id from {partial} where batch_id = any({whole})) {different}"
        ).format(
            batch=sql.Identifier(_BATCH),
            expected=_EXPECTED,
            not_rejected=_NOT_REJECTED,
            whole=sql.SQL("{}::bigint[]").format(sql.Literal(list(whole))),
            made=sql.SQL(", ").join(
                sql.SQL("({})::{} as {}").format(value, sql.SQL(types[name]), sql.Identifier(name))
                for name, value in zip(names, [*groups, *values], strict=False)
            ),
            numbers=sql.SQL(", ").join(sql.SQL(str(at + 1)) for at in range(len(groups))),
            names=listed(names),
            partial=sink.contributions.table,
            different=different(
                sql.SQL("m.batch_id = t.batch_id and {}").format(same_group(sink.by_names, "m", "t")),
                [*measures, "records"],
                counted=sql.SQL("select count(*) from found"),
            ),
        )
        return int(self._fetch(query)[0][0])

    def _misfits(self, cursor: Cursor) -> list[sql.Composable]:
        """What is true of a record whose values the columns cannot hold as they are."""
        columns = self._pipeline.value.columns
        found = self._pipeline.sink.misfits(cursor, columns, batch_id=0)
        return [sql.SQL("coalesce({}, false)").format(misfit.condition) for misfit in found]

    def _rows_of_refused(self, contributions: sql.Composable, window: "_Window") -> sql.Composable:
        """A further query, for the rows of records that are rejects."""
        if not self._refused:
            return sql.SQL("")
        offsets, batches = zip(*self._refused, strict=True)
        return sql.SQL(
            "union all select t.kafka_offset from {contributions} t where {in_window} "
            "and (t.kafka_offset, t.batch_id) in (select * from unnest({offsets}::bigint[], {batches}::bigint[]))"
        ).format(
            contributions=contributions,
            in_window=window.has("t"),
            offsets=sql.Literal(list(offsets)),
            batches=sql.Literal(list(batches)),
        )

    def _types(self, table: sql.Composable) -> dict[str, str]:
        query = sql.SQL(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = {}::regclass and attnum > 0 and $1 <> '' and not attisdropped"
        ).format(sql.Literal(table.as_string(self._connection)))
        return dict(self._fetch(query))

    def _fetch(self, query: sql.Composable) -> list[tuple[Any, ...]]:
        """The rows of a query whose first parameter is the pipeline's name."""
        with self._results.cursor() as cursor:
            # Of tables without statistics Postgres expects few rows, and would loop over all of them for each row.
            cursor.execute("set local enable_nestloop = off")
            cursor.execute(query.as_string(self._connection), (self._pipeline.name,))
            rows = list(cursor.fetchall())
            cursor.execute("set local enable_nestloop = on")
        return rows


@dataclass(frozen=True, slots=True)
class _Window:
    """Records of one partition, from the first to the last offset."""

    topic: str
    partition: int
    first: int
    last: int

    def has(self, row: str) -> sql.Composable:
        """Whether a row of contributions lies in it."""
        return sql.SQL(
            "{row}.kafka_topic = {topic} and {row}.kafka_partition = {partition} "
            "and {row}.kafka_offset between {first} and {last}"
        ).format(
            row=sql.Identifier(row),
            topic=sql.Literal(self.topic),
            partition=sql.Literal(self.partition),
            first=sql.Literal(self.first),
            last=sql.Literal(self.last),
        )


class _Beside:
    """What records have beside their values."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        return pa.array([each.key() for each in self._messages], pa.binary())

    def headers(self) -> list[Any]:
        """For each record its headers, as read_headers() gives them."""
        return read_headers(self._messages)

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC; null where the record has none (-1), or one that does not fit
        Postgres in microseconds."""
        told = [each.timestamp() for each in self._messages]
        unset = np.array([kind == 0 or ms == -1 or not _OLDEST <= ms <= _NEWEST for kind, ms in told], bool)
        return pa.array(
            np.array([ms for _, ms in told], "datetime64[ms]"), pa.timestamp("ms", "UTC"), mask=unset
        )


def _of_row(column: Column) -> sql.Composable:
    # Also where it is staged as it is: ADBC makes a numeric(12,2) a numeric, and 1.50 a 1.5.
    return sql.SQL("{}::{}").format(sql.Identifier(column.name), sql.SQL(column.type))
