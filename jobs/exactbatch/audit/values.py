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

from exactbatch.audit.derived import difference
from exactbatch.errors import ConfigurationError
from exactbatch.formats import WithMessage, as_changes, with_registry
from exactbatch.formats.message import read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks.lineage_table import LINEAGE
from exactbatch.sinks.null_safe_groups import column_list

_TABLE: Final = "exactbatch_expected"  # a temporary table
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
        if pipeline.is_transformed or not sink.values_follow_from_records:
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
            conditions = self._unstorable(cursor) if sink.lineage == "record" else []
        self._is_unstorable = sql.SQL(" or ").join(conditions) if conditions else sql.SQL("false")
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
            key = tuple(name for name in self._pipeline.sink.key_columns if name in names)
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
        lineage_table = self._pipeline.sink.lineage_table.identifier
        names = (*(column.name for column in self._columns), _TIMESTAMP.name)
        types = self._types(lineage_table)
        return sql.SQL(
            # Materialized: what a rejected record holds may have no cast.
            "with e as materialized "
            "(select *, {is_unstorable} as {unstorable} from {expected} e where {not_rejected}) "
            "select e.kafka_offset from e join {lineage_table} t on t.kafka_offset = e.kafka_offset "
            "and t.batch_id = e.{batch} where {in_window} "
            "and case when e.{unstorable} then true else record_image_ne(row({made}), row({found})) end "
            "{refused}"
        ).format(
            is_unstorable=self._is_unstorable,
            unstorable=sql.Identifier("exactbatch unstorable"),
            expected=_EXPECTED,
            not_rejected=_NOT_REJECTED,
            lineage_table=lineage_table,
            batch=sql.Identifier(_BATCH),
            in_window=window.has("t"),
            made=sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Identifier("e", name), sql.SQL(types[name])) for name in names
            ),
            found=column_list(names, of="t"),
            refused=self._rows_of_refused(lineage_table, window),
        )

    def differing_batches(self, whole: Sequence[int]) -> int:
        """How many rows these batches have that their records do not give, or the other way round.

        For a sink whose rows do not name their records. All records of these batches have been added.
        """
        sink = self._pipeline.sink
        batch = sql.Identifier(_BATCH)
        batch_ids = sql.SQL("{}::bigint[]").format(sql.Literal(list(whole)))
        comparison = sink.compare_batches(
            sql.SQL("e"), batch, self._columns, self._types(sink.lineage_table.identifier), batch_ids
        )
        if comparison is None:
            return 0
        query = sql.SQL(
            "with e as materialized (select e.* from {records} e where e.{batch} = any({batch_ids}) "
            "and {not_rejected}), expected as ({expected}), actual as ({actual}) {difference}"
        ).format(
            records=_EXPECTED,
            batch=batch,
            batch_ids=batch_ids,
            not_rejected=_NOT_REJECTED,
            expected=comparison.expected,
            actual=comparison.actual,
            difference=difference(comparison),
        )
        return int(self._fetch(query)[0][0])

    def _unstorable(self, cursor: Cursor) -> list[sql.Composable]:
        """The conditions of records whose values the columns cannot hold as they are."""
        columns = self._pipeline.value.columns
        rules = self._pipeline.sink.reject_rules(cursor, columns, batch_id=0)
        return [sql.SQL("coalesce({}, false)").format(rule.condition) for rule in rules]

    def _rows_of_refused(self, lineage_table: sql.Composable, window: "_Window") -> sql.Composable:
        """A further query, for the rows of records that are rejects."""
        if not self._refused:
            return sql.SQL("")
        offsets, batches = zip(*self._refused, strict=True)
        return sql.SQL(
            "union all select t.kafka_offset from {lineage_table} t where {in_window} "
            "and (t.kafka_offset, t.batch_id) in (select * from unnest({offsets}::bigint[], {batches}::bigint[]))"
        ).format(
            lineage_table=lineage_table,
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
        """Whether a row of the lineage table lies in it."""
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
        unset = np.array(
            [
                kind == 0 or ms == -1 or not EARLIEST_TIMESTAMP_MS <= ms <= LATEST_TIMESTAMP_MS
                for kind, ms in told
            ],
            bool,
        )
        return pa.array(
            np.array([ms for _, ms in told], "datetime64[ms]"), pa.timestamp("ms", "UTC"), mask=unset
        )
