"""Put the results of a batch into the outbox, in the transaction that commits them.

The sink's statements note the rows of the target that they write and delete, with key and value as the bytes of
messages, in a temporary table (postgres/connection.py). Postgres makes them: no row reaches Python.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, ResultTooLarge, TargetMismatch
from exactbatch.failpoints import failpoint
from exactbatch.ledger import Batch, Streams
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import CREATE_WRITTEN, WRITTEN, Cursor, WrittenRows
from exactbatch.postgres.sql_text import ROW
from exactbatch.postgres.types import PgType, pg_types
from exactbatch.sinks.values.byte_equality import has_one_image
from exactbatch.sinks.writer import SinkWriter
from exactbatch.to_topic import ToTopic

_RESULTS: Final = sql.Identifier("pg_temp", "exactbatch_result")
# Numbers that a consumer may read as double precision.
_WIDE_NUMBERS: Final = ("int8", "numeric")

# Rows that a replay deletes and writes again with the same message are no correction, whatever their order. Of the
# others the last ones count: n equal messages that become m.
_OF_ROWS: Final = sql.SQL(
    "select number, case when removed then 'retracted' else 'row' end as change, key, value from ("
    "select number, removed, key, value, "
    "row_number() over (partition by removed, key, value order by number) as place, "
    "count(*) filter (where not removed) over same as written, "
    "count(*) filter (where removed) over same as removals "
    "from {written} window same as (partition by key, value)) noted "
    "where place > case when removed then written else removals end"
)
# Without removed rows, all rows are results: nothing is sorted by its whole message while the pipeline is locked.
_OF_WRITTEN_ROWS: Final = sql.SQL("select number, 'row' as change, key, value from {written}")
# A row of a derived target may be written twice in a batch: once for its values, and once for its finality.
_OF_KEYS: Final = sql.SQL(
    "select distinct on (key) number, case when removed then 'deleted' else 'row' end as change, key, "
    "case when not removed then value end as value from {written} order by key, number desc"
)


@dataclass(frozen=True, slots=True)
class Outbox:
    """Where the results of one transaction go; see noting()."""

    cursor: Cursor
    pipeline: Pipeline
    forward: ToTopic

    def write(self, batch: Batch) -> int:
        """Put what the transaction has changed into the outbox; return how many results that is.

        Raises ResultTooLarge, TargetMismatch for a result without a key, and if something alters the outbox.
        """
        cursor = self.cursor
        cursor.execute(
            sql.SQL("create temporary table exactbatch_result on commit drop as {}").format(
                self._of_what().format(written=WRITTEN)
            )
        )
        results = int(cursor.rowcount)
        if self._has_text_key:
            # A row without a key was never sent in this format: it is from before the pipeline forwarded its results.
            cursor.execute(sql.SQL("delete from {} where key is null and change <> 'row'").format(_RESULTS))
            results -= cursor.rowcount
        if results:
            self._check_results(batch)
            stream_id, before = Streams(cursor.connection).number_results(self.pipeline, results)
            cursor.execute(
                sql.SQL(
                    "insert into exactbatch.outbox (stream_id, sequence, batch_id, change, key, value) "
                    "select {stream_id}, {before} + row_number() over (order by number), {batch_id}, change, key, "
                    "value from {results}"
                ).format(
                    stream_id=sql.Literal(stream_id),
                    before=sql.Literal(before),
                    batch_id=sql.Literal(batch.batch_id),
                    results=_RESULTS,
                )
            )
            if cursor.rowcount != results:
                raise TargetMismatch(
                    f"batch {batch.batch_id}: it has {results} results to forward, and {cursor.rowcount} arrived in "
                    f"exactbatch.outbox: a trigger, a rule or a policy discards rows. Nothing was written. Drop it.",
                    batch_id=batch.batch_id,
                )
        cursor.execute(sql.SQL("drop table {}, {}").format(_RESULTS, WRITTEN))
        failpoint("forward.after_outbox")
        return results

    @property
    def _has_text_key(self) -> bool:
        return self.forward.key_format == "text" and bool(
            self.forward.key_columns(self.pipeline.traits.key_columns)
        )

    def _of_what(self) -> sql.SQL:
        """Return the query that makes results of the rows that were noted."""
        if self.pipeline.traits.is_derived:
            return _OF_KEYS
        self.cursor.execute(sql.SQL("select exists (select from {} where removed)").format(WRITTEN))
        return _OF_ROWS if self.cursor.fetchone()[0] else _OF_WRITTEN_ROWS

    def _check_results(self, batch: Batch) -> None:
        self.cursor.execute(
            sql.SQL(
                "select left(convert_from(key, 'UTF8'), 200) as key, key is null as lacks_key, "
                "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) as bytes from {results} "
                "where (key is null and {has_key}) "
                "or coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) > {limit} order by number limit 1"
            ).format(
                results=_RESULTS,
                has_key=sql.Literal(self._has_text_key),
                limit=sql.Literal(self.forward.max_bytes),
            )
        )
        if (row := self.cursor.fetchone()) is None:
            return
        if row.lacks_key:
            raise TargetMismatch(
                f"batch {batch.batch_id}: a result for the topic {self.forward.topic!r} has null as its key, and "
                f"key_format='text' cannot write it. Nothing was written. Use key_format='json', or let a "
                f"transform leave such rows out.",
                batch_id=batch.batch_id,
            )
        raise ResultTooLarge(
            f"batch {batch.batch_id}: the result with the key {row.key} for the topic {self.forward.topic!r} has "
            f"{row.bytes:,} bytes, and max_bytes of ToTopic allows {self.forward.max_bytes:,}. Nothing was written. "
            f"Raise it and the topic's max.message.bytes, or forward fewer columns.",
            batch_id=batch.batch_id,
        )


@contextmanager
def noting(
    cursor: Cursor, pipeline: Pipeline, writer: SinkWriter, columns: Sequence[Column]
) -> Iterator[Outbox | None]:
    """Note in the block what the sink changes in its target; yield None if the pipeline forwards nothing.

    `columns` are the columns of a row without its lineage. The target exists, and its definition is locked. Raises
    ConfigurationError if the topic's key or value names other columns, or a key column of a type whose equal values
    can look different: messages of one row would have several keys.
    """
    forward = pipeline.forward
    if forward is None:
        yield None
        return
    cursor.execute(CREATE_WRITTEN)
    cursor.written_rows = _written_rows(cursor, writer, forward, columns)
    try:
        yield Outbox(cursor, pipeline, forward)
    finally:
        cursor.written_rows = None


def _written_rows(
    cursor: Cursor, writer: SinkWriter, forward: ToTopic, columns: Sequence[Column]
) -> WrittenRows:
    traits, lineage = writer.traits, writer.traits.lineage_of_results
    results = traits.result_columns(columns)
    forward.check(traits.key_columns, results, lineage)
    stored = writer.tables[-1].columns(cursor)
    key = forward.key_columns(traits.key_columns)
    value = forward.value_columns or tuple(column.name for column in results)
    if traits.is_derived:
        for name in key:
            if not has_one_image(stored[name].type):
                raise ConfigurationError(
                    f"target {traits.target}, column {name}: equal values of its type, {stored[name].type}, can look "
                    f"different, so messages about one row would have several keys. Results with this key cannot be "
                    f"forwarded. Use a key of integers, text, uuid, date, timestamptz or numeric with a scale.",
                    column=name,
                )
    order = [] if traits.is_derived else [c.name for c in lineage if c.name.startswith("kafka_")]
    found = pg_types(cursor, {(column.type_oid, column.modifier) for column in stored.values()})
    types = {name: found[column.type_oid, column.modifier] for name, column in stored.items()}
    return WrittenRows(
        table=writer.tables[-1].name,
        columns=list(dict.fromkeys((*key, *value, *order))),
        key=_encode_text(key[0])
        if forward.key_format == "text"
        else _object(key, types, forward)
        if key
        else sql.SQL("null::bytea"),
        value=_object(value, types, forward),
        # Rows of one record, and rows that do not name their records, are in the order of their messages.
        order=sql.SQL(", ").join([*(sql.Identifier("w", name) for name in order), sql.SQL("2, 3")]),
    )


def _encode_text(name: str) -> sql.Composable:
    return sql.SQL("convert_to({}::text, 'UTF8')").format(sql.Identifier("w", name))


def _object(names: Sequence[str], types: Mapping[str, PgType], forward: ToTopic) -> sql.Composable:
    """Return the bytes of a JSON object with these columns of the row `w`, in their order."""

    def field(name: str) -> sql.Composable:
        column: sql.Composable = sql.Identifier("w", name)
        type_ = types[name].leaf
        is_array = type_.kind == "array"
        number = type_.parts[0].leaf if is_array else type_
        if forward.numbers == "text" and number.name in _WIDE_NUMBERS:
            column = sql.SQL("{}::text{}").format(column, sql.SQL("[]" if is_array else ""))
        return sql.SQL("{} as {}").format(column, sql.Identifier(name))

    return sql.SQL(
        "convert_to((select row_to_json({row}) from (select {columns}) {row})::text, 'UTF8')"
    ).format(row=ROW, columns=sql.SQL(", ").join(map(field, names)))
