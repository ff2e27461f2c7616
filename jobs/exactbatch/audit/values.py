"""Compare the values of rows with their records, which are decoded again.

Only decoding gives values their meaning, so that the auditor has to use the pipeline's own format.

Postgres decides which values differ: it casts the decoded values to the target's types, and compares bytes. Where no
cast is needed, this process compares the values first, and Postgres only sees the records that are not obviously equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from psycopg2 import sql

from exactbatch.audit.audit_result import Differences, Offsets
from exactbatch.audit.covering import find_covering_batch, has_folded
from exactbatch.audit.derived import difference
from exactbatch.audit.equal_values import COMPARABLE, UNSTORABLE, find_unequal_records, several_differ
from exactbatch.audit.json_members import find_audited_decoder
from exactbatch.audit.log_records import LogRecords, decode_records, violations
from exactbatch.audit.log_windows import OffsetWindow
from exactbatch.audit.snapshot import Snapshot
from exactbatch.columns import LINEAGE
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.model import Evolve
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Cursor, transaction
from exactbatch.sinks.capabilities import Compacts, ComparesBatches
from exactbatch.sinks.values.null_safe_groups import column_list
from exactbatch.sinks.writer import SinkWriter

EXPECTED_TABLE: Final = "exactbatch_expected"  # a temporary table
EXPECTED: Final = sql.Identifier("pg_temp", EXPECTED_TABLE)
_TIMESTAMP: Final = next(column for column in LINEAGE if column.name == "kafka_timestamp")
_BATCH: Final = "exactbatch batch"  # the column for the batch that covers a record
BATCH: Final = sql.Identifier(_BATCH)
# A condition for records e that are not rejects.
NOT_REJECTED: Final = sql.SQL(
    "not exists (select from exactbatch.rejected_record r where r.pipeline = $1 and r.topic = e.kafka_topic "
    'and r.partition = e.kafka_partition and r."offset" = e.kafka_offset)'
)
# The decoded records to hold in memory, with as many rows, before they are compared.
_HELD_RECORDS: Final = 200_000
_HELD_BYTES: Final = 128 * 1024 * 1024
_FIRST: Final = "select q.o, count(*) over () from ({}) q (o) order by 1 limit 10"


class ExpectedValues:
    """The decoded values of the log's records, in a temporary table of the target's database.

    Raises ConfigurationError for a pipeline with a transform, whose values only Spark can compute, and for an Append
    with lineage="batch", whose rows name no record.
    """

    def __init__(
        self, snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter, kafka: Mapping[str, Any]
    ) -> None:
        traits = writer.traits
        if pipeline.is_transformed or not traits.values_follow_from_records:
            raise ConfigurationError(
                f"pipeline {pipeline.name!r} has a transform or lineage='batch': an audit of values needs rows that "
                f"each follow from one record. Audit it without --values."
            )
        self._snapshot, self._pipeline, self._writer = snapshot, pipeline, writer
        value, key = with_registry(pipeline.value, kafka), with_registry(pipeline.message_key, kafka)
        self._value = RecordDecoder(value, find_audited_decoder(value))
        self._key = None if key is None else find_decoder(key)
        self._gives_several = pipeline.value.gives_several_rows
        self._columns = traits.staged_columns(pipeline.value.columns)
        self._window: OffsetWindow | None = None  # the records added since the last comparison
        self._schema = pa.schema(
            [
                ("kafka_partition", pa.int32()),
                ("kafka_offset", pa.int64()),
                ("kafka_timestamp", pa.timestamp("us", "UTC")),
                ("kafka_topic", pa.string()),
                (_BATCH, pa.int64()),
                # Checks see all columns of a record, also those that only other targets of a Route have.
                *(
                    (column.name, column.arrow_type)
                    for column in replace(traits, route=None).staged_columns(pipeline.value.columns)
                ),
            ]
        )
        # Offset and batch of records that are rejects, until they are compared.
        self._refused: list[tuple[int, int]] = []
        # The same of records that give no row, where a record gives any number of them.
        self._without_rows: list[tuple[int, int]] = []
        with transaction(snapshot.connection) as cursor:
            conditions = self._unstorable(cursor)
        self._is_unstorable = sql.SQL(" or ").join(conditions) if conditions else sql.SQL("false")
        self._decoded: list[pa.RecordBatch] = []  # of the window
        self._types = snapshot.list_types(writer.lineage_table.identifier)
        batch = sql.Identifier("t", "batch_id")
        folded = has_folded(snapshot, [pipeline.name])
        self._row_batch = find_covering_batch(batch, pipeline.name) if folded else batch
        # True if every decoded value has the type of its column.
        self._is_plain = not (conditions or self._gives_several) and all(
            column.staged_type in COMPARABLE and self._types.get(column.name) == column.staged_type
            for column in (*self._columns, _TIMESTAMP)
        )
        snapshot.create_temporary(EXPECTED_TABLE, self._schema)

    @property
    def is_full(self) -> bool:
        """True if as many records were added as should be held in memory: compare them now."""
        records, bytes_ = sum(map(len, self._decoded)), sum(each.nbytes for each in self._decoded)
        return records >= _HELD_RECORDS or bytes_ >= _HELD_BYTES

    def add(
        self, topic: str, partition: int, offsets: Offsets, records: LogRecords, batches: Offsets
    ) -> None:
        """Decode records of one partition, whose offsets ascend; `batches` cover them, according to the ledger.

        The records of one partition are compared before the next partition's are added, except for partial results.
        """
        first, last = int(offsets[0]), int(offsets[-1])
        if self._window is not None and (self._window.topic, self._window.partition) == (topic, partition):
            first = self._window.first
        self._window = OffsetWindow(topic, partition, first, last)
        timestamps = records.timestamps().cast(_TIMESTAMP.arrow_type)
        place = topic, partition
        traits = self._writer.traits
        for at, decoded in decode_records(
            self._pipeline, traits, self._value, self._key, records, place, offsets
        ):
            self._keep(offsets[at], timestamps[at], batches[at], decoded, self._window)

    def _keep(
        self,
        offsets: Offsets,
        timestamps: pa.TimestampArray,
        batches: Offsets,
        decoded: Decoded,
        window: OffsetWindow,
    ) -> None:
        """Keep what records of the window were decoded to, if the target has it."""
        if (route := self._writer.traits.route) is not None:
            is_here = pa.array(
                [not route.goes_elsewhere(each.as_py()) for each in decoded.rows.column(route.by)]
            )
            decoded = replace(decoded, rows=decoded.rows.filter(is_here), kept=decoded.kept.filter(is_here))
        n = len(decoded.rows)
        lineage = [
            pa.repeat(pa.scalar(window.partition, pa.int32()), n),
            pa.array(offsets, pa.int64()).take(decoded.kept),
            timestamps.take(decoded.kept),
            pa.repeat(window.topic, n),
            pa.array(batches, pa.int64()).take(decoded.kept),
        ]
        rows = pa.RecordBatch.from_arrays([*lineage, *decoded.rows.columns], schema=self._schema)
        if self._writer.traits.lineage == "batch":
            self._snapshot.append_temporary(
                EXPECTED_TABLE, rows
            )  # find_differing_batches() needs all of them
            return
        self._decoded.append(rows)
        self._refused += [(int(offsets[at]), int(batches[at])) for at, _ in decoded.rejects]
        if self._gives_several:
            given = {*decoded.kept.to_pylist(), *(at for at, _ in decoded.rejects)}
            lacking = [at for at in range(len(offsets)) if at not in given]
            self._without_rows += [(int(offsets[at]), int(batches[at])) for at in lacking]

    def differing(self) -> Differences:
        """Return the rows whose values differ from their records; none if rows do not name their records.

        A row also differs if its record would be a reject: its values were rounded, truncated or misread. Forgets the
        records that were added. The comparison of offsets reports rows and records without a counterpart, and rows of
        another batch than the one that covers them.
        """
        if self._window is None or self._writer.traits.lineage == "batch":
            return Differences()
        suspects = pa.Table.from_batches(self._decoded, self._schema)
        if self._is_plain and len(suspects):
            suspects = suspects.filter(self._is_unequal(suspects, self._window))
        found = Differences()
        if len(suspects) or self._refused or self._without_rows:
            self._snapshot.append_temporary(EXPECTED_TABLE, suspects)
            rows = self._fetch(sql.SQL(_FIRST).format(self._differing(self._window)))
            self._snapshot.execute(sql.SQL("truncate {}").format(EXPECTED))
            found = Differences(rows[0][1] if rows else 0, [row[0] for row in rows])
        self._forget()
        return found

    def _forget(self) -> None:
        """Forget the records of the window."""
        self._decoded.clear()
        self._refused.clear()
        self._without_rows.clear()
        self._window = None

    def _is_unequal(self, decoded: pa.Table, window: "OffsetWindow") -> pa.BooleanArray:
        """Return which decoded records of the window may differ from their rows."""
        names = [column.name for column in (*self._columns, _TIMESTAMP)]
        query = sql.SQL("select t.kafka_offset::bigint, {}::bigint, {} from {} t where {}").format(
            self._row_batch,
            column_list(names, of="t"),
            self._writer.lineage_table.in_snapshot,
            window.has("t"),
        )
        actual = self._snapshot.table(query).rename_columns(["kafka_offset", _BATCH, *names])
        return find_unequal_records(decoded.select(actual.column_names), actual, by=("kafka_offset", _BATCH))

    def _differing(self, window: "OffsetWindow") -> sql.Composable:
        """Return a query for the offsets of rows that differ.

        The window's bounds let Postgres use an index, if there is one.
        """
        lineage_table = self._writer.lineage_table.in_snapshot
        names = (*(column.name for column in self._columns), _TIMESTAMP.name)
        expected_values = sql.SQL(", ").join(map(self._as_stored, names))
        if self._gives_several:
            may_lack = isinstance(self._writer, Compacts)
            differing = several_differ(
                lineage_table,
                in_window=window.has("t"),
                row_batch=self._row_batch,
                batch=sql.Identifier(_BATCH),
                expected=expected_values,
                actual=column_list(names, of="t"),
                without_rows=self._without_rows,
                may_lack_rows=may_lack,
            )
            return sql.SQL(
                "with e as materialized (select *, {is_unstorable} as {unstorable} from {expected} e "
                "where {not_rejected}) {differing} {refused}"
            ).format(
                is_unstorable=self._is_unstorable,
                unstorable=UNSTORABLE,
                expected=EXPECTED,
                not_rejected=NOT_REJECTED,
                differing=differing,
                refused=self._rows_of_refused(lineage_table, window),
            )
        return sql.SQL(
            # Materialized, because a cast of a rejected record's values may fail.
            "with e as materialized "
            "(select *, {is_unstorable} as {unstorable} from {expected} e where {not_rejected}) "
            "select e.kafka_offset from e join {lineage_table} t on t.kafka_offset = e.kafka_offset "
            "and {row_batch} = e.{batch} where {in_window} "
            "and case when e.{unstorable} then true "
            "else record_image_ne(row({expected_values}), row({actual_values})) end "
            "{refused}"
        ).format(
            is_unstorable=self._is_unstorable,
            unstorable=UNSTORABLE,
            expected=EXPECTED,
            not_rejected=NOT_REJECTED,
            lineage_table=lineage_table,
            batch=sql.Identifier(_BATCH),
            row_batch=self._row_batch,
            in_window=window.has("t"),
            expected_values=expected_values,
            actual_values=column_list(names, of="t"),
            refused=self._rows_of_refused(lineage_table, window),
        )

    def _as_stored(self, name: str) -> sql.Composable:
        """Return a decoded value of e as the column of the lineage table holds it."""
        value: sql.Composable = sql.Identifier("e", name)
        decimal = next(
            (c.staged_type for c in self._columns if c.name == name and "numeric(" in c.staged_type), ""
        )
        if decimal:
            # ADBC has left out the zeros at the end, which are a part of the value.
            value = sql.SQL("{}::{}").format(value, sql.SQL(decimal))
        return sql.SQL("{}::{}").format(value, sql.SQL(self._types[name]))

    def find_differing_batches(self, whole: Sequence[int]) -> int:
        """Return how many rows of these batches differ from those that their records give.

        For a sink whose rows do not name their records. All records of these batches have been added.
        """
        if not isinstance(self._writer, ComparesBatches):
            return 0
        batch = sql.Identifier(_BATCH)
        batch_ids = sql.SQL("{}::bigint[]").format(sql.Literal(list(whole)))
        comparison = self._writer.compare_batches(
            sql.SQL("e"),
            batch,
            self._columns,
            self._snapshot.list_types(self._writer.lineage_table.identifier),
            batch_ids,
        )
        query = sql.SQL(
            "with seen as materialized (select e.*, {is_unstorable} as {unstorable} from {records} e "
            "where e.{batch} = any({batch_ids}) and {not_rejected}), "
            "e as materialized (select * from seen where not {unstorable}), expected as ({expected}), "
            "actual as ({actual}) {difference}"
        ).format(
            records=EXPECTED,
            batch=batch,
            batch_ids=batch_ids,
            not_rejected=NOT_REJECTED,
            is_unstorable=self._is_unstorable,
            unstorable=UNSTORABLE,
            expected=comparison.expected,
            actual=comparison.actual,
            difference=difference(comparison),
        )
        return int(self._fetch(query)[0][0])

    def _unstorable(self, cursor: Cursor) -> list[sql.Composable]:
        """Return conditions for records whose values the columns cannot hold unchanged."""
        traits = self._writer.traits
        columns = traits.own_columns(self._pipeline.value.columns)
        # Without the rule for late rows, which depends on what was loaded before each batch.
        evolve: Evolve | None = None if traits.lineage == "record" else "refuse"
        rules = self._writer.reject_rules(cursor, columns, batch_id=0, evolve=evolve)
        return [
            *(sql.SQL("coalesce({}, false)").format(rule.condition) for rule in rules),
            *violations(
                self._pipeline.value.columns, self._pipeline.row_checks, keeps_deletes=traits.keeps_deletes
            ),
        ]

    def _rows_of_refused(self, lineage_table: sql.Composable, window: "OffsetWindow") -> sql.Composable:
        """Return another part of the query, for the rows of records that are rejects."""
        if not self._refused:
            return sql.SQL("")
        offsets, batches = zip(*self._refused, strict=True)
        return sql.SQL(
            "union all select t.kafka_offset from {lineage_table} t where {in_window} "
            "and (t.kafka_offset, {row_batch}) in (select * from unnest({offsets}::bigint[], {batches}::bigint[]))"
        ).format(
            row_batch=self._row_batch,
            lineage_table=lineage_table,
            in_window=window.has("t"),
            offsets=sql.Literal(list(offsets)),
            batches=sql.Literal(list(batches)),
        )

    def _fetch(self, query: sql.Composable) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose parameter is the pipeline's name."""
        # Postgres expects few rows in tables without statistics, and would loop over all of them for each row.
        self._snapshot.execute(sql.SQL("set local enable_nestloop = off"))
        rows = self._snapshot.rows(query, self._pipeline.name)
        self._snapshot.execute(sql.SQL("set local enable_nestloop = on"))
        return rows
